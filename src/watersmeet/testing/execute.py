"""Runs a case's batches through a join in the process: on its definition, or on its kernel.

`run_join` takes the query already compiled, as an `Executable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, Protocol

import pyarrow as pa

from watersmeet.catalog import Field
from watersmeet.errors import refuse
from watersmeet.joins.interval import IntervalJoin
from watersmeet.joins.operator import END_OF_INPUT, Marks
from watersmeet.joins.reference import Reference, event_time
from watersmeet.schema import arrow_type
from watersmeet.testing.case import Case, CaseBatch
from watersmeet.testing.cells import arrow_table, cell
from watersmeet.testing.outcome import Outcome, compare
from watersmeet.testing.store import MemoryStore

Executor = Literal["reference", "kernel", "spark"]
"""Where a case runs: on the definition, on the kernels in the process, or on Spark."""


@dataclass(frozen=True)
class Input:
    """One side of a case's query: a source, what Spark would compute of its rows, and the lag of its watermarks.

    ``prepare`` adds keys, codes and predicates and names the columns as the join does; a time column of the join is
    called ``source.column``. ``lags`` is by that name, in the unit of the event time.
    """

    source: str
    fields: tuple[Field, ...]
    prepare: Callable[[pa.Table], pa.Table]
    lags: Mapping[str, int]


@dataclass(frozen=True)
class Executable:
    """A case's query, compiled. ``project`` makes the rows of the result from joined rows."""

    join: IntervalJoin
    inputs: tuple[Input, Input]
    project: Callable[[pa.Table], pa.Table]


def run_join(case: Case, executable: Executable, on: Literal["reference", "kernel"]) -> list[str]:
    """The differences between what a case expects and what came out, batch by batch; empty if it passed."""
    run: _Run = _OnReference(executable) if on == "reference" else _OnKernel(executable)
    failures: list[str] = []
    batches = list(case.batches)
    if case.end is not None:
        batches.append(CaseBatch(out=case.end, marks={i.source: END_OF_INPUT for i in executable.inputs}))
    for number, batch in enumerate(batches, 1):
        _refuse_unknown(case, batch, executable)
        if batch.restart:
            run.restart()
        tables = {port: _arrived(case, batch, side) for port, side in enumerate(executable.inputs)}
        outcome = run.step({p: t for p, t in tables.items() if t.num_rows}, _marks(case, batch, executable, tables))
        difference = compare(batch, outcome, ordered=case.ordered)
        if difference is not None:
            failures.append(f"batch {number if number <= len(case.batches) else 'end'}, {difference}")
    return failures


class _Run(Protocol):
    def restart(self) -> None: ...
    def step(self, arrivals: Mapping[int, pa.Table], marks: Marks) -> Outcome: ...


class _OnKernel:
    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.store = MemoryStore()

    def restart(self) -> None:
        self.store = self.store.restarted()
        self.executable = replace(self.executable, join=replace(self.executable.join))

    def step(self, arrivals: Mapping[int, pa.Table], marks: Marks) -> Outcome:
        emission = self.executable.join.step(self.store, arrivals, marks)
        report = emission.report
        return _outcome(self.executable, emission.rows, [t for _, t in emission.late], report.state, report.watermarks)


class _OnReference:
    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.reference = Reference(executable.join)

    def restart(self) -> None:
        """The definition knows no restart: what it holds is the state."""

    def step(self, arrivals: Mapping[int, pa.Table], marks: Marks) -> Outcome:
        join = self.executable.join
        step = self.reference.step({port: table.to_pylist() for port, table in arrivals.items()}, marks)
        schemas = [_schema(side) for side in self.executable.inputs]
        kinds = [schemas[0].field(n).type for n in join.left.columns] + [
            schemas[1].field(n).type for n in join.right.columns
        ]
        names = [*join.left.columns, *join.right.columns]
        columns = [[row[i] for row in step.rows] for i in range(len(names))]
        rows = pa.Table.from_arrays([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names=names)
        late = [
            pa.Table.from_pylist([dict(row) for port, row in step.late if port == p], schema=schemas[p]) for p in (0, 1)
        ]
        return _outcome(self.executable, [rows], late, step.state, step.watermarks)


def _schema(side: Input) -> Any:
    return side.prepare(arrow_table(side.fields, [])).schema


def _outcome(
    executable: Executable, rows: Sequence[pa.Table], late: Sequence[pa.Table], state: tuple[int, int], marks: Marks
) -> Outcome:
    inputs = executable.inputs
    shown = [
        table.select([name for name in (f"{side.source}.{f.name}" for f in side.fields) if name in table.column_names])
        for table, side in _with_side(late, inputs)
    ]
    kinds = {name: _time_type(executable, name) for name in marks}
    return Outcome(
        out=tuple(executable.project(table) for table in rows),
        late=tuple(shown),
        state={side.source: count for side, count in zip(inputs, state, strict=True)},
        watermarks={name: _as_time(mark, kinds[name]) for name, mark in marks.items()},
    )


def _with_side(tables: Sequence[pa.Table], inputs: tuple[Input, Input]) -> list[tuple[pa.Table, Input]]:
    return [
        (table, side)
        for table in tables
        for side in inputs
        if any(name.startswith(f"{side.source}.") for name in table.column_names)
    ]


def _refuse_unknown(case: Case, batch: CaseBatch, executable: Executable) -> None:
    for source in batch.rows:
        if source not in {side.source for side in executable.inputs}:
            raise refuse("WRONG_CASE", path=case.path, reason=f"`in` names `{source}`, which the query does not read")


def _arrived(case: Case, batch: CaseBatch, side: Input) -> pa.Table:
    return side.prepare(arrow_table(side.fields, batch.rows.get(side.source, ()), case.path))


def _marks(case: Case, batch: CaseBatch, executable: Executable, tables: Mapping[int, pa.Table]) -> dict[str, int]:
    """What the batch promises: the latest time per column less its lag, and the marks the case writes."""
    marks: dict[str, int] = {}
    for port, side in enumerate(executable.inputs):
        for column, lag in side.lags.items():
            times = [event_time(value) for value in tables[port].column(column).to_pylist()]
            latest = max((time for time in times if time is not None), default=None)
            if latest is not None:
                marks[column] = latest - lag
    for name, value in batch.marks.items():
        for column in _named(case, name, executable):
            mark = _as_number(case, value, column, executable)
            marks[column] = max(mark, marks.get(column, mark))
    return marks


def _named(case: Case, name: str, executable: Executable) -> list[str]:
    columns = [c for side in executable.inputs for c in side.lags if name in (c, side.source)]
    if not columns:
        raise refuse("WRONG_CASE", path=case.path, reason=f"`marks` names `{name}`, which is no watermarked source")
    return columns


def _as_number(case: Case, value: Any, column: str, executable: Executable) -> int:
    if value == END_OF_INPUT:
        return END_OF_INPUT
    try:
        number = event_time(cell(value, _time_type(executable, column)))
    except ValueError:
        number = None
    if number is None:
        raise refuse("WRONG_CASE", path=case.path, reason=f"{value!r} is not a mark of `{column}`")
    return number


def _time_type(executable: Executable, column: str) -> Any:
    return next(
        arrow_type(f.type) for side in executable.inputs for f in side.fields if f"{side.source}.{f.name}" == column
    )


def _as_time(mark: int, kind: Any) -> int | datetime | date:
    """A mark in the type of its column; the end has no such value and stays a number."""
    if mark == END_OF_INPUT or pa.types.is_integer(kind):
        return mark
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=mark)
    return moment.date() if pa.types.is_date(kind) else moment if kind.tz else moment.replace(tzinfo=None)
