"""The lookup join's entry: the rows of a stream and the changes of a table, by key.

`FORECAST` says what the state will hold: the table, and stream rows that wait for their table row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from watersmeet.operators.core.changes import POSITION
from watersmeet.operators.core.routing import Route
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin
from watersmeet.operators.lookup.kernel import LookupJoinOperator, LookupKind
from watersmeet.physical.change import CLOCK, ChangeEffect, IdentityChange, StageEdit
from watersmeet.physical.nodes import JoinPlan, JoinPlanner, PortPlan, Types
from watersmeet.physical.ports import JoinCondition, changelog_mode_of, changelog_port, unions_of


def plan(join: AnalyzedLookupJoin, inputs: tuple[PortPlan, ...], types: Types) -> JoinPlan:
    """The plan of a lookup join."""
    on = JoinCondition.of(join, inputs, types)
    table = 1 if join.table == "right" else 0
    # Without an equality every stream row is compared with the whole table, so the table goes to all shards.
    stream_route, table_route = cast("tuple[Route, Route]", ("key", "key") if on.keys.pairs else ("spread", "all"))
    rows = replace(on.port_plan(inputs[1 - table], 1 - table, stream_route), position=POSITION)
    stream = (rows, replace(on.operator_port(rows, 1 - table), late=()))
    looked_up = changelog_port(on, inputs[table], table, table_route)
    (left_way, left), (right_way, right) = (stream, looked_up) if table == 1 else (looked_up, stream)
    operator = LookupJoinOperator(
        cast("LookupKind", join.kind), left, right, table, on.condition,
        join.late_table, join.retention, join.waiting, join.load_first,
        idle=inputs[1 - table].idle, unions=unions_of(inputs[1 - table].lags),
    )  # fmt: skip
    why = (
        "lookup join: each stream row is looked up once, in the table as it is at that moment",
        on.keys.why()
        if on.keys.pairs
        else "without an equality, the table goes to all shards and the stream is spread",
        *on.why_post_filters(),
    )
    return JoinPlan((left_way, right_way), operator, (*left.columns, *right.columns), on.post_filters, why, join)


PLAN = JoinPlanner(
    plan,
    changelog_mode=changelog_mode_of,
    by_spark="lookup by Spark: the table never changes, so nothing is kept and no rows are shuffled by shard",
)


# The changes of a lookup join with which its state can continue: whether rows wait for their table rows.


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """Effects of another policy for late table rows; None: another part has changed, too."""
    effects: list[ChangeEffect] = []
    for change in changes:
        if change.path == ("late_table",):
            effects.append(_late_effect(stage))
        elif change.path == CLOCK:
            effects.append(_clock_effect(stage, follows_it=change.now))
        else:
            return None
    return effects


def _late_effect(stage: StageEdit) -> ChangeEffect:
    after = stage.operators[1]
    side = f"`{stage.now.side(stage.number, 1 - int(after['table']))}`"
    if after["late_table"] == "ignore":
        change = f"rows of {side} were shown again when their table rows arrived late, now they are not"
        return ChangeEffect(change, f"rows of {side} that wait are removed; they were already emitted unmatched")
    change = f"rows of {side} were not shown again when their table rows arrived late, now they are"
    return ChangeEffect(change, f"rows of {side} that were emitted unmatched until now are not shown again")


def _clock_effect(stage: StageEdit, *, follows_it: bool) -> ChangeEffect:
    sides = stage.now.sides(stage.number)
    if not follows_it:
        return ChangeEffect(
            f"the join of {sides} followed the clock, now it does not",
            "the clock no longer ends the wait for a table row, and a silent side holds the result back",
        )
    return ChangeEffect(
        f"the join of {sides} did not follow the clock, now it does",
        "the settings now limit how long rows wait for a table row and when a side is idle",
    )


CHANGE = change_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A row per key of the table; rows of the stream wait as long, or as many of them, as is said."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedLookupJoin)
    table = 1 if join.table == "right" else 0
    table_rows = PortRetention(table, "keys", law="the rows of the table")
    if join.kind not in ("left", "right", "full") or join.late_table != "reemit":
        return (table_rows,)
    if join.retention is not None:
        return (table_rows, PortRetention(1 - table, "time", join.retention, "how long rows without a table row wait"))
    if join.waiting is not None:
        return (table_rows, PortRetention(1 - table, "number", join.waiting, "how many rows without a table row wait"))
    return (table_rows, PortRetention(1 - table, "unknown", law="rows without a table row wait for it"))


FORECAST = forecast
