"""Arrow columns as Python values, for people who look at rows. Every value that Spark can have has one.

``to_pylist`` of Arrow raises for some of them: bytes in a STRING that are not UTF-8, years before 1 and after 9999,
zones such as ``GMT+01:00``, structs with a name twice. Here such a value is a text, and a time that no ``datetime`` can
hold is a `DistantTime`, which knows its number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, cast

import numpy as np
import pyarrow as pa

_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class DistantTime(str):
    """A time or date as text, with the microseconds since 1970 that it stands for.

    >>> DistantTime.of(253_402_300_800_000_000)
    '+10000-01-01 00:00:00'
    """

    __slots__ = ("micros",)
    micros: int

    @staticmethod
    def of(micros: int, zone: str = "") -> DistantTime:
        """The time so many microseconds after 1970, in UTC."""
        seconds, rest = divmod(micros, 10**6)
        text = str(np.datetime64(seconds, "s")).replace("T", " ")
        return _distant(f"{text}.{rest:06}{zone}" if rest else f"{text}{zone}", micros)

    @staticmethod
    def of_days(days: int) -> DistantTime:
        """The date so many days after 1970."""
        return _distant(str(np.datetime64(days, "D")), days * 86_400_000_000)


def _distant(text: str, micros: int) -> DistantTime:
    year, dash, rest = text[1:].partition("-")
    if text.startswith("-"):
        text = f"-{year.rjust(4, '0')}{dash}{rest}"
    time = DistantTime(f"+{text}" if len(year) > 3 and not text.startswith("-") else text)
    time.micros = micros
    return time


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, as ``to_pylist`` gives them where it can.

    >>> python_values(pa.array([0, 2**62]).cast(pa.timestamp("us")))
    [datetime.datetime(1970, 1, 1, 0, 0), '+148108-07-06 14:00:27.387904']
    """
    try:
        return cast("list[Any]", column.to_pylist())
    except Exception:
        return [python_value(scalar) for scalar in column]


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a table, as ``to_pylist`` gives them where it can."""
    columns = [python_values(column) for column in table.columns]
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else []


def python_value(scalar: pa.Scalar) -> Any:
    """One value."""
    try:
        return scalar.as_py()
    except Exception:
        try:
            return _other_value(scalar)
        except Exception:
            return f"a value of {scalar.type}"


def _other_value(scalar: Any) -> Any:
    """A value that Arrow gives none for."""
    kind: Any = scalar.type
    if pa.types.is_dictionary(kind):
        return python_value(scalar.value)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    if pa.types.is_timestamp(kind):
        return _time(scalar.value * 10**6 // _PER_SECOND[kind.unit], kind.tz)
    if pa.types.is_date(kind):
        return DistantTime.of_days(scalar.value if pa.types.is_date32(kind) else scalar.value // 86_400_000)
    if pa.types.is_map(kind):
        return [(python_value(pair[0]), python_value(pair[1])) for pair in scalar.values]
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        # A name may stand there twice.
        unique = [f"{name} ({i + 1})" if name in names[:i] else name for i, name in enumerate(names)]
        return {name: python_value(scalar[i]) for i, name in enumerate(unique)}
    if pa.types.is_nested(kind):
        return [python_value(part) for part in scalar.values]
    return str(scalar.cast(pa.string()))


def _time(micros: int, zone: str | None) -> datetime | DistantTime:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return DistantTime.of(micros, "+00:00" if zone else "")
    if zone is None:
        return moment.replace(tzinfo=None)
    try:
        return moment.astimezone(offset_zone(zone))
    except OverflowError:
        return moment


def offset_zone(zone: str) -> tzinfo:
    """A zone that Java knows and Python does not; UTC if it has no offset, which is said with each time.

    >>> offset_zone("GMT-01:30"), offset_zone("Z")
    (datetime.timezone(datetime.timedelta(days=-1, seconds=81000)), datetime.timezone.utc)
    """
    match = _OFFSET.fullmatch(zone)
    if match is None:
        return UTC
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if match[1] == "-" else offset) if offset < timedelta(hours=24) else UTC


def arrow_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of `python_values` as a column again, also those that a definition froze to count them.

    >>> arrow_values([None, DistantTime.of(2**62)], pa.timestamp("us")).cast(pa.int64()).to_pylist()
    [None, 4611686018427387904]
    >>> arrow_values([(("a", ("x", None)),)], pa.struct({"a": pa.list_(pa.string())})).to_pylist()
    [{'a': ['x', None]}]
    """
    if any(isinstance(value, tuple) for value in values):
        # Arrow would take the pairs of a frozen struct for its fields.
        values = [_unfreeze(value, kind) for value in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([_number(value, kind) for value in values], kind)


def _unfreeze(value: Any, kind: Any) -> Any:
    """A value as it was before `freeze` or `freeze_bits`: structs are pairs there, and lists are tuples."""
    if not isinstance(value, tuple):
        return value
    parts = cast("tuple[Any, ...]", value)
    if pa.types.is_floating(kind):
        return float(parts[0])
    if pa.types.is_struct(kind):
        return {name: _unfreeze(part, kind.field(i).type) for i, (name, part) in enumerate(parts)}
    if pa.types.is_map(kind):
        return [(_unfreeze(key, kind.key_type), _unfreeze(item, kind.item_type)) for key, item in parts]
    # An interval of months, days and nanoseconds is a tuple itself.
    return [_unfreeze(part, kind.value_type) for part in parts] if pa.types.is_nested(kind) else parts


def _number(value: Any, kind: Any) -> Any:
    """A value with numbers in the place of times that no ``datetime`` can hold."""
    if isinstance(value, DistantTime):
        return value.micros // 86_400_000_000 if pa.types.is_date(kind) else value.micros
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {name: _number(part, kind.field(name).type) for name, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list) and pa.types.is_map(kind):
        pairs = cast("list[tuple[Any, Any]]", value)
        return [(_number(key, kind.key_type), _number(item, kind.item_type)) for key, item in pairs]
    if isinstance(value, list) and pa.types.is_nested(kind):
        return [_number(part, kind.value_type) for part in cast("list[Any]", value)]
    return cast("Any", value)
