"""Decodes JSON objects into columns: those in a plain form, whose values are the same for every reader.

A record is *plain* if it is one flat object of values in the forms below. For these, Arrow's reader gives the values of
Spark's ``from_json``; all other records are left to Spark, one by one. So an odd record never affects its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

LONGEST = 2**20
"""The bytes of the longest record that is plain."""
MOST_COLUMNS = 60
"""Of more columns the pattern of a record becomes too large."""

_CHARACTER = r'[^"\\\x00-\x1f]'
_STRING = f'"{_CHARACTER}*"'
_WHOLE = r"(?:0|-?[1-9][0-9]{{0,{}}})"
_FLOAT = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,20}(?:[eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})"
_NUMBER = f"(?:{_WHOLE.format(17)}|{_FLOAT})"
_DATE = (
    r"(?:(?:1[6-9]|[2-9][0-9])[0-9]{2}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|(?:1[6-9]|[2-9][0-9])(?:0[48]|[2468][048]|[13579][26])-02-29)"
)
_WALL = rf"{_DATE}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?"
_ZONE = r"(?:Z|[-+](?:0[0-9]|1[0-7]):[0-5][0-9])"
_FORMS: Mapping[str, str] = {
    "TINYINT": _WHOLE.format(1), "SMALLINT": _WHOLE.format(3), "INT": _WHOLE.format(8), "BIGINT": _WHOLE.format(17),
    "DOUBLE": _NUMBER, "STRING": _STRING, "BOOLEAN": "(?:true|false)", "DATE": f'"{_DATE}"',
    "TIMESTAMP": f'"{_WALL}{_ZONE}"', "TIMESTAMP_NTZ": f'"{_WALL}"',
}  # fmt: skip
"""By type, the texts whose values are the same in Arrow and in Spark."""
_IN_UTC = {"TIMESTAMP": f'"{_WALL}{_ZONE}?"'}
"""The same in a session in UTC, where a time without a zone is in UTC too."""
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_NAME = re.compile(rf"{_CHARACTER}+")

_reader: Any = pyarrow.json

Mask = npt.NDArray[np.bool_]


def is_plain_type(type_: str) -> bool:
    """Whether some values of a normalised type have a plain form."""
    return type_ in _FORMS or _DECIMAL.fullmatch(type_) is not None


def is_plain_name(name: str) -> bool:
    """Whether a column's name is the text of a key."""
    return name.isascii() and _NAME.fullmatch(name) is not None


def value_pattern(type_: str, *, is_utc: bool) -> str:
    """The regular expression of the plain forms of a type.

    >>> re.fullmatch(value_pattern("DECIMAL(5,2)", is_utc=True), "-123.45") is not None
    True
    """
    decimal = _DECIMAL.fullmatch(type_)
    if decimal is None:
        return {**_FORMS, **(_IN_UTC if is_utc else {})}[type_]
    precision, scale = int(decimal[1]), int(decimal[2])
    before = f"(?:0|[1-9][0-9]{{0,{precision - scale - 1}}})" if precision > scale else "0"
    return f"-?{before}" + (rf"(?:\.[0-9]{{1,{scale}}})?" if scale else "")


def other_keys(names: Sequence[str]) -> str:
    """The regular expression of a key, with its closing quote, other than these names.

    >>> [bool(re.fullmatch(other_keys(["id", "at"]), key)) for key in ('id"', 'i"', 'ids"', 'ta"', 'at"')]
    [False, True, True, True, False]
    """
    behind: dict[str, list[str]] = {}
    for name in names:
        if name:
            behind.setdefault(name[0], []).append(name[1:])
    first = "".join(map(re.escape, behind))
    parts = [f'{_CHARACTER[:-1]}{first}]{_CHARACTER}*"'] + ([] if "" in names else ['"'])
    return f"(?:{'|'.join([*parts, *(re.escape(c) + other_keys(rest) for c, rest in behind.items())])})"


@dataclass(frozen=True)
class JsonColumns:
    """Decodes the plain ones of records.

    - ``types``: the normalised types of all declared columns, by name
    - ``schema``: the columns that are decoded, with their types in Spark's workers
    - ``required``: those of them that a plain record has
    - ``is_utc``: the session is in UTC
    """

    types: Mapping[str, str]
    schema: pa.Schema
    required: frozenset[str] = frozenset()
    is_utc: bool = False

    @cached_property
    def pattern(self) -> str:
        """The regular expression of a plain record."""
        values = {name: value_pattern(type_, is_utc=self.is_utc) for name, type_ in self.types.items()}
        declared = [f'"{re.escape(name)}": ?(?:{form}|null)' for name, form in values.items()]
        other = f'"{other_keys(list(self.types))}: ?(?:{_STRING}|{_NUMBER}|true|false|null)'
        member = f"(?:{'|'.join([*declared, other])})"
        return rf"\A\{{{member}(?:, ?{member})*\}}\z"

    def can_decode(self) -> bool:
        """Whether all columns have plain forms and the pattern is not too large."""
        if len(self.types) > MOST_COLUMNS or not all(map(is_plain_name, self.types)):
            return False
        try:
            self.split(pa.array([b'{"?":0}'], pa.binary()))
        except pa.ArrowException:
            return False
        return True

    def split(self, values: Any) -> tuple[pa.RecordBatch, Mask]:
        """The rows of the plain ones of some records, and which they are."""
        is_plain = self._plain_texts(values)
        plain = values if is_plain.all() else values.filter(pa.array(is_plain))
        rows, is_read = self._decode(plain) if len(plain) else (self._empty, np.zeros(0, np.bool_))
        is_valid = self._valid_rows(rows)
        if not is_valid.all():
            rows = rows.filter(pa.array(is_valid))
            is_read[is_read] = is_valid
        is_plain[is_plain] = is_read
        return rows, is_plain

    def _plain_texts(self, values: Any) -> Mask:
        """The values that match the pattern and are valid UTF-8."""
        is_short = pc.less_equal(pc.binary_length(values), LONGEST)
        matches = pc.and_(is_short, pc.match_substring_regex(values, self.pattern))
        is_plain = np.array(pc.fill_null(matches, False), np.bool_)
        try:
            values.cast(pa.large_string() if pa.types.is_large_binary(values.type) else pa.string())
        except pa.ArrowInvalid:
            for place in np.flatnonzero(is_plain).tolist():
                is_plain[place] = _is_utf8(values[place].as_py())
        return is_plain

    def _decode(self, values: Any) -> tuple[pa.RecordBatch, Mask]:
        """The rows of values that match the pattern; values that the reader refuses, such as duplicates, have none."""
        try:
            rows = self._read(values)
            if rows.num_rows == len(values):
                return rows, np.ones(len(values), np.bool_)
        except pa.ArrowInvalid:
            pass
        if len(values) == 1:
            return self._empty, np.zeros(1, np.bool_)
        half = len(values) // 2
        parts = [self._decode(values[:half]), self._decode(values[half:])]
        rows = pa.Table.from_batches([part for part, _ in parts]).combine_chunks()
        batches = rows.to_batches()
        return batches[0] if batches else self._empty, np.concatenate([is_read for _, is_read in parts])

    def _read(self, values: Any) -> pa.RecordBatch:
        text = _bytes_of(values)
        table = _reader.read_json(
            pa.BufferReader(text),
            # One block: a record that went over the end of one would be looked for line by line.
            read_options=_reader.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=_reader.ParseOptions(explicit_schema=self._read_schema, unexpected_field_behavior="ignore"),
        )
        columns = [table.column(field.name).combine_chunks().cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _valid_rows(self, rows: pa.RecordBatch) -> Mask:
        """Rows with all required columns, and with one at least."""
        number: int = rows.num_rows
        if not any(column.null_count for column in rows.columns):
            return np.ones(number, np.bool_)
        present = {name: np.asarray(rows.column(name).is_valid()) for name in rows.schema.names}
        has_any: Mask = reduce(np.logical_or, present.values())
        return reduce(np.logical_and, (present[name] for name in self.required), has_any)

    @cached_property
    def _read_schema(self) -> pa.Schema:
        return pa.schema([(field.name, _read_type(field.type)) for field in self.schema])

    @property
    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)


def _read_type(kind: Any) -> Any:
    """The type as which the reader of JSON takes values of a type: it has no text of dates."""
    if pa.types.is_date(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return kind


def _bytes_of(values: Any) -> pa.Buffer:
    """The bytes of values without NULLs, one after the other."""
    width: type[np.signedinteger[Any]] = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, width)
    start, stop = int(places[values.offset]), int(places[values.offset + len(values)])
    return data.slice(start, stop - start)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
