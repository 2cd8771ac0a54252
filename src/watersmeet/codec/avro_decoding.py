"""Decodes Avro rows, one field of all rows at a time.

The position of a field is only known after those before it, so fields are read in the order of the writer's schema,
including unselected ones. The reader's schema has the aliases of selected fields, and the defaults of fields that the
writer did not have; values become the declared type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.codec.avro_schema import AvroSchema, AvroType, field_of, split_null
from watersmeet.codec.avro_values import default_of, make_converter, value_reader
from watersmeet.codec.binary import Reader, Rows, SchemaError, reader_of, spark_type_name

Plan = Callable[[Reader, Rows], Any]
"""Reads a value of each of some rows into an array; None if the field is not selected."""

_DEEPEST = 100
"""How often a type may be within itself, as in Protobuf: a deeper value would exceed the stack of Python."""


@dataclass(frozen=True)
class DecodedRecords:
    """Values of rows as a struct of columns, and which of the rows have bytes that do not fit the schema."""

    values: Any
    bad: Any


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes the rows of a writer: its schema, the reader's if there is one, and the requested Arrow type.

    The constructor raises a `SchemaError` for a type that cannot be read.
    """

    writer: AvroSchema
    wanted: Any
    reader: AvroSchema | None = None

    def __post_init__(self) -> None:
        if self.writer.resolve(self.writer.type).kind != "record":
            raise SchemaError("it is not a record, so it has no columns")
        self.plan()

    def rows(self, values: Any, skip: int = 0) -> DecodedRecords:
        """Rows out of their bytes, behind the first ``skip`` of each."""
        reader = reader_of(values, skip)
        rows = np.arange(len(values))
        structs = self.plan()(reader, rows)
        reader.fail(rows[reader.at != reader.ends])
        return DecodedRecords(structs, reader.bad)

    def plan(self) -> Plan:
        """The function that decodes a row."""
        return self._plan_for(self.writer.type, self.wanted, None if self.reader is None else self.reader.type)

    def _plan_for(self, type_: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        """Build the decoder of values into an Arrow type, or one that skips them; ``like``: the reader's type."""
        whole = self.writer.resolve(type_)
        if wanted is None and type_.kind == "ref":
            # A type may be within itself: how it is gone over is looked up only where there are rows that have it.
            return lambda reader, rows: self._skip_nested(whole, reader, rows) if len(rows) else None
        match whole.kind:
            case "record":
                return self._record(whole, wanted, self._reader_type(like, "record"))
            case "union":
                return self._union(whole, wanted, like)
            case "array" | "map":
                return self._collection(whole, wanted, self._reader_type(like, whole.kind))
            case _:
                read = value_reader(whole)
                if wanted is None:
                    return lambda reader, rows: read(reader, rows, False)
                meaning = make_converter(whole, wanted)
                return lambda reader, rows: meaning(reader, rows, read(reader, rows, True))

    def _skip_nested(self, type_: AvroType, reader: Reader, rows: Rows) -> None:
        """Go over values of a type that may be within itself; rows that nest it too deeply are bad."""
        if reader.depth == _DEEPEST:
            reader.fail(rows)
            return
        reader.depth += 1
        self._plan_for(type_, None, None)(reader, rows)
        reader.depth -= 1

    def _reader_type(self, like: AvroType | None, kind: str) -> AvroType | None:
        """The type in the reader's schema without NULL, if it is of that kind."""
        if like is None or self.reader is None:
            return None
        whole = self.reader.resolve(split_null(self.reader.resolve(like))[0])
        return whole if whole.kind == kind else None

    def _record(self, record: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        if wanted is not None and not pa.types.is_struct(wanted):
            raise SchemaError(f"it is a record, not {spark_type_name(wanted)}")
        requested: dict[str, tuple[str, Any, AvroType | None]] = {}
        defaults: dict[str, Any] = {}
        for column in wanted or ():
            reader_field = None if like is None else field_of(like, column.name)
            writer_field = field_of(record, column.name, () if reader_field is None else reader_field.aliases)
            if writer_field is not None:
                requested[writer_field.name] = (
                    column.name,
                    column.type,
                    None if reader_field is None else reader_field.type,
                )
            elif reader_field is not None and self.reader is not None:
                defaults[column.name] = default_of(self.reader, reader_field, column.type)
        nobody = ("", None, None)
        plans = [(f.name, self._field_plan(f.name, f.type, *requested.get(f.name, nobody)[1:])) for f in record.fields]

        def read(reader: Reader, rows: Rows) -> Any:
            values = {name: plan(reader, rows) for name, plan in plans}
            if wanted is None:
                return None
            columns = {column: values[name] for name, (column, _, _) in requested.items()}
            columns |= {name: pa.repeat(value, len(rows)) for name, value in defaults.items()}
            arrays = [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in wanted]
            return pa.StructArray.from_arrays(arrays, fields=[field.with_nullable(True) for field in wanted])

        return read

    def _field_plan(self, name: str, type_: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        try:
            return self._plan_for(type_, wanted, like)
        except SchemaError as error:
            raise SchemaError(f"`{name}`: {error}") from error

    def _union(self, union: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        if wanted is not None and split_null(union)[0].kind == "union":
            raise SchemaError("it is one of several types, which a column cannot be")
        plans = [None if branch.kind == "null" else self._plan_for(branch, wanted, like) for branch in union.inner]

        def read(reader: Reader, rows: Rows) -> Any:
            branches = reader.longs(rows)
            reader.fail(rows[(branches < 0) | (branches >= len(plans))])
            values = None if wanted is None else pa.nulls(len(rows), wanted)
            for number, plan in enumerate(plans):
                has = branches == number
                branch_values = None if plan is None else plan(reader, rows[has])
                if branch_values is not None and wanted is not None:
                    # The one branch that is not NULL.
                    values = branch_values.take(pa.array(np.cumsum(has) - 1, mask=~has))
            return values

        return read

    def _collection(self, type_: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        """Elements of arrays and maps: blocks of them, each after its number, until one has none."""
        is_map = type_.kind == "map"
        if wanted is not None and not (pa.types.is_map(wanted) if is_map else pa.types.is_list(wanted)):
            raise SchemaError(f"its kind is {type_.kind}, not {spark_type_name(wanted)}")
        types: list[Any] = [None, None] if is_map else [None]
        if wanted is not None:
            types = [wanted.key_type, wanted.item_type] if is_map else [wanted.value_type]
        plans = [self._plan_for(type_.inner[0], types[-1], None if like is None else like.inner[0])]
        if is_map:
            plans.insert(0, self._plan_for(AvroType("string"), types[0], None))

        def read(reader: Reader, rows: Rows) -> Any:
            owners: list[Any] = []
            parts: list[list[Any]] = []
            blocks = np.arange(len(rows))
            while len(blocks):
                counts = _block(reader, rows[blocks])
                blocks, counts = blocks[counts != 0], counts[counts != 0]
                for turn in range(counts.max(initial=0)):
                    having = blocks[counts > turn]
                    parts.append([plan(reader, rows[having]) for plan in plans])
                    owners.append(having)
            return None if wanted is None else _lists(wanted, len(rows), owners, parts, types)

        return read


def _block(reader: Reader, rows: Rows) -> Any:
    """The number of elements in the next block of each row; a negative number means that the size follows."""
    counts = reader.longs(rows)
    sized = counts < 0
    if sized.any():
        reader.longs(rows[sized])
        counts = np.abs(counts)
    # An element has a byte at least, but for those that are nothing.
    broken = (counts < 0) | (counts > reader.ends[rows] - reader.at[rows])
    reader.fail(rows[broken])
    return np.where(broken, 0, counts)


def _lists(wanted: Any, rows: int, owners: list[Any], parts: list[list[Any]], types: list[Any]) -> Any:
    """Lists or maps out of elements, which were read one of each row at a time."""
    owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
    order = pa.array(np.argsort(owner, kind="stable"))
    counts = np.bincount(owner, minlength=rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    flat = [
        pa.concat_arrays([part[n] for part in parts]).take(order) if parts else pa.array([], type_)
        for n, type_ in enumerate(types)
    ]
    if pa.types.is_map(wanted):
        return pa.MapArray.from_arrays(offsets, *flat).cast(wanted)
    return pa.ListArray.from_arrays(offsets, flat[0]).cast(wanted)
