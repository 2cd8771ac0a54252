"""A question about rows: of which source, or of the result, and which values they have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Field, Source
from watersmeet.errors import did_you_mean, refuse
from watersmeet.fates.near import NearKeys
from watersmeet.fates.words import value_in_words
from watersmeet.local.cells import cell
from watersmeet.operators.core.python_values import python_values
from watersmeet.operators.core.rowwise import freeze
from watersmeet.schema import arrow_type


@dataclass(frozen=True)
class Question:
    """Which rows of a source are meant: those with all of these values."""

    source: Source
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return " and ".join(f"{name} {value_in_words(value)}" for name, value in self.values.items())

    def row_mask(self, rows: pa.Table) -> pa.Array:
        """Which rows are meant."""
        mask = pa.array([True] * rows.num_rows, pa.bool_())
        for name, value in self.values.items():
            column = rows.column(name)
            same = column.is_null() if value is None else _equal(column, value)
            mask = pc.and_(mask, pc.fill_null(same, False))
        return mask

    def describe_near_keys(self, tables: Sequence[pa.Table]) -> str | None:
        """What the values of the question are nearly equal to, among the rows of its source."""
        rows_by_key: dict[Any, tuple[Any, ...]] = {}
        for table in tables:
            columns = [python_values(table.column(name)) for name in self.values]
            rows_by_key |= {freeze(row): row for row in zip(*columns, strict=True) if None not in row}
        return (
            NearKeys(rows_by_key, rows_by_key).describe_nearest(freeze(tuple(self.values.values())))
            if None not in self.values.values()
            else None
        )


def question_of(sources: Sequence[Source], name: str, assignments: Sequence[str]) -> Question:
    """The question that was typed: a source, and ``column=value`` for each value; refused if there is no such thing.

    >>> orders = Source("orders", (Field("id", "BIGINT"), Field("item", "STRING")))
    >>> question_of([orders], "Orders", ["id=17"]).values
    {'id': 17}
    """
    source = find_source(sources, name)
    return Question(source, values_of(source.fields, f"in {source.name}", assignments))


def find_source(sources: Sequence[Source], name: str) -> Source:
    """The source of that name; refused if there is none."""
    source = next((candidate for candidate in sources if candidate.name.lower() == name.lower()), None)
    if source is None:
        raise refuse(
            "UNKNOWN_SOURCE", source=name, suggestion=did_you_mean(name, [candidate.name for candidate in sources])
        )
    return source


def convert_values(source: Source, row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row as a program has them, in the types of their columns."""
    fields = {field.name.lower(): field for field in source.fields}
    values: dict[str, Any] = {}
    for name, value in row.items():
        field = fields.get(name.lower())
        if field is None:
            suggestion = did_you_mean(name, [column.name for column in source.fields])
            raise refuse("UNKNOWN_COLUMN", column=name, where=f"in {source.name}", suggestion=suggestion)
        try:
            values[field.name] = cell(value, arrow_type(field.type))
        except ValueError:
            reason, hint = f"it is not a value of `{field.name}`", f"{field.name} is {field.type.upper()}."
            raise refuse("WRONG_QUESTION", given=f"{name}={value}", reason=reason, hint=hint) from None
    return values


def values_of(fields: Sequence[Field], where: str, assignments: Sequence[str]) -> dict[str, Any]:
    """The values that were typed, in the types of their columns."""
    fields_by_name = {field.name: field for field in fields}
    return {
        name: _value(fields_by_name[name], text)
        for name, text in texts_of(list(fields_by_name), where, assignments).items()
    }


def texts_of(names: Sequence[str], where: str, assignments: Sequence[str]) -> dict[str, str]:
    """What was typed, by column; refused if there is no such column, or no value is named."""
    columns = {name.lower(): name for name in names}
    texts: dict[str, str] = {}
    for text in assignments:
        name, is_given, value = text.partition("=")
        if not is_given:
            first = names[0] if names else "column"
            raise refuse("WRONG_QUESTION", given=text, reason="it does not name a value", hint=f"write `{first}=...`.")
        if name.strip().lower() not in columns:
            suggestion = did_you_mean(name.strip(), names)
            raise refuse("UNKNOWN_COLUMN", column=name.strip(), where=where, suggestion=suggestion)
        texts[columns[name.strip().lower()]] = value
    return texts


def _value(field: Field, text: str) -> Any:
    """A text as a value of a column; NULL is none."""
    kind = arrow_type(field.type)
    if text.strip().upper() == "NULL":
        return None
    try:
        return cell(_read(text, kind), kind)
    except (ValueError, InvalidOperation):
        shape = "one of its values as JSON" if pa.types.is_nested(kind) else "one of its values"
        hint = f"{field.name} is {field.type}: write {shape}, or NULL."
        reason = f"`{text}` is not a value of `{field.name}`"
        raise refuse("WRONG_QUESTION", given=f"{field.name}={text}", reason=reason, hint=hint) from None


def _equal(column: pa.ChunkedArray, value: Any) -> Any:
    """Which values equal one; those of structs, lists and maps Arrow does not compare."""
    if pa.types.is_nested(column.type):
        return pa.array([cell_value == value for cell_value in python_values(column)], pa.bool_())
    return pc.equal(column, pa.scalar(value, column.type))


def _read(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_nested(kind):
        return json.loads(text)
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_boolean(kind):
        if text.strip().lower() not in ("true", "false"):
            raise ValueError(text)
        return text.strip().lower() == "true"
    return text
