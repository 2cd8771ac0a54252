"""The entries of joins with tables: lookups of streams in tables, joins of tables, and tables by their primary key."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from watersmeet.families.changelog.relation import AnalyzedTableJoin
from watersmeet.families.lookup.relation import AnalyzedLookupJoin
from watersmeet.joins.changelog.nested import NestedJoin
from watersmeet.joins.changelog.operator import ChangelogJoin
from watersmeet.joins.core.changes import OP, POSITION, WEIGHT
from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.port import Port
from watersmeet.joins.latest.operator import Latest
from watersmeet.joins.lookup.operator import LookupJoin, LookupKind
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import JoinPlan, PortInput, PortPlan, Route, ScanPlan
from watersmeet.physical.ports import CODE, Keys, all_of, mentioned, port_plan, shown_columns, split_residual, unions_of
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import Expr, column
from watersmeet.plan.nodes import JoinKind
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedScan
from watersmeet.type_names import EXACT


def is_upserting(join: AnalyzedJoin, port: int) -> bool:
    """Whether a side is a table whose upserts the join itself can follow.

    The old and the new row of a primary key must meet in one shard, so the keys of the join must follow from it.
    """
    side = join.inputs[port]
    if not isinstance(join, AnalyzedLookupJoin | AnalyzedTableJoin) or not isinstance(side, AnalyzedScan):
        return False
    key = {name.lower() for name in side.source.primary_key}
    named = [ref.name.lower() for pair in join.keys for ref in pair[port].references]
    return bool(join.keys) and bool(key) and key.issuperset(named)


def plan_table(scan: AnalyzedScan, plan: ScanPlan, types: Types) -> JoinPlan:
    """A table with a primary key as changes with weights: the stage that finds the row that an upsert replaces."""
    names = [field.name for key in scan.source.primary_key if (field := scan.source.field(key)) is not None]
    keys = tuple(f"{scan.alias}.{name}" for name in names)
    first = types.type_of(_resolved(scan.alias, names[0]))
    exact = len(keys) == 1 and first in EXACT
    code = keys[0] if exact else CODE
    columns = tuple(f"{scan.alias}.{name}" for name in plan.columns)
    port = PortPlan(plan, (*columns, OP), code=code, hashed=() if exact else keys, route="key", position=POSITION)
    why = ("table by its primary key: an upsert takes back the row that it replaces", "sharded by the primary key")
    operator = Latest(Port(columns, (), keys, code, exact))
    return JoinPlan((port,), operator, columns, (), why, scan, made=((WEIGHT, "BIGINT"),))


def plan_lookup_join(join: AnalyzedLookupJoin, given: tuple[PortInput, PortInput], types: Types) -> JoinPlan:
    """The plan of a lookup join: the stream's rows and the table's changes by key."""
    operands = Operands((given[0].aliases, given[1].aliases), types)
    keys = Keys.of(join.keys, operands)
    conditions, after = split_residual(join.residual, operands)
    condition = all_of(conditions)
    table = 1 if join.table == "right" else 0
    # Without an equality every stream row asks for the whole table, which therefore goes to all shards.
    route: tuple[Route, Route] = (
        ("key", "key") if keys.pairs else ("all", "spread") if table == 0 else ("spread", "all")
    )
    planned = [_port(join, n, given[n], operands, keys, condition, after, route[n]) for n in (0, 1)]
    sides = [
        Port(shown, given[n].times if n != table else (), keys.names(n), plan.code, keys.exact, plan.dead,
             tuple(name for name in plan.names if name in mentioned(condition)),
             upsert_key=_upsert_key(join, n) if n == table else ())
        for n, (plan, shown) in enumerate(planned)
    ]  # fmt: skip
    operator = LookupJoin(
        cast("LookupKind", join.kind), sides[0], sides[1], table, condition,
        join.late_table, join.retention, join.waiting, join.load_first,
        idle=given[1 - table].idle, unions=unions_of(given[1 - table].lags),
    )  # fmt: skip
    why = [
        "lookup join: each row of the stream meets what the table has for it at that moment",
        keys.why() if keys.pairs else "without an equality the table goes to all shards, the stream is spread",
    ]
    if after:
        why.append("Spark filters the pairs by the conditions that only Spark can evaluate")
    columns = (*sides[0].columns, *sides[1].columns)
    return JoinPlan(tuple(plan for plan, _ in planned), operator, columns, tuple(after), tuple(why), join)


def plan_table_join(join: AnalyzedTableJoin, given: tuple[PortInput, PortInput], types: Types) -> JoinPlan:
    """The plan of a join of two tables: a merge join where an equality exists, else a block-nested one (FT-4)."""
    operands = Operands((given[0].aliases, given[1].aliases), types)
    keys = Keys.of(join.keys, operands)
    conditions, after = split_residual(join.residual, operands)
    condition = all_of(conditions)
    routes = _routes(join.kind, keyed=bool(keys.pairs))
    planned = [_port(join, n, given[n], operands, keys, condition, after, routes[n]) for n in (0, 1)]
    sides = [
        Port(shown, (), keys.names(n), plan.code, keys.exact, plan.dead,
             tuple(name for name in plan.names if name in mentioned(condition)), upsert_key=_upsert_key(join, n))
        for n, (plan, shown) in enumerate(planned)
    ]  # fmt: skip
    family = ChangelogJoin if keys.pairs else NestedJoin
    operator = family(join.kind, sides[0], sides[1], condition)
    left_only = join.kind in ("semi", "anti")
    columns = sides[0].columns if left_only else (*sides[0].columns, *sides[1].columns)
    why = _why(join, keys, after, routes)
    ports = tuple(plan for plan, _ in planned)
    return JoinPlan(ports, operator, columns, tuple(after), why, join, made=((WEIGHT, "BIGINT"),))


def _port(
    join: AnalyzedLookupJoin | AnalyzedTableJoin,
    port: int,
    given: PortInput,
    operands: Operands,
    keys: Keys,
    condition: Condition | None,
    after: list[Expr],
    route: Route,
) -> tuple[PortPlan, tuple[str, ...]]:
    """The way of one side up to the exchange, and what the result shows of it."""
    shown = shown_columns(given, after)
    is_table = isinstance(join, AnalyzedTableJoin) or port == (1 if join.table == "right" else 0)
    upserts = _upsert_key(join, port)
    travels = () if not is_table else (OP,) if upserts else (WEIGHT,)
    columns = (*shown, *upserts, *travels)
    plan = port_plan(given, port, operands, keys, (join.left_only, join.right_only)[port], columns, route)
    return replace(plan, position=POSITION) if upserts or not is_table else plan, shown


def _upsert_key(join: AnalyzedLookupJoin | AnalyzedTableJoin, port: int) -> tuple[str, ...]:
    """The primary key of a side whose upserts the join follows, as columns of its arrivals."""
    side = join.inputs[port]
    if not is_upserting(join, port) or not isinstance(side, AnalyzedScan):
        return ()
    fields = (side.source.field(name) for name in side.source.primary_key)
    return tuple(f"{side.alias}.{field.name}" for field in fields if field is not None)


def _routes(kind: JoinKind, *, keyed: bool) -> tuple[Route, Route]:
    """Where the rows of each table go: without a key one is spread and the other is in all shards."""
    if keyed:
        return ("key", "key")
    if kind == "full":
        return ("one", "one")
    return ("all", "spread") if kind == "right" else ("spread", "all")


def _why(join: AnalyzedTableJoin, keys: Keys, after: list[Expr], routes: tuple[Route, Route]) -> tuple[str, ...]:
    if keys.pairs:
        reason = "the plan names it" if join.is_merge else "ON has an equality between the tables"
        lines = [f"merge join: {reason}", keys.why()]
    else:
        lines = [
            "block-nested join: ON has no equality between the tables, so every change meets the whole other table"
        ]
        if "one" in routes:
            lines.append("one shard: both tables are preserved")
        else:
            sent, spread = ("left", "right") if routes[0] == "all" else ("right", "left")
            lines.append(f"the {sent} table goes to all shards, the {spread} is spread")
        lines.append(
            "an equality, such as `a.id = b.id`, would make it a merge join, which reads only what changes touch"
        )
    if after:
        lines.append("Spark filters the changes by the conditions that only Spark can evaluate")
    return tuple(lines)


def _resolved(alias: str, name: str) -> Expr:
    leaf = column((alias, name))
    return replace(leaf, refs=(replace(leaf.refs[0], source=alias, name=name),))
