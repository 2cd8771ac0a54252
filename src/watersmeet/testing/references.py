"""The definitions of all join families behind one face: rows as Python values in, an emission out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import pyarrow as pa

from watersmeet.joins.asof.definition import AsofReference
from watersmeet.joins.asof.operator import AsofJoin
from watersmeet.joins.changelog.definition import Reference as ChangelogReference
from watersmeet.joins.changelog.nested import NestedJoin
from watersmeet.joins.changelog.operator import ChangelogJoin
from watersmeet.joins.core.operator import Emission, JoinOperator, Marks, Report
from watersmeet.joins.group.definition import GroupReference
from watersmeet.joins.group.operator import GroupBy
from watersmeet.joins.interval.definition import Reference
from watersmeet.joins.interval.operator import IntervalJoin
from watersmeet.joins.latest.definition import LatestReference
from watersmeet.joins.latest.operator import Latest
from watersmeet.joins.lookup.definition import LookupReference
from watersmeet.joins.lookup.operator import LookupJoin
from watersmeet.joins.sync.definition import SyncReference
from watersmeet.joins.sync.operator import SyncJoin
from watersmeet.joins.window.definition import WindowReference
from watersmeet.joins.window.operator import WindowJoin
from watersmeet.testing.rows import emitted_schema

Row = Mapping[str, Any]


class Definition(Protocol):
    """A join in progress, as its family's definition has it."""

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> Any:
        """One batch: the rows that arrived per port, and the marks that came with them."""
        ...


def definition_of(operator: JoinOperator) -> Definition:
    """The definition that says what an operator must give."""
    match operator:
        case WindowJoin():
            return WindowReference(operator)
        case SyncJoin():
            return SyncReference(operator)
        case AsofJoin():
            return AsofReference(operator)
        case IntervalJoin():
            return Reference(operator)
        case LookupJoin():
            return LookupReference(operator)
        case GroupBy():
            return GroupReference(operator)
        case ChangelogJoin() | NestedJoin():
            return _Tables(ChangelogReference(operator))
        case Latest():
            return _Tables(LatestReference(operator))
        case _:
            raise TypeError(f"no definition of {type(operator).__name__}")


class _Tables:
    """The definition of an operator over tables, which knows nothing of marks."""

    def __init__(self, reference: ChangelogReference | LatestReference) -> None:
        self.reference = reference

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> Any:
        """One batch: the changes per port."""
        return self.reference.step({port: list(rows) for port, rows in arrivals.items()})


def step_by_definition(
    definition: Definition, operator: JoinOperator, tables: Mapping[int, pa.Table], marks: Marks
) -> Emission:
    """What one batch gives by the definition, as an operator would hand it out."""
    arrivals = {port: table.to_pylist() for port, table in tables.items() if table.num_rows}
    step = definition.step(arrivals, marks)
    if isinstance(operator, WindowJoin):
        report = Report(matched=step.matched, state=step.state, dropped=step.dropped, partitions=step.partitions)
        unmatched = tuple(
            (port, _alone([row for p, row in step.unmatched if p == port], side.unmatched, tables[port]))
            for port, side in enumerate(operator.sides)
        )
        return Emission((_joined(step.rows, operator, tables),), (), report, unmatched)
    if isinstance(step, Counter):
        rows = [(*row, number) for row, number in cast("Counter[tuple[Any, ...]]", step).items()]
        return Emission((_joined(rows, operator, tables),))
    late = tuple(
        (port, pa.Table.from_pylist([dict(row) for p, row in step.late if p == port], table.schema))
        for port, table in tables.items()
    )
    report = Report(state=() if isinstance(operator, LookupJoin) else step.state, watermarks=step.watermarks)
    return Emission((_joined(step.rows, operator, tables),), late, report)


def _joined(rows: Sequence[Sequence[Any]], operator: JoinOperator, tables: Mapping[int, pa.Table]) -> pa.Table:
    schema = emitted_schema(operator, tables)
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _alone(rows: Sequence[Sequence[Any]], columns: Sequence[str], table: pa.Table) -> pa.Table:
    """Rows that died alone, with the columns of their side."""
    values = [pa.array([row[i] for row in rows], table.schema.field(name).type) for i, name in enumerate(columns)]
    return pa.Table.from_arrays(values, names=list(columns))
