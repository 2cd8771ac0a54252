"""The definitions of all join families behind one face: rows as Python values in, an emission out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import pyarrow as pa

from watersmeet.local.rows import output_schema
from watersmeet.operators.core.operator import Emission, StepReport, StreamOperator, Watermarks
from watersmeet.operators.core.python_values import arrow_values, python_rows

Row = Mapping[str, Any]

_REPORT_FIELDS = ("state", "partitions", "watermarks")
"""The numbers that a definition may tell as an operator does."""


class Definition(Protocol):
    """A join in progress, as its family's definition has it."""

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> Any:
        """One batch: the rows that arrived per port, and the marks that came with them."""
        ...


def definition_of(operator: StreamOperator) -> Definition:
    """The definition that says what an operator must give: ``DEFINITION`` of the module beside it.

    >>> from watersmeet.operators.core.port import Port
    >>> from watersmeet.operators.latest.kernel import LatestOperator
    >>> type(definition_of(LatestOperator(Port(("k",), (), ("k",))))).__name__
    'LatestReference'
    """
    folder = type(operator).__module__.rpartition(".")[0]
    return import_module(f"{folder}.definition").DEFINITION(operator)


def step_by_definition(
    definition: Definition, operator: StreamOperator, tables: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """What one batch gives by the definition, as an operator would hand it out."""
    arrivals = {port: python_rows(table) for port, table in tables.items() if table.num_rows}
    step = definition.step(arrivals, watermarks)
    if isinstance(step, Counter):
        rows = [(*row, number) for row, number in cast("Counter[tuple[Any, ...]]", step).items()]
        return Emission((output_table(rows, operator, tables),))
    late = tuple(
        (port, _late_table([row for p, row in step.late if p == port], table.schema)) for port, table in tables.items()
    )
    unmatched_rows: Sequence[tuple[int, Any]] = getattr(step, "unmatched", ())
    unmatched = tuple(
        (
            port,
            _make_unmatched_table(
                [row for p, row in unmatched_rows if p == port], operator.sides[port].unmatched, table
            ),
        )
        for port, table in tables.items()
    )
    report_values = {name: getattr(step, name) for name in _REPORT_FIELDS if hasattr(step, name)}
    return Emission((output_table(step.rows, operator, tables),), late, StepReport(**report_values), unmatched)


def output_table(rows: Sequence[Sequence[Any]], operator: StreamOperator, tables: Mapping[int, pa.Table]) -> pa.Table:
    """Rows of a join as it hands them out."""
    schema = output_schema(operator, tables)
    columns = [arrow_values([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _make_unmatched_table(rows: Sequence[Sequence[Any]], columns: Sequence[str], table: pa.Table) -> pa.Table:
    """Rows that died alone, with the columns of their side."""
    values = [arrow_values([row[i] for row in rows], table.schema.field(name).type) for i, name in enumerate(columns)]
    return pa.Table.from_arrays(values, names=list(columns))


def _late_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    columns = [arrow_values([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
