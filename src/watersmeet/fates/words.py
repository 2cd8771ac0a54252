"""Rows, times and conditions in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import pyarrow as pa

from watersmeet.duration import format_duration
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, columns_of
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.python_values import DistantTime
from watersmeet.operators.core.rowwise import Row
from watersmeet.plan.expressions import Expr
from watersmeet.plan.words import expression_in_words, word

_LONG = 24
_PARTS = 8


def value_in_words(value: object) -> str:
    """A value as people read it.

    >>> value_in_words(datetime(2026, 3, 2, 8, 15, tzinfo=UTC)), value_in_words(None), value_in_words("a")
    ('2026-03-02 08:15:00', 'NULL', "'a'")
    """
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None) if value.tzinfo is UTC or value.utcoffset() == timedelta(0) else value
        return plain.isoformat(" ")
    if isinstance(value, str):
        return f"'{value if len(value) <= _LONG else value[: _LONG - 1] + '…'}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return format_duration(value // timedelta(microseconds=1))
    if isinstance(value, bytes):
        return f"X'{value[:_LONG].hex().upper()}{'…' if len(value) > _LONG else ''}'"
    if isinstance(value, dict | list | tuple):
        return _of_parts(cast("Any", value))
    return str(value) if isinstance(value, date) else str(value)[: 2 * _LONG]


def _of_parts(value: Mapping[str, object] | Sequence[object]) -> str:
    """A struct, a list or a map as people read it; a map comes as pairs.

    >>> _of_parts({"id": 1, "tags": ["a", None]})
    "{id 1, tags ['a', NULL]}"
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} {value_in_words(part)}' for name, part in value.items())}}}"
    shown = [value_in_words(part) for part in value[:_PARTS]]
    return f"[{', '.join([*shown, '…'] if len(value) > _PARTS else shown)}]"


def key_in_words(values: Iterable[object]) -> str:
    """The values of a key as people read them, texts as they are.

    >>> key_in_words([7, "a", {"id": 1}])
    '7, a, {id 1}'
    """
    shown = (value if isinstance(value, str) else value_in_words(value) for value in values)
    return ", ".join(shown)


def row_in_words(values: Mapping[str, object]) -> str:
    """A row as people read it.

    >>> row_in_words({"id": 1, "city": "Oslo"})
    "(id 1, city 'Oslo')"
    """
    return f"({', '.join(f'{name} {value_in_words(value)}' for name, value in values.items())})"


def capital(text: str) -> str:
    """A text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def moment_in_words(value: int, kind: Any) -> str:
    """A time or mark as people read it, in the type of its column.

    >>> moment_in_words(86_400_000_000, pa.date32()), moment_in_words(5, pa.int64())
    ('1970-01-02', '5')
    """
    if value == END_OF_INPUT:
        return "the end"
    if kind is None or not pa.types.is_temporal(kind):
        return str(value)
    try:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=value)
    except OverflowError:
        return DistantTime.of(value)
    return str(moment.date()) if pa.types.is_date(kind) and moment.time() == datetime.min.time() else str(moment)


@dataclass(frozen=True)
class Words:
    """How the columns of a join are called, by the types they have and what computes them."""

    kinds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    computed: Mapping[str, Expr] = field(default_factory=dict[str, Expr])

    def column_words(self, name: str) -> str:
        """What people call a column."""
        if name in self.computed:
            return expression_in_words(self.computed[name])
        return ".".join(word(part) for part in name.split("."))

    def short_column_words(self, name: str) -> str:
        """What people call a column of a row that they have before them."""
        return self.column_words(name) if name in self.computed else word(name.split(".", 1)[-1])

    def moment(self, name: str, value: int) -> str:
        """A time of a column."""
        return moment_in_words(value, self.kinds.get(name))

    def distance(self, name: str, value: int) -> str:
        """How far two times of a column are from each other."""
        return format_duration(value) if self.is_temporal(name) else str(value)

    def duration(self, value: int) -> str:
        """A length of time by the clock."""
        return format_duration(value)

    def is_temporal(self, name: str) -> bool:
        """Whether a column holds times, and not numbers that count as such."""
        return name in self.kinds and pa.types.is_temporal(self.kinds[name])

    def is_end(self, watermark: int) -> bool:
        """Whether a mark says that its side has ended."""
        return watermark == END_OF_INPUT

    def condition_words(self, part: Expr, row: Row) -> str:
        """A condition with the values that it has for a row."""
        names = dict.fromkeys(ref.column for ref in part.references)
        values = ", ".join(f"{self.column_words(n)} is {value_in_words(row[n])}" for n in names if n in row)
        return f"{expression_in_words(part)}{f' ({values})' if values else ''}"

    def kernel_condition_words(self, condition: Condition, row: Row) -> str:
        """A condition of the kernel with the values that it has for a pair of rows."""
        names = sorted(columns_of(condition))
        values = ", ".join(f"{self.column_words(n)} is {value_in_words(row.get(n))}" for n in names)
        return f"{self._text(condition)}{f' ({values})' if values else ''}"

    def _text(self, condition: Condition) -> str:
        match condition:
            case ColumnRef(name):
                return self.column_words(name)
            case Constant(value):
                return value_in_words(value)
            case Apply("is_null", (arg,)):
                return f"{self._text(arg)} IS NULL"
            case Apply("not" | "negate" as op, (arg,)):
                return f"{'NOT ' if op == 'not' else '-'}{self._text(arg)}"
            case Apply(op, args):
                inside = f" {op.upper()} ".join(self._text(arg) for arg in args)
                return f"({inside})" if op in ("and", "or") else inside
