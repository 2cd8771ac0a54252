"""The definitions of all join families behind one face: rows as Python values in, an emission out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import pyarrow as pa

from watersmeet.joins.core.operator import Emission, Family, Marks, Report
from watersmeet.joins.core.python_values import arrow_values, python_rows
from watersmeet.local.rows import emitted_schema

Row = Mapping[str, Any]

_TOLD = ("state", "partitions", "watermarks")
"""The numbers that a definition may tell as an operator does."""


class Definition(Protocol):
    """A join in progress, as its family's definition has it."""

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> Any:
        """One batch: the rows that arrived per port, and the marks that came with them."""
        ...


def definition_of(operator: Family) -> Definition:
    """The definition that says what an operator must give: ``DEFINITION`` of the module beside it.

    >>> from watersmeet.joins.core.port import Port
    >>> from watersmeet.joins.latest.operator import Latest
    >>> type(definition_of(Latest(Port(("k",), (), ("k",))))).__name__
    'LatestReference'
    """
    folder = type(operator).__module__.rpartition(".")[0]
    return import_module(f"{folder}.definition").DEFINITION(operator)


def step_by_definition(
    definition: Definition, operator: Family, tables: Mapping[int, pa.Table], marks: Marks
) -> Emission:
    """What one batch gives by the definition, as an operator would hand it out."""
    arrivals = {port: python_rows(table) for port, table in tables.items() if table.num_rows}
    step = definition.step(arrivals, marks)
    if isinstance(step, Counter):
        rows = [(*row, number) for row, number in cast("Counter[tuple[Any, ...]]", step).items()]
        return Emission((joined_table(rows, operator, tables),))
    late = tuple(
        (port, _late_table([row for p, row in step.late if p == port], table.schema)) for port, table in tables.items()
    )
    apart: Sequence[tuple[int, Any]] = getattr(step, "unmatched", ())
    unmatched = tuple(
        (port, _alone([row for p, row in apart if p == port], operator.sides[port].unmatched, table))
        for port, table in tables.items()
    )
    told = {name: getattr(step, name) for name in _TOLD if hasattr(step, name)}
    return Emission((joined_table(step.rows, operator, tables),), late, Report(**told), unmatched)


def joined_table(rows: Sequence[Sequence[Any]], operator: Family, tables: Mapping[int, pa.Table]) -> pa.Table:
    """Rows of a join as it hands them out."""
    schema = emitted_schema(operator, tables)
    columns = [arrow_values([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _alone(rows: Sequence[Sequence[Any]], columns: Sequence[str], table: pa.Table) -> pa.Table:
    """Rows that died alone, with the columns of their side."""
    values = [arrow_values([row[i] for row in rows], table.schema.field(name).type) for i, name in enumerate(columns)]
    return pa.Table.from_arrays(values, names=list(columns))


def _late_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    columns = [arrow_values([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
