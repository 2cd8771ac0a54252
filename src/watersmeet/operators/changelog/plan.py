"""The entry of joins of two tables: a merge join where an equality exists, else a block-nested one (FT-4).

`FORECAST` says what the state will hold: both tables.
"""

from __future__ import annotations

from watersmeet.logical.nodes import LEFT_ONLY, JoinKind
from watersmeet.operators.changelog.analyze import AnalyzedTableJoin
from watersmeet.operators.changelog.kernel import ChangelogJoinOperator, NestedLoopJoinOperator
from watersmeet.operators.core.routing import Route
from watersmeet.operators.explainer import PortRetention
from watersmeet.physical.nodes import JoinPlan, JoinPlanner, PortPlan, Types
from watersmeet.physical.ports import JoinCondition, changelog_mode_of, changelog_port


def plan(join: AnalyzedTableJoin, inputs: tuple[PortPlan, ...], types: Types) -> JoinPlan:
    """The plan of a join of two tables."""
    on = JoinCondition.of(join, inputs, types)
    routes = _routes(join.kind, keyed=bool(on.keys.pairs))
    (left_way, left), (right_way, right) = (changelog_port(on, inputs[n], n, routes[n]) for n in (0, 1))
    # Where types differ, the join compares computed columns instead.
    final_pair = join.final_key_pair if join.final_key_pair in on.keys.pairs else None
    operator = (ChangelogJoinOperator if on.keys.pairs else NestedLoopJoinOperator)(
        join.kind, left, right, on.condition, final_keys=final_pair
    )
    columns = left.columns if join.kind in LEFT_ONLY else (*left.columns, *right.columns)
    why = _why(join, on, routes, is_final=final_pair is not None)
    return JoinPlan((left_way, right_way), operator, columns, on.post_filters, why, join)


def _routes(kind: JoinKind, *, keyed: bool) -> tuple[Route, Route]:
    """The routes of the rows of each table: without a key one is spread and the other is in all shards."""
    if keyed:
        return ("key", "key")
    if kind == "full":
        return ("one", "one")
    return ("all", "spread") if kind == "right" else ("spread", "all")


def _why(join: AnalyzedTableJoin, on: JoinCondition, routes: tuple[Route, Route], *, is_final: bool) -> tuple[str, ...]:
    after = on.why_post_filters("changes")
    if on.keys.pairs:
        reason = "the plan names it" if join.is_merge else "ON has an equality between the tables"
        ended = ("a row is removed once the key is final in both tables",) if is_final else ()
        return (f"merge join: {reason}", on.keys.why(), *ended, *after)
    sent, spread = ("left", "right") if routes[0] == "all" else ("right", "left")
    where = f"the {sent} table goes to all shards, the {spread} one is spread"
    return (
        "block-nested join: ON has no equality between the tables, so every change is compared with the other table",
        "one shard: both tables are preserved" if "one" in routes else where,
        "an equality, such as `a.id = b.id`, would make it a merge join, which only reads rows with changed keys",
        *after,
    )


PLAN = JoinPlanner(plan, changelog_mode=changelog_mode_of)


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The rows of each table."""
    return tuple(PortRetention(port, "keys", law="the rows of the table") for port in range(len(plan.ports)))


FORECAST = forecast
