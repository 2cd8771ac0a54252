"""A query in this process, without Spark: the same plan, with its joins on their definition or on their kernels.

The kernel's own evaluator computes what Spark would compute of a row (filters, key expressions, the projection). An
expression that only Spark can evaluate raises `NeedsSparkError`: such a query is not run here, and must not count as
passed.

A join may run in several shards: rows go to the shards to which the exchange on Spark sends them. `MemoryStore` is the
state of one shard in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.local.cells import (
    CHANGE,
    Definition,
    NeedsSparkError,
    complete_rows,
    definition_of,
    output_schema,
    step_by_definition,
    to_signed_rows,
)
from watersmeet.local.functions import (
    WINDOW,
    collation_columns,
    find_window,
    has_spark_evaluator,
    is_true,
    structure_of,
    value_of,
    windows_of_rows,
    with_collated,
)
from watersmeet.local.values import check_types
from watersmeet.logical.expressions import Expr
from watersmeet.logical.passes.comparisons import is_collated
from watersmeet.operators.core.changes import OP, WEIGHT, row_codes
from watersmeet.operators.core.condition import Condition
from watersmeet.operators.core.matching import Ints, as_int64
from watersmeet.operators.core.operator import LOADED, NOW, RUN, Emission, StepReport, StreamOperator, Watermarks
from watersmeet.operators.core.routing import code_of, is_hashable, null_key_columns, route_codes, split_rows
from watersmeet.operators.core.watermarks import PARTITION as OF_PARTITION
from watersmeet.operators.core.watermarks import watermark_behind
from watersmeet.physical import (
    JoinPlan,
    LateralPlan,
    PortPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
    WatermarkLag,
)


class MemoryStore:
    """Values by name in a dictionary, for running a join's steps in the process.

    >>> store = MemoryStore()
    >>> store.put("a", b"1")
    >>> store.get("a"), store.get("b")
    (b'1', None)
    """

    def __init__(self, values: Mapping[str, bytes] | None = None, owner: str | None = None) -> None:
        self._values = dict(values or {})
        self.owner = uuid4().hex if owner is None else owner

    @property
    def values(self) -> Mapping[str, bytes]:
        """All values by name, as they are now."""
        return dict(self._values)

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name; a copy, so that nothing outside can change it later."""
        self._values[name] = bytes(value)

    def remove(self, name: str) -> None:
        """Forget the value of that name, if there is one."""
        self._values.pop(name, None)

    def restart(self) -> MemoryStore:
        """The store after a restart: the same values, and nothing else from memory."""
        return MemoryStore({name: bytes(bytearray(value)) for name, value in self._values.items()}, self.owner)


def key_codes(table: pa.Table, columns: Sequence[str]) -> Ints:
    """A hash of these columns: Spark's, or another one for types whose hash only Spark knows."""
    if not columns:
        # A cross join whose result shows no column of that side.
        return np.zeros(len(table), np.int64)
    arrays = [table.column(name).combine_chunks() for name in columns]
    arrays = [pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array for array in arrays]
    return code_of(arrays) if all(is_hashable(array.type) for array in arrays) else row_codes(table, columns)


def step_in_shards(
    operator: StreamOperator,
    ports: Sequence[PortPlan],
    stores: Sequence[MemoryStore],
    tables: Mapping[int, pa.Table],
    watermarks: Watermarks,
) -> Emission:
    """One batch of an operator that has as many shards as stores, as one emission."""
    some = {place: table for place, table in tables.items() if table.num_rows}
    if len(stores) == 1:
        return operator.step(stores[0], some, watermarks)
    operator = operator.for_shards(len(stores))
    parts = {place: _split(operator, ports[place], place, table, len(stores)) for place, table in some.items()}
    emissions: list[Emission] = []
    for shard, store in enumerate(stores):
        arrivals = {port: part[shard] for port, part in parts.items() if part[shard].num_rows}
        emissions.append(operator.step(store, arrivals, watermarks))
    to_all = frozenset(place for place, port in enumerate(ports) if port.route == "all")
    return _merge_emissions(operator, to_all, emissions)


def _split(operator: StreamOperator, port: PortPlan, place: int, table: pa.Table, shards: int) -> list[pa.Table]:
    """The rows of a port that go to each shard."""
    if port.route == "all":
        return [table] * shards
    names = operator.canonical_names
    if port.route == "spread":
        columns = sorted((name for name in port.columns if name != WEIGHT), key=names.canonical)
        codes = key_codes(table, columns)
    elif port.shard_by:
        codes = key_codes(table, port.shard_by)
    else:
        by = port.times[0] if port.route == "time" else str(port.code)
        is_partition = port.route == "partition"
        side = operator.ports[place]
        null_keys = () if is_partition else null_key_columns(side, port.columns, names)
        codes = route_codes(table, by, null_keys, port.skew)
    batch = table.combine_chunks().to_batches()[0]
    parts = split_rows(batch, codes, shards, port.skew)
    return [table.slice(0, 0) if part is None else pa.Table.from_batches([part]) for part in parts]


def _merge_emissions(operator: StreamOperator, to_all: frozenset[int], emissions: Sequence[Emission]) -> Emission:
    """The emissions of the shards as one; rows of ports that go to all shards count in the first."""

    def merge_counts(place: int, numbers: Sequence[int]) -> int:
        return numbers[0] if place in to_all else sum(numbers)

    state = tuple(
        merge_counts(place, numbers)
        for place, numbers in enumerate(zip(*(emission.report.state for emission in emissions), strict=True))
    )
    partitions = tuple(
        merge_counts(place, numbers) if operator.is_partitioned(place) else max(numbers)
        for place, numbers in enumerate(zip(*(emission.report.partitions for emission in emissions), strict=True))
    )
    watermarks: dict[str, int] = {}
    for emission in emissions:
        for name, watermark in emission.report.watermarks.items():
            watermarks[name] = min(watermark, watermarks.get(name, watermark))
    late = tuple(
        (place, table)
        for shard, emission in enumerate(emissions)
        for place, table in emission.late
        if not shard or place not in to_all
    )
    return Emission(
        tuple(table for emission in emissions for table in emission.rows),
        late,
        StepReport(state=state, partitions=partitions, watermarks=watermarks),
        tuple(part for emission in emissions for part in emission.unmatched),
    )


@dataclass(frozen=True)
class BatchOutput:
    """The output of a relation in one batch: its rows and watermarks, and the side outputs and report of the last join.

    ``late`` and ``unmatched`` rows are per port, with the columns of their side; ``late`` also those of inner joins.
    """

    rows: pa.Table
    watermarks: Watermarks
    late: tuple[tuple[int, pa.Table], ...] = ()
    report: StepReport = field(default_factory=StepReport)
    unmatched: tuple[tuple[int, pa.Table], ...] = ()


@dataclass(frozen=True)
class DroppedRows:
    """Rows that go no further, and the condition that is not true of them; None: they lack an element, or their key."""

    rows: pa.Table
    part: Expr | None


@dataclass(frozen=True)
class LocalFrame:
    """The rows of a relation as they feed a join: those that ``keep`` denies are there for their event times only."""

    rows: pa.Table
    keep: npt.NDArray[np.bool_]
    watermarks: Watermarks
    last: BatchOutput | None = None
    lost: tuple[DroppedRows, ...] = ()

    def filter(self, parts: tuple[Expr, ...]) -> LocalFrame:
        """Keep the rows for which all parts are true; parts are not computed for rows that only carry event times."""
        frame = self
        for part in parts:
            some = frame.rows.filter(pa.array(frame.keep))
            frame = frame.restrict(is_true(part, some), part)
        return frame

    def restrict(self, passed: npt.NDArray[np.bool_], part: Expr | None = None) -> LocalFrame:
        """Those of the rows that are some that passed."""
        keep, lost = self.keep.copy(), self.lost
        if not passed.all():
            lost = (*lost, DroppedRows(self.live_rows.filter(pa.array(~passed)), part))
        keep[keep] = passed
        return replace(self, keep=keep, lost=lost)

    @property
    def live_rows(self) -> pa.Table:
        """The rows that are some."""
        return self.rows.filter(pa.array(self.keep))


PART = "#part"
PARTITION = "#partition"
"""The partition of a source that a row comes from, where partitions have separate watermarks."""
ROW = "#row"
"""A number by which rows can be followed; it goes along where a source has it."""


def _make_frame(rows: pa.Table, watermarks: Watermarks | None = None, last: BatchOutput | None = None) -> LocalFrame:
    return LocalFrame(rows, np.array([True] * rows.num_rows, np.bool_), watermarks or {}, last)


def _scan(plan: ScanPlan, arrivals: Mapping[str, pa.Table]) -> LocalFrame:
    """A source's rows with their columns as ``alias.column``; of a union, with the part each comes from."""
    names = [f"{plan.alias}.{column}" for column in plan.columns]
    collated = _find_collated_columns(plan)
    if plan.parts:
        positions = [[f.name for f in plan.source.fields].index(column) for column in plan.columns]
        parts = [_select_columns(arrivals[part.name], positions, names) for part in plan.parts]
        numbered = (t.append_column(PART, pa.array([n] * t.num_rows, pa.int64())) for n, t in enumerate(parts))
        return _make_frame(with_collated(pa.concat_tables(list(numbered)), collated)).filter(plan.filters)
    source = arrivals[plan.source.name]
    rows = _select_columns(source, [source.column_names.index(column) for column in plan.columns], names)
    frame = _make_frame(with_collated(rows, collated))
    if plan.changes is None:
        return frame.filter(plan.filters)
    signs = np.array(
        [-1 if change == "-" else 1 for change in cast("list[str]", source.column(CHANGE).to_pylist())], np.int64
    )
    if plan.changes == "weights":
        return replace(frame, rows=frame.rows.append_column(WEIGHT, pa.array(signs, pa.int64()))).filter(plan.filters)
    if plan.changes == "versions":
        return replace(frame, rows=frame.rows.append_column(OP, pa.array(signs, pa.int8()))).filter(plan.filters)
    filtered = frame.filter(plan.filters)
    signs = np.where(filtered.keep, signs, -1)
    for name in plan.keys:
        frame = frame.restrict(frame.live_rows.column(name).is_valid().to_numpy())
    rows = frame.rows.append_column(OP, pa.array(signs, pa.int8()))
    return replace(frame, rows=rows, lost=(*filtered.lost, *frame.lost))


def _find_collated_columns(plan: ScanPlan) -> list[str]:
    """The columns of a scan with strings of a collation, whose values only Spark can compare; refused without Spark."""
    fields = [
        collated
        for collated in plan.source.fields
        if collated.name in plan.columns and is_collated(collated.type or "")
    ]
    if fields and not has_spark_evaluator():
        raise NeedsSparkError(f"what `{fields[0].name}` is equal to: it is {fields[0].type}")
    return [f"{plan.alias}.{nested.name}" for nested in fields]


def _select_columns(rows: pa.Table, positions: list[int], names: list[str]) -> pa.Table:
    """Some columns of a source by other names, and what its rows are followed by."""
    extra = [rows.column_names.index(name) for name in (ROW, PARTITION) if name in rows.column_names]
    return rows.select([*positions, *extra]).rename_columns([*names, *(rows.column_names[place] for place in extra)])


def _project_view(plan: ViewPlan, frame: LocalFrame) -> LocalFrame:
    """The columns of a view as ``alias.column``, and its watermarks under their outer names."""
    frame = _unfold_windows(plan, frame.filter(plan.where))
    positions = pa.array(np.where(frame.keep, np.cumsum(frame.keep) - 1, 0), mask=~frame.keep)
    columns: dict[str, pa.Array] = {}
    for output, name in zip(plan.outputs, plan.columns, strict=True):
        plain = output.expr.op == "column" and not output.expr.refs[0].path
        whole = (
            frame.rows.column(output.expr.refs[0].column)
            if plain
            else value_of(output.expr, frame.live_rows).take(positions)
        )
        columns[name] = whole
    columns |= {name: frame.rows.column(name) for name in plan.late}
    extra = {
        name: frame.rows.column(name) for name in (PART, WEIGHT, OP, ROW, PARTITION) if name in frame.rows.column_names
    }
    watermarks = {outer: frame.watermarks[inner] for inner, outer in plan.watermarks if inner in frame.watermarks}
    shown = zip(plan.outputs, plan.columns, strict=True)
    collated = [
        name for output, name in shown if collation_columns(frame.rows).intersection(_columns_read(output.expr))
    ]
    rows = with_collated(pa.table({**columns, **extra}), collated)
    return replace(frame, rows=rows, watermarks=watermarks).filter(plan.filters)


def _columns_read(expr: Expr) -> Iterator[str]:
    return (ref.column for ref in expr.references)


def _union(plan: UnionPlan, inputs: list[LocalFrame]) -> LocalFrame:
    """The rows of several inputs as one, each with the number of the input it comes from."""
    parts: list[pa.Table] = []
    for number, (frame, taken) in enumerate(zip(inputs, plan.taken, strict=True)):
        extra = [name for name in (WEIGHT, ROW, PARTITION) if name in frame.rows.column_names]
        part = frame.rows.select([*taken, *extra]).rename_columns([*plan.columns, *extra])
        parts.append(part.append_column(PART, pa.array([number] * part.num_rows, pa.int64())))
    keep = np.concatenate([frame.keep for frame in inputs])
    union_rows = pa.concat_tables([part.cast(parts[0].schema) for part in parts])
    column_pairs = (zip(plan.columns, taken, strict=True) for taken in plan.taken)
    collated = {
        name
        for frame, named in zip(inputs, column_pairs, strict=True)
        for name, column in named
        if column in collation_columns(frame.rows)
    }
    union_rows = with_collated(union_rows, collated)
    lost = tuple(dropped for frame in inputs for dropped in frame.lost)
    return LocalFrame(union_rows, keep, {}, lost=lost).filter(plan.filters)


def _explode(plan: LateralPlan, frame: LocalFrame) -> LocalFrame:
    """Emit a row for each element of its array; a row without elements only carries event times from here on."""
    value = value_of(plan.array, frame.live_rows)
    if not pa.types.is_list(value.type):
        value = pa.nulls(len(value), pa.list_(pa.null()))
    return _unfold(frame, value, f"{plan.alias}.{plan.alias}").filter(plan.filters)


def _unfold(frame: LocalFrame, lists: pa.ListArray, name: str) -> LocalFrame:
    """The frame with a row for each element of the list of a live row, which is a column of that name."""
    lengths, starts = (np.zeros(frame.rows.num_rows, np.int64) for _ in range(2))
    lengths[frame.keep] = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    starts[frame.keep] = lists.offsets.to_numpy()[:-1]
    counts = np.maximum(lengths, 1)
    places = np.repeat(np.arange(frame.rows.num_rows, dtype=np.int64), counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    some = lengths[places] > 0
    elements = lists.values.take(pa.array(starts[places] + within, pa.int64(), mask=~some))
    keep = frame.keep[places]
    rows = frame.rows.take(pa.array(places, pa.int64())).append_column(name, elements)
    return replace(frame, rows=rows, keep=keep).restrict(some[keep])


def _unfold_windows(plan: ViewPlan, frame: LocalFrame) -> LocalFrame:
    """The frame with a row for each window of a row, if the columns of a view are windows."""
    for output in plan.outputs:
        call = find_window(structure_of(output.expr))
        if call is not None:
            return _unfold(frame, windows_of_rows(call, frame.live_rows), WINDOW)
    return frame


class LocalQuery:
    """A query that keeps its state in the process from batch to batch; its kernels in so many ``shards``."""

    def __init__(self, plan: QueryPlan, on: Literal["reference", "kernel"], shards: int = 1) -> None:
        self.plan = plan
        self.on = on
        self.shards = shards
        self.stores: dict[tuple[int, int], MemoryStore] = {}
        self.definitions: dict[int, Definition] = {}
        self.run = 0

    def restart(self) -> None:
        """Drop everything but the stored state. The definition holds nothing else."""
        self.run += 1
        self.stores = {key: store.restart() for key, store in self.stores.items()}

    def step(self, arrivals: Mapping[str, pa.Table], watermarks: Watermarks) -> BatchOutput:
        """Process one batch: the rows that arrived per source, and external watermarks per ``alias.column``."""
        return self.project(self.relation(self.plan.relation, arrivals, watermarks).filter(self.plan.where))

    def project(self, frame: LocalFrame) -> BatchOutput:
        """The result of the query for the rows of its relation."""
        rows = frame.live_rows
        outputs = {output.name: value_of(output.expr, rows) for output in self.plan.outputs}
        table = pa.table(outputs) if outputs else rows.select([])
        last = frame.last or BatchOutput(table, {})
        if self.plan.is_changelog:
            table = to_signed_rows(table.append_column(WEIGHT, rows.column(WEIGHT)))
        return replace(last, rows=table)

    def relation(self, plan: RelationPlan, arrivals: Mapping[str, pa.Table], watermarks: Watermarks) -> LocalFrame:
        """The rows that a relation gives in a batch."""
        match plan:
            case ScanPlan():
                return self.scan(plan, arrivals)
            case ViewPlan():
                return _project_view(plan, self.relation(plan.input, arrivals, watermarks))
            case UnionPlan():
                return _union(plan, [self.relation(child, arrivals, watermarks) for child in plan.inputs])
            case StaticJoinPlan():
                raise NeedsSparkError("a join with a table that never changes")
            case LateralPlan():
                return _explode(plan, self.relation(plan.input, arrivals, watermarks))
            case JoinPlan():
                return self.join(
                    plan, [self.relation(port.input, arrivals, watermarks) for port in plan.ports], watermarks
                )

    def scan(self, plan: ScanPlan, arrivals: Mapping[str, pa.Table]) -> LocalFrame:
        """The rows of a source."""
        return _scan(plan, arrivals)

    def join(self, plan: JoinPlan, inputs: list[LocalFrame], watermarks: Watermarks) -> LocalFrame:
        """The rows that a join gives of those of its ports."""
        folded = {name: watermarks[name] for name in (NOW, LOADED) if name in watermarks}
        parts = [lag for port in plan.ports for lag in port.lags if lag.part is not None and lag.source in watermarks]
        folded |= {lag.column: watermarks[lag.source] for lag in parts}
        tables: dict[int, pa.Table] = {}
        for number, (port, side) in enumerate(zip(plan.ports, inputs, strict=True)):
            folded |= side.watermarks
            for lag in port.lags:
                folded |= watermarks_of(lag, side.rows, watermarks)
            tables[number] = prepare_port(port, side)
        tables = _with_equal_keys(plan, tables)
        _check_condition(plan, tables)
        try:
            stepped = self.step_join(plan, tables, folded)
        except pa.ArrowNotImplementedError as error:
            raise NeedsSparkError(str(error)) from error
        inner = (side.last.late for side in inputs if side.last is not None)
        stepped = replace(stepped, late=(*(late for of_side in inner for late in of_side), *stepped.late))
        collated = frozenset[str]().union(*(collation_columns(side.rows) for side in inputs))
        rows = with_collated(stepped.rows, collated.intersection(stepped.rows.column_names))
        return _make_frame(rows, stepped.watermarks, stepped)

    def step_join(self, plan: JoinPlan, tables: dict[int, pa.Table], watermarks: Watermarks) -> BatchOutput:
        """The output of a join for the rows and watermarks of its ports."""
        operator = plan.operator
        watermarks = {**watermarks, RUN: self.run} if operator.needs_run else watermarks
        if self.on == "kernel":
            shards = 1 if plan.ports[0].route == "one" else self.shards
            stores = [self.stores.setdefault((id(plan), shard), MemoryStore()) for shard in range(shards)]
            emission = step_in_shards(operator, plan.ports, stores, tables, watermarks)
        else:
            definition = self.definitions.setdefault(id(plan), definition_of(operator))
            emission = step_by_definition(definition, operator, tables, watermarks)
        schema = output_schema(operator, tables)
        # A padded column takes the type it has elsewhere.
        joined = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in emission.rows)])
        rows = _where(complete_rows(plan, joined), plan.post_filters)
        late = tuple((port, table.select(list(operator.late_columns[port]))) for port, table in emission.late)
        return BatchOutput(rows, emission.report.watermarks, late, emission.report, emission.unmatched)


def _with_equal_keys(plan: JoinPlan, tables: dict[int, pa.Table]) -> dict[int, pa.Table]:
    """The rows of both sides with keys of equal types; those that are not both integers are not compared here."""
    sides: list[tuple[str, ...]] = [
        getattr(getattr(plan.operator, name, None), "keys", ()) for name in ("left", "right")
    ]
    for mine, theirs in zip(*sides, strict=True) if len(plan.ports) == len(sides) else ():
        types = [tables[port].column(name).type for port, name in enumerate((mine, theirs))]
        if types[0] != types[1] and not all(pa.types.is_integer(type_) for type_ in types):
            raise NeedsSparkError(f"the equality of {mine} ({types[0]}) and {theirs} ({types[1]})")
        if types[0] != types[1]:
            wider = max(types, key=lambda type_: type_.bit_width)
            for place, name in enumerate((mine, theirs)):
                tables = tables | {place: _widen_key(plan.ports[place], tables[place], name, wider)}
    return tables


def _check_condition(plan: JoinPlan, tables: Mapping[int, pa.Table]) -> None:
    """Raise `NeedsSparkError` for comparisons across the sides with casts that only Spark makes."""
    condition: Condition | None = getattr(plan.operator, "condition", None)
    if condition is not None:
        kinds = {field.name: field.type for table in tables.values() for field in table.schema}
        check_types(condition, kinds.__getitem__)


def _widen_key(port: PortPlan, table: pa.Table, key: str, wider: pa.DataType) -> pa.Table:
    """A table with a key in a wider type, and the code of that."""
    columns = {name: table.column(name) for name in table.column_names}
    widened = pa.table({**columns, key: columns[key].cast(wider)})
    if not port.hashed:
        return widened
    return widened.set_column(
        widened.column_names.index(str(port.code)), str(port.code), pa.array(key_codes(widened, port.hashed))
    )


def watermarks_of(lag: WatermarkLag, rows: pa.Table, outside: Watermarks) -> dict[str, int]:
    """The watermark of a column: its latest time less the lag, or the external one if that is later.

    Where partitions have separate watermarks, one of each.
    """
    if PARTITION in rows.column_names and lag.part is None:
        watermarks = {lag.watermark: outside[lag.source]} if lag.source in outside else {}
        for name in pc.unique(rows.column(PARTITION)).to_pylist():
            some = rows.filter(pc.equal(rows.column(PARTITION), name)).drop_columns([PARTITION])
            watermarks |= {
                f"{lag.watermark}{OF_PARTITION}{name}": watermark for watermark in watermarks_of(lag, some, {}).values()
            }
        return watermarks
    watermarks = [outside[lag.source]] if lag.source in outside and lag.part is None else []
    if lag.part is not None:
        rows = rows.filter(pc.equal(rows.column(PART), lag.part))
    times = rows.column(lag.column).drop_null().combine_chunks()
    if len(times):
        watermarks.append(watermark_behind(int(as_int64(times).max()), lag.lag))
    return {lag.watermark: max(watermarks)} if watermarks else {}


def prepare_port(port: PortPlan, frame: LocalFrame) -> pa.Table:
    """Build the table that goes through the exchange: the live rows, with the columns that the join needs."""
    position = () if port.position is None else (port.position,)
    for name in position:
        frame = replace(frame, rows=frame.rows.append_column(name, pa.array(np.arange(frame.rows.num_rows))))
    rows = frame.live_rows
    extra = [name for name in (ROW,) if name in rows.column_names]
    table = rows.select([*port.columns, *position, *extra])
    for computed in port.computed:
        table = table.append_column(computed.name, value_of(computed.expr, rows, computed.template))
    if port.dead is not None:
        alive = np.ones(rows.num_rows, np.bool_)
        for predicate in port.predicates:
            alive &= is_true(predicate, rows)
        table = table.append_column(port.dead, pa.array(~alive))
    if port.hashed:
        table = table.append_column(str(port.code), pa.array(key_codes(table, port.hashed)))
    return table


def _where(rows: pa.Table, parts: tuple[Expr, ...]) -> pa.Table:
    for part in parts:
        rows = rows.filter(pa.array(is_true(part, rows)))
    return rows


@dataclass(frozen=True)
class Batch:
    """The input of one batch: rows per source, and external watermarks per ``alias.column``, with the clock.

    ``number``: the number of the batch; None: the next one. ``restart``: the query was restarted before it.
    """

    rows: Mapping[str, pa.Table]
    watermarks: Watermarks = field(default_factory=dict[str, int])
    restart: bool = False
    number: int | None = None


WHERE = "#where"
"""The column of a source's rows that says where each was read."""
