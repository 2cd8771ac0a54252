"""The lookup join's entry: the rows of a stream and the changes of a table, by key."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from watersmeet.families.lookup.relation import AnalyzedLookupJoin
from watersmeet.joins.core.changes import POSITION
from watersmeet.joins.lookup.operator import LookupJoinOperator, LookupKind
from watersmeet.physical.family import JoinPlanner
from watersmeet.physical.nodes import JoinPlan, PortInput, Route
from watersmeet.physical.ports import JoinCondition, changelog_mode_of, changelog_port, unions_of
from watersmeet.physical.types import Types


def plan(join: AnalyzedLookupJoin, inputs: tuple[PortInput, ...], types: Types) -> JoinPlan:
    """The plan of a lookup join."""
    on = JoinCondition.of(join, inputs, types)
    table = 1 if join.table == "right" else 0
    # Without an equality every stream row asks for the whole table, which therefore goes to all shards.
    stream_route, table_route = cast("tuple[Route, Route]", ("key", "key") if on.keys.pairs else ("spread", "all"))
    rows = replace(on.port_plan(inputs[1 - table], 1 - table, stream_route), position=POSITION)
    stream = (rows, replace(on.operator_port(inputs[1 - table], 1 - table, rows), late=()))
    looked_up = changelog_port(on, inputs[table], table, table_route)
    (left_way, left), (right_way, right) = (stream, looked_up) if table == 1 else (looked_up, stream)
    operator = LookupJoinOperator(
        cast("LookupKind", join.kind), left, right, table, on.condition,
        join.late_table, join.retention, join.waiting, join.load_first,
        idle=inputs[1 - table].idle, unions=unions_of(inputs[1 - table].lags),
    )  # fmt: skip
    why = (
        "lookup join: each row of the stream meets what the table has for it at that moment",
        on.keys.why() if on.keys.pairs else "without an equality the table goes to all shards, the stream is spread",
        *on.why_after(),
    )
    return JoinPlan((left_way, right_way), operator, (*left.columns, *right.columns), on.after, why, join)


PLAN = JoinPlanner(
    plan,
    changelog_mode=changelog_mode_of,
    by_spark="lookup by Spark: the table never changes, so nothing is kept and no rows are shuffled by shard",
)
