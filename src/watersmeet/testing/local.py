"""A query in the process, without Spark: the same plan, its joins on their definition or on their kernels.

What Spark would compute of a row (filters, key expressions, the projection) is computed here by the kernel's own
evaluator. An
expression that only Spark can evaluate raises `NeedsSparkError`: such a query is not run here, and nobody may call it
passed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.condition import evaluate, holds
from watersmeet.joins.operator import END_OF_INPUT, NOW, RUN, Marks, Report
from watersmeet.joins.rowwise import freeze
from watersmeet.joins.runs import as_int64
from watersmeet.physical import Computed, JoinPlan, Lag, PortPlan, QueryPlan, RelationPlan, ScanPlan
from watersmeet.physical.condition import plain_condition
from watersmeet.plan.expressions import Expr
from watersmeet.schema import arrow_type
from watersmeet.testing.references import Definition, definition_of, step_by_definition
from watersmeet.testing.rows import NeedsSparkError, completed, emitted_schema
from watersmeet.testing.store import MemoryStore

_CAST = re.compile(r"CAST\(\{\} AS (.+)\)")


@dataclass(frozen=True)
class Stepped:
    """What a relation gave in one batch: its rows, its marks, and of the last join what stands apart, and numbers.

    ``late`` and ``unmatched`` rows come per port, with the columns of their side.
    """

    rows: pa.Table
    marks: Marks
    late: tuple[tuple[int, pa.Table], ...] = ()
    report: Report = field(default_factory=Report)
    unmatched: tuple[tuple[int, pa.Table], ...] = ()


PART = "#part"


def _scanned(plan: ScanPlan, arrivals: Mapping[str, pa.Table]) -> pa.Table:
    """A source's rows with their columns as ``alias.column``; of a union, with the part each comes from."""
    names = [f"{plan.alias}.{column}" for column in plan.columns]
    if not plan.parts:
        return arrivals[plan.source.name].select(list(plan.columns)).rename_columns(names)
    positions = [[f.name for f in plan.source.fields].index(column) for column in plan.columns]
    parts = [arrivals[part.name].select(positions).rename_columns(names) for part in plan.parts]
    return pa.concat_tables(
        [t.append_column(PART, pa.array([n] * t.num_rows, pa.int64())) for n, t in enumerate(parts)]
    )


class LocalQuery:
    """A query that keeps its state in the process from batch to batch."""

    def __init__(self, plan: QueryPlan, on: Literal["reference", "kernel"]) -> None:
        self.plan = plan
        self.on = on
        self.stores: dict[int, MemoryStore] = {}
        self.definitions: dict[int, Definition] = {}
        self.run = 0

    def restart(self) -> None:
        """Keep nothing but what was stored. The definition has nothing else: what it holds is the state."""
        self.run += 1
        self.stores = {key: store.restarted() for key, store in self.stores.items()}

    def step(self, arrivals: Mapping[str, pa.Table], marks: Marks) -> Stepped:
        """One batch: the rows that arrived per source, and marks from outside per ``alias.column``."""
        stepped = self._relation(self.plan.relation, arrivals, marks)
        rows = _where(stepped.rows, self.plan.where)
        columns = [_value(output.expr, rows) for output in self.plan.outputs]
        names = [output.name for output in self.plan.outputs]
        return replace(stepped, rows=pa.Table.from_arrays(columns, names=names))

    def _relation(self, plan: RelationPlan, arrivals: Mapping[str, pa.Table], marks: Marks) -> Stepped:
        if isinstance(plan, ScanPlan):
            return Stepped(_scanned(plan, arrivals), {})
        inputs = [self._relation(port.input, arrivals, marks) for port in plan.ports]
        folded = {NOW: marks[NOW]} if NOW in marks else dict[str, int]()
        ends = {lag.column for port in plan.ports for lag in port.lags if lag.part is not None and lag.column in marks}
        folded |= {column: marks[column] for column in ends}
        tables: dict[int, pa.Table] = {}
        for number, (port, side) in enumerate(zip(plan.ports, inputs, strict=True)):
            folded |= side.marks
            for lag in port.lags:
                folded |= _marks(lag, side.rows, marks)
            tables[number] = _prepared(port, side.rows)
        return self._meet(plan, tables, folded)

    def _meet(self, plan: JoinPlan, tables: dict[int, pa.Table], marks: Marks) -> Stepped:
        operator = plan.operator
        marks = {**marks, RUN: self.run} if operator.needs_run else marks
        if self.on == "kernel":
            some = {port: table for port, table in tables.items() if table.num_rows}
            emission = operator.step(self.stores.setdefault(id(plan), MemoryStore()), some, marks)
        else:
            definition = self.definitions.setdefault(id(plan), definition_of(operator))
            emission = step_by_definition(definition, operator, tables, marks)
        schema = emitted_schema(operator, tables)
        # A padded column takes the type it has elsewhere.
        joined = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in emission.rows)])
        rows = _where(completed(plan, joined, tables), plan.after)
        late = tuple((port, table.select(list(operator.late_columns[port]))) for port, table in emission.late)
        return Stepped(rows, emission.report.watermarks, late, emission.report, emission.unmatched)


def _marks(lag: Lag, rows: pa.Table, outside: Marks) -> dict[str, int]:
    """The mark of a column: its latest time less the lag, or what comes from outside if that is later."""
    found = [outside[lag.column]] if lag.column in outside and lag.part is None else []
    if lag.part is not None:
        rows = rows.filter(pc.equal(rows.column(PART), lag.part))
    times = rows.column(lag.column).drop_null().combine_chunks()
    if len(times):
        found.append(max(-END_OF_INPUT, min(int(as_int64(times).max()) - lag.lag, END_OF_INPUT - 1)))
    return {lag.mark: max(found)} if found else {}


def _prepared(port: PortPlan, rows: pa.Table) -> pa.Table:
    """What goes through the exchange: the rows that WHERE keeps, with the columns that the join needs."""
    filters = port.input.filters if isinstance(port.input, ScanPlan) else ()
    position = () if port.position is None else (port.position,)
    for name in position:
        rows = rows.append_column(name, pa.array(np.arange(rows.num_rows)))
    rows = _where(rows, filters)
    table = rows.select([*port.columns, *position])
    for computed in port.computed:
        table = table.append_column(computed.name, _computed(computed, rows))
    if port.dead is not None:
        alive = np.ones(rows.num_rows, np.bool_)
        for predicate in port.predicates:
            alive &= _holds(predicate, rows)
        table = table.append_column(port.dead, pa.array(~alive))
    if port.hashed:
        keys = zip(*(table.column(name).to_pylist() for name in port.hashed), strict=True)
        codes = [hash(freeze(key)) for key in keys]
        table = table.append_column(str(port.code), pa.array(codes, pa.int64()))
    return table


def _computed(computed: Computed, rows: pa.Table) -> pa.Array:
    value = _value(computed.expr, rows)
    if computed.template == "{}":
        return value
    cast_ = _CAST.fullmatch(computed.template)
    if cast_ is None:
        raise NeedsSparkError(computed.sql())
    return value.cast(arrow_type(cast_[1]))


def _value(expr: Expr, rows: pa.Table) -> pa.Array:
    condition = plain_condition(expr)
    if condition is None:
        raise NeedsSparkError(expr.sql())
    return evaluate(condition, lambda name: _column(rows, name), rows.num_rows)


def _holds(expr: Expr, rows: pa.Table) -> Any:
    condition = plain_condition(expr)
    if condition is None:
        raise NeedsSparkError(expr.sql())
    return holds(condition, lambda name: _column(rows, name), rows.num_rows)


def _where(rows: pa.Table, parts: tuple[Expr, ...]) -> pa.Table:
    for part in parts:
        rows = rows.filter(pa.array(_holds(part, rows)))
    return rows


def _column(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
