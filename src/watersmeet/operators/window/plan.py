"""The plan of the window join: its windows, the order of arrival, and how rows may be sharded.

`FORECAST` says how many rows the windows hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from watersmeet.logical.expressions import Expr
from watersmeet.logical.relation import Padding
from watersmeet.operators.core.operator import Port
from watersmeet.operators.core.routing import Route
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.state.shard import PRESERVED
from watersmeet.operators.window.kernel import (
    LAST,
    SEQ,
    TRIGGER,
    TRIGGER_PORT,
    PartitionLimit,
    WindowJoinOperator,
    WindowKind,
    WindowSpec,
)
from watersmeet.operators.window.relation import LIMITS, PUNCTUATION, AnalyzedWindow, AnalyzedWindowJoin
from watersmeet.physical.change import ChangeEffect, IdentityChange, StageEdit, describe_first
from watersmeet.physical.nodes import PADDED, Derived, JoinPlan, JoinPlanner, PortPlan, Types
from watersmeet.physical.ports import JoinCondition, Operands, key_template, leaf_column, padding_of
from watersmeet.schema import INTEGERS

POSITION = "#position"


@dataclass(frozen=True)
class Sharding:
    """The equalities that determine the shard (none: one shard for all rows), and why."""

    pairs: tuple[int, ...]
    why: str

    def route(self) -> Route:
        """The route of the rows."""
        return "partition" if self.pairs else "one"


def plan(join: AnalyzedWindowJoin, inputs: tuple[PortPlan, ...], types: Types) -> JoinPlan:
    """The plan of a window join over two sources."""
    on = JoinCondition.of(join, inputs, types)
    sharding = _choose_sharding(join)
    planned = [_port(join, p, inputs[p], on, sharding) for p in (0, 1)]
    left, right = (side for _, side, _ in planned)
    pads: tuple[Padding, ...] = tuple(
        padding_of(pad, leaf) for pad, leaf in zip(join.paddings, (join.left, join.right), strict=True)
    )
    operator = WindowJoinOperator(
        cast("WindowKind", join.kind), left, right, (planned[0][2], planned[1][2]), on.condition,
        interleaved=None not in join.order,
        padded_column=PADDED if any(pad != "nulls" for pad in pads) else None,
        punctuated=join.punctuated,
        emit_discarded=join.emit_discarded,
    )  # fmt: skip
    port_plans = tuple(port_plan for port_plan, _, _ in planned)
    return JoinPlan(
        port_plans, operator, (*left.columns, *right.columns), on.post_filters, _why(join, sharding, on), join, pads,
        _punctuation_types(join, types), _punctuation_columns(join),
    )  # fmt: skip


def _punctuation_types(join: AnalyzedWindowJoin, types: Types) -> tuple[tuple[str, str], ...]:
    """The types of the columns that identify the arrival that caused a row; integers become BIGINT."""
    order = None if join.order[0] is None else types.type_of(leaf_column(join.left.alias, join.order[0]))
    at = "BIGINT" if order is None or order in INTEGERS else order
    return ((TRIGGER_PORT, "TINYINT"), (TRIGGER, at), (SEQ, "BIGINT NOT NULL"), (LAST, "BOOLEAN NOT NULL"))


def _punctuation_columns(join: AnalyzedWindowJoin) -> tuple[Derived, ...]:
    """The columns with the arrival that caused a row, the row's number among its rows, and whether it is the last."""
    if not join.punctuated:
        return ()
    sides = (join.left.alias, join.right.alias)
    cause = Derived(f"{PUNCTUATION}.{TRIGGER}", TRIGGER, TRIGGER_PORT, sides)
    return (cause, *(Derived(f"{PUNCTUATION}.{name}", name) for name in (SEQ, LAST)))


def _port(
    join: AnalyzedWindowJoin, port: int, plan: PortPlan, on: JoinCondition, sharding: Sharding
) -> tuple[PortPlan, Port, WindowSpec]:
    """The plan of one side's exchange, and the port of the kernel."""
    leaf = (join.left, join.right)[port]
    # No watermark matters to a window, so no column is carried for one.
    plan = replace(plan, times=(), lags=(), late=())
    window = _window(join.windows[port], port, on.operands)
    order = join.order[port]
    ordered = () if order is None else (f"{leaf.alias}.{order}",)
    unmatched = tuple(f"{leaf.alias}.{f.name}" for f in leaf.source.fields) if join.unmatched[port] else ()
    plan = on.port_plan(plan, port, sharding.route(), (*ordered, *unmatched))
    chosen = tuple(on.keys.names(port)[i] for i in sharding.pairs)
    shard_by = () if len(chosen) == len(on.keys.pairs) else chosen
    # Rows arrive in delivery order; their positions are needed only to identify the arrival that caused a row.
    position = (POSITION,) if join.punctuated and not ordered else ()
    plan = replace(plan, shard_by=shard_by, position=POSITION if position else None)
    plan = plan if plan.names else _with_some_column(plan)
    side = replace(on.operator_port(plan, port), order=next(iter(ordered + position), None), unmatched=unmatched)
    return plan, side, window


def _with_some_column(plan: PortPlan) -> PortPlan:
    """The plan of a side of which nothing is read, with some column: rows without columns could not be counted."""
    below = plan.input.with_some_column()
    return replace(plan, input=below, columns=below.frame_columns[:1])


def _window(window: AnalyzedWindow, port: int, operands: Operands) -> WindowSpec:
    column = None if window.column is None else operands.operand(port, window.column).name
    partition = tuple(
        operands.operand(port, expr, key_template(operands.types.type_of(expr))).name for expr in window.partition_by
    )
    limit = None
    if window.limit is not None:
        kind = "count" if window.limit.kind == "partitions" else window.limit.kind
        limit = PartitionLimit(kind, window.limit.size)
    return WindowSpec(window.kind, window.size, column, partition, limit)


def _choose_sharding(join: AnalyzedWindowJoin) -> Sharding:
    """The equalities by which rows may be sharded: a partition, and all rows that may match, must share a shard."""
    for scan, window in zip((join.left, join.right), join.windows, strict=True):
        if window.limit is not None:
            return Sharding((), f"one shard: {LIMITS[window.limit.kind]} of {scan.alias} applies to all partitions")
        if not window.partition_by and not _is_free(window):
            words = f"{window.kind.upper()} of {scan.alias} without PARTITION BY"
            return Sharding((), f"one shard: {words} applies to all rows")
    if not join.keys:
        return Sharding((), "one shard: without an equality, any two rows can match")
    if join.punctuated and None in join.order:
        return Sharding((), "one shard: the order of arrivals decides, and no ORDER BY is declared")
    if join.punctuated and any(window.kind == "time" for window in join.windows):
        return Sharding((), "one shard: _seq counts the rows that time evicts at once")
    pairs = tuple(i for i, pair in enumerate(join.keys) if all(map(_decides, pair, join.windows)))
    if not pairs:
        return Sharding((), "one shard: no equality compares expressions of PARTITION BY")
    names = ", ".join(f"{left.sql()} = {right.sql()}" for left, right in (join.keys[i] for i in pairs))
    return Sharding(pairs, f"sharded by {names.replace('`', '')}: the rows of a partition stay together")


def _is_free(window: AnalyzedWindow) -> bool:
    """Whether eviction from the window does not depend on other rows."""
    return window.kind == "time" or (window.kind == "count" and window.size == 0)


def _decides(key: Expr, window: AnalyzedWindow) -> bool:
    """Whether all rows of a partition of the window have the same key."""
    if not window.partition_by or (window.kind == "count" and window.size == 0):
        return _is_free(window)
    return key.sql() in {expr.sql() for expr in window.partition_by}


def _why(join: AnalyzedWindowJoin, sharding: Sharding, on: JoinCondition) -> tuple[str, ...]:
    lines = ["window join: an arriving row is matched with the window of the other side", sharding.why]
    if None in join.order:
        lines.append(
            "no ORDER BY is declared for the sources: left rows of a batch arrive before its right rows, so the result "
            "depends on how rows fall into batches"
        )
    if any(window.kind == "time" for window in join.windows) and sharding.pairs:
        lines.append("after a restart, TIME evicts rows from a shard only once a new row arrives there")
    return (*lines, *on.why_post_filters())


PLAN = JoinPlanner(plan)


# The changes of a window join with which its state can continue: window sizes, and limits on partitions.


AGE = "age"


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """The effects of windows of other sizes; None: something else has changed, too."""
    effects: list[ChangeEffect] = []
    for change in changes:
        match change.path:
            case ("windows", int() as port, "size"):
                consequence = _size_effect(stage, port, is_less=change.now < change.was)
            case ("windows", int() as port, "limit") if _by_age(change.was) == _by_age(change.now):
                consequence = _limit_effect(stage, port, change.was, change.now)
            case _:
                return None
        whole = IdentityChange(("stages", stage.number, "operator", *change.path), change.was, change.now)
        effects.append(ChangeEffect(describe_first([whole], stage.was, stage.now), consequence))
    return effects


def _by_age(limit: Sequence[Any] | None) -> bool | None:
    """Whether a limit is by age, which needs insertion times in the state; None: there is no limit.

    With a limit, all partitions are in one shard.
    """
    return None if limit is None else limit[0] == AGE


def _size_effect(stage: StageEdit, port: int, *, is_less: bool) -> str:
    side = f"`{stage.now.side(stage.number, port)}`"
    if not is_less:
        return f"rows of {side} that have left its window do not come back; emitted pairs stay"
    after = stage.operators[1]
    emitted = ", and emitted if unmatched" if PRESERVED[after["kind"]][port] else ""
    when = "with the next batch"
    if after["windows"][port]["kind"] == "time":
        when = "with the batch after the one that brings its next row"
    return f"rows of {side} beyond the new size are removed {when}{emitted}; emitted pairs stay"


def _limit_effect(stage: StageEdit, port: int, was: Sequence[Any], now: Sequence[Any]) -> str:
    side = f"`{stage.now.side(stage.number, port)}`"
    if was[0] == now[0] and was[1] < now[1]:
        return f"partitions of {side} that were discarded do not come back"
    when = "with its next row" if now[0] == AGE else "with the next batch"
    return f"partitions of {side} beyond the new limit are discarded {when}"


CHANGE = change_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A number of rows, per partition if there are any; the rows of a length of the clock; or unknown."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedWindowJoin)
    return tuple(_window_retention(port, window) for port, window in enumerate(join.windows))


def _window_retention(port: int, window: AnalyzedWindow) -> PortRetention:
    if window.kind == "count":
        of = "rows of each partition" if window.partition_by else "rows"
        return PortRetention(port, "number", window.size, of, per_key=bool(window.partition_by))
    if window.kind == "time":
        return PortRetention(port, "time", window.size, "the window, by the clock")
    return PortRetention(port, "unknown", law="rows leave when a column differs enough from that of newer rows")


FORECAST = forecast
