"""The window join's entry: what each window keeps, in which order rows arrive, and whether shards are sound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from watersmeet.families.window.relation import AnalyzedWindow, AnalyzedWindowJoin
from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.port import Port
from watersmeet.joins.window.operator import PartitionLimit, WindowJoin, WindowKind, WindowSpec
from watersmeet.physical.condition import Operands
from watersmeet.physical.leaves import shown_by
from watersmeet.physical.nodes import PADDED, JoinPlan, PortInput, PortPlan, Route, ScanPlan
from watersmeet.physical.ports import Keys, all_of, mentioned, port_plan, shown_columns, split_residual
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import AnalyzedLeaf, Padding

POSITION = "#position"
LIMITS = {"age": "PARTITION AGE", "partitions": "PARTITION COUNT", "rows": "TUPLE COUNT"}


@dataclass(frozen=True)
class Sharding:
    """Which equalities decide about the shard (none: one shard does all), and why."""

    pairs: tuple[int, ...]
    why: str

    def route(self) -> Route:
        """Where rows go."""
        return "partition" if self.pairs else "one"


def plan_window_join(join: AnalyzedWindowJoin, inputs: tuple[PortInput, PortInput], types: Types) -> JoinPlan:
    """The plan of a window join over two sources."""
    operands = Operands((inputs[0].aliases, inputs[1].aliases), types)
    keys = Keys.of(join.keys, operands)
    conditions, after = split_residual(join.residual, operands)
    condition = all_of(conditions)
    sharding = _sharding(join)
    planned = [_port(join, p, inputs[p], operands, keys, condition, after, sharding) for p in (0, 1)]
    left, right = (side for _, side, _ in planned)
    pads: tuple[Padding, ...] = tuple(
        padding_of(pad, scan) for pad, scan in zip(join.paddings, (join.left, join.right), strict=True)
    )
    operator = WindowJoin(
        cast("WindowKind", join.kind), left, right, (planned[0][2], planned[1][2]), condition,
        interleaved=None not in join.order,
        padded_column=PADDED if any(pad != "nulls" for pad in pads) else None,
        punctuated=join.punctuated,
        emit_discarded=join.emit_discarded,
    )  # fmt: skip
    columns = (*left.columns, *right.columns)
    return JoinPlan(
        tuple(port for port, _, _ in planned), operator, columns, tuple(after), _why(join, sharding, after), join, pads
    )


def padding_of(pad: Padding, scan: AnalyzedLeaf) -> Padding:
    """The padding of a side with its columns as the frames call them."""
    if pad == "nulls" or pad == "zeros":
        return pad
    return tuple((f"{scan.alias}.{name}", value) for name, value in pad)


def _port(
    join: AnalyzedWindowJoin,
    port: int,
    given: PortInput,
    operands: Operands,
    keys: Keys,
    condition: Condition | None,
    after: list[Expr],
    sharding: Sharding,
) -> tuple[PortPlan, Port, WindowSpec]:
    """What goes through the exchange for one side, and how the kernel finds it there."""
    scan = (join.left, join.right)[port]
    # No watermark matters to a window, so no column is carried for one.
    given = replace(given, times=(), lags=(), late=())
    shown = shown_columns(given, after)
    window = _window(join.windows[port], port, operands)
    order = join.order[port]
    ordered = () if order is None else (f"{scan.alias}.{order}",)
    unmatched = tuple(f"{scan.alias}.{f.name}" for f in scan.source.fields) if join.unmatched[port] else ()
    only = (join.left_only, join.right_only)[port]
    plan = port_plan(given, port, operands, keys, only, (*shown, *ordered, *unmatched), sharding.route())
    chosen = tuple(keys.names(port)[i] for i in sharding.pairs)
    shard_by = () if len(chosen) == len(keys.pairs) else chosen
    # The rows come as they were delivered; only who asks for the arrival that caused a row needs to know their places.
    position = (POSITION,) if join.punctuated and not ordered else ()
    plan = replace(plan, shard_by=shard_by, position=POSITION if position else None)
    plan = plan if plan.names else _counted(plan, scan)
    read = tuple(name for name in plan.names if name in mentioned(condition))
    side = Port(
        shown, (), keys.names(port), plan.code, keys.exact, plan.dead, read,
        order=next(iter(ordered + position), None), unmatched=unmatched,
    )  # fmt: skip
    return plan, side, window


def _counted(plan: PortPlan, scan: AnalyzedLeaf) -> PortPlan:
    """The plan of a side of which nothing is read, with some column: rows without columns could not be counted."""
    if not isinstance(plan.input, ScanPlan):
        return replace(plan, columns=shown_by(plan.input)[:1])
    columns = plan.input.columns or (scan.source.fields[0].name,)
    return replace(plan, input=replace(plan.input, columns=columns), columns=(f"{scan.alias}.{columns[0]}",))


def _window(window: AnalyzedWindow, port: int, operands: Operands) -> WindowSpec:
    column = None if window.column is None else operands.operand(port, window.column).name
    partition = tuple(operands.operand(port, expr, _grouped(expr, operands.types)).name for expr in window.partition_by)
    limit = None
    if window.limit is not None:
        kind = "count" if window.limit.kind == "partitions" else window.limit.kind
        limit = PartitionLimit(kind, window.limit.size)
    return WindowSpec(window.kind, window.size, column, partition, limit)


def _grouped(expr: Expr, types: Types) -> str:
    """How a partition's value is wrapped so that values that compare equal are the same; see `Operands.comparable`."""
    type_ = types.type_of(expr)
    return "lower(CAST({} AS STRING))" if type_ is not None and type_.endswith(" COLLATE UTF8_LCASE") else "{}"


def _sharding(join: AnalyzedWindowJoin) -> Sharding:
    """By which equalities rows may be sharded: all rows of a partition, and all that may meet, must share a shard."""
    for scan, window in zip((join.left, join.right), join.windows, strict=True):
        if window.limit is not None:
            return Sharding((), f"one shard: {LIMITS[window.limit.kind]} of {scan.alias} looks at all partitions")
        if not window.partition_by and not _is_free(window):
            words = f"{window.kind.upper()} of {scan.alias} without PARTITION BY"
            return Sharding((), f"one shard: {words} looks at all of its rows")
    if not join.keys:
        return Sharding((), "one shard: without an equality every row may meet every other")
    if join.punctuated and None in join.order:
        return Sharding((), "one shard: only it knows the order of all arrivals, and none is declared")
    if join.punctuated and any(window.kind == "time" for window in join.windows):
        return Sharding((), "one shard: the rows that time evicts together are counted by _seq")
    pairs = tuple(i for i, pair in enumerate(join.keys) if all(map(_decides, pair, join.windows)))
    if not pairs:
        return Sharding((), "one shard: no equality compares expressions of PARTITION BY")
    names = ", ".join(f"{left.sql()} = {right.sql()}" for left, right in (join.keys[i] for i in pairs))
    return Sharding(pairs, f"sharded by {names.replace('`', '')}: the rows of a partition stay together")


def _is_free(window: AnalyzedWindow) -> bool:
    """Whether a row's stay in the window has nothing to do with other rows."""
    return window.kind == "time" or (window.kind == "count" and window.size == 0)


def _decides(key: Expr, window: AnalyzedWindow) -> bool:
    """Whether all rows of a partition of the window have the same key."""
    if not window.partition_by or (window.kind == "count" and window.size == 0):
        return _is_free(window)
    return key.sql() in {expr.sql() for expr in window.partition_by}


def _why(join: AnalyzedWindowJoin, sharding: Sharding, after: list[Expr]) -> tuple[str, ...]:
    lines = ["window join: an arriving row meets what is in the window of the other side", sharding.why]
    if None in join.order:
        lines.append(
            "no ORDER BY is declared for the sources: left rows of a batch arrive before its right rows, so the result "
            "depends on how rows fall into batches"
        )
    if any(window.kind == "time" for window in join.windows) and sharding.pairs:
        lines.append("after a restart, TIME evicts from a shard again once a row has been inserted there")
    if after:
        lines.append("Spark filters the pairs by the conditions that only Spark can evaluate")
    return tuple(lines)
