"""Functions of times as Spark has them: their fields, sums with months and days, their text, and their windows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.duration import DAY, HOUR, MINUTE, SECOND, parse_duration
from watersmeet.local.casts import (
    BIGINT,
    DATE,
    INT,
    TEXT,
    TIME,
    Evaluator,
    Values,
    as_argument,
    by_value,
    cast,
    is_time,
    local_micros,
    map_values,
    micros_of_local,
    nulls_of,
    numpy_of,
)
from watersmeet.local.cells import NeedsSparkError
from watersmeet.logical.expressions import Expr, windows_in


def date_parts(local: pa.Array, name: str) -> Any:  # noqa: PLR0911 - one case per field
    """A field of local times, such as their year."""
    micros = numpy_of(local)
    days = micros // DAY
    dates = days.astype("datetime64[D]")
    match name:
        case "hour" | "minute" | "second" | "millisecond":
            size = {"hour": HOUR, "minute": MINUTE, "second": SECOND, "millisecond": 1000}[name]
            most = {"hour": 24, "minute": 60, "second": 60, "millisecond": 1000}[name]
            return micros // size % most
        case "year":
            return dates.astype("datetime64[Y]").astype(np.int64) + 1970
        case "month" | "quarter":
            month = dates.astype("datetime64[M]").astype(np.int64) % 12
            return month + 1 if name == "month" else month // 3 + 1
        case "day":
            return (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
        case "dayofyear":
            return (dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1
        case "week":
            # The week of a day is that of its Thursday.
            thursday = (days - (days + 3) % 7 + 3).astype("datetime64[D]")
            return (thursday - thursday.astype("datetime64[Y]")).astype(np.int64) // 7 + 1
        case "weekday":
            return (days + 3) % 7
        case "isodow":
            return (days + 3) % 7 + 1
        case _:
            return (days + 4) % 7 + 1


def shift_days(times: pa.Array, days: pa.Array, micros: pa.Array | None = None) -> pa.Array:
    """Dates or timestamps some calendar days later, and after that some microseconds."""
    if pa.types.is_date(times.type):
        return pc.add_checked(times.cast(pa.int32()), days.cast(pa.int32())).cast(pa.date32())
    moved = times.cast(BIGINT)
    shift = pc.multiply_checked(days.cast(BIGINT), DAY)
    if times.type.tz is None:
        moved = pc.add_checked(moved, shift)
    else:
        later = micros_of_local(pc.add_checked(local_micros(times), shift), times).cast(BIGINT)
        moved = pc.if_else(pc.equal(shift, 0), moved, later)
    return (moved if micros is None else pc.add_checked(moved, micros)).cast(times.type)


def shift_months(times: pa.Array, months: pa.Array) -> pa.Array:
    """Dates or timestamps some months later, on the last day of a month that is too short."""
    if not (pa.types.is_date(times.type) or pa.types.is_timestamp(times.type)):
        raise NeedsSparkError(f"months after {times.type}")
    local = local_micros(times)
    number = months.cast(BIGINT)
    if (np.abs(numpy_of(number)) > 10**6).any():
        raise NeedsSparkError("a shift by millions of months")
    micros = numpy_of(local)
    dates = (micros // DAY).astype("datetime64[D]")
    first = dates.astype("datetime64[M]") + numpy_of(number)
    length = ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    day = np.minimum(date_parts(local, "day"), length) - 1
    days = first.astype("datetime64[D]").astype(np.int64) + day
    mask = nulls_of(times) | nulls_of(number)
    if pa.types.is_date(times.type):
        return pa.array(days, pa.int32(), mask=mask).cast(pa.date32())
    shifted = pa.array(days * DAY + micros % DAY, BIGINT, mask=mask)
    return shifted.cast(times.type) if times.type.tz is None else micros_of_local(shifted, times)


def _time_field(name: str, expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    return _extract(name, value, expr)


def _extract(name: str, value: pa.Array, expr: Expr) -> pa.Array:
    if value.type == TEXT:
        value = cast(value, TIME if name in ("hour", "minute", "second") else DATE)
    if not is_time(value.type):
        raise NeedsSparkError(expr.sql())
    return pa.array(date_parts(local_micros(value), name), INT, mask=nulls_of(value))


_FIELDS = {
    "year": "year", "years": "year", "yr": "year", "y": "year", "quarter": "quarter", "qtr": "quarter",
    "month": "month", "mon": "month", "months": "month", "week": "week", "weeks": "week", "w": "week",
    "day": "day", "days": "day", "d": "day", "dayofweek": "dayofweek", "dow": "dayofweek",
    "dayofweek_iso": "isodow", "dow_iso": "isodow", "doy": "dayofyear", "hour": "hour", "hours": "hour",
    "h": "hour", "hr": "hour", "hrs": "hour", "minute": "minute", "minutes": "minute", "m": "minute", "min": "minute",
    "mins": "minute",
}  # fmt: skip


def _extract_call(expr: Expr, values: Values) -> pa.Array:
    """``extract(field FROM x)`` and ``date_part('field', x)``."""
    name = text_of(expr.args[0]).lower()
    if name not in _FIELDS:
        raise NeedsSparkError(expr.sql())
    return _extract(_FIELDS[name], values[1], expr)


def text_of(expr: Expr) -> str:
    """The text of a literal; anything else is left to Spark."""
    if expr.op == "literal" and isinstance(expr.value, str):
        return expr.value
    raise NeedsSparkError(expr.sql())


_TRUNCATED = {
    "year": "Y", "yyyy": "Y", "yy": "Y", "quarter": "Q", "month": "M", "mon": "M", "mm": "M", "week": "W", "day": "D",
    "dd": "D", "hour": "h", "minute": "m", "second": "s", "millisecond": "ms", "microsecond": "us",
}  # fmt: skip


def _date_trunc(expr: Expr, values: Values) -> pa.Array:
    unit = _TRUNCATED.get(text_of(expr.args[0]).lower())
    if unit is None:
        raise NeedsSparkError(expr.sql())
    times = as_argument(values[1], TIME)
    local = local_micros(times)
    cut = pa.array(_cut(local, unit), BIGINT, mask=nulls_of(times))
    return micros_of_local(cut, times if unit in ("D", "h", "m", "s", "ms", "us") else None)


def _trunc(expr: Expr, values: Values) -> pa.Array:
    unit = _TRUNCATED.get(text_of(expr.args[1]).lower())
    if unit is None or unit not in "YQMW":
        raise NeedsSparkError(expr.sql())
    days = as_argument(values[0], DATE)
    cut = _cut(local_micros(days), unit) // DAY
    return pa.array(cut, INT, mask=nulls_of(days)).cast(DATE)


def _cut(local: pa.Array, unit: str) -> Any:
    """Local times at the beginning of their year, quarter, week and so on."""
    moments = numpy_of(local).astype("datetime64[us]")
    if unit == "Q":
        months = moments.astype("datetime64[M]").astype(np.int64)
        cut = (months // 3 * 3).astype("datetime64[M]")
    elif unit == "W":
        days = moments.astype("datetime64[D]").astype(np.int64)
        # 1970-01-01 was a Thursday.
        cut = (days - (days + 3) % 7).astype("datetime64[D]")
    else:
        cut = moments.astype(f"datetime64[{unit}]")
    return cut.astype("datetime64[us]").astype(np.int64)


_LENGTHS = {
    "microsecond": 1, "millisecond": 1000, "second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY,
    "week": 7 * DAY,
}  # fmt: skip


_LONG_UNITS = {"month": 1, "quarter": 3, "year": 12}


def _unit_of(expr: Expr) -> str:
    unit = text_of(expr).lower()
    if unit not in _LENGTHS and unit not in _LONG_UNITS:
        raise NeedsSparkError(expr.sql())
    return unit


def _timestamp_add(expr: Expr, values: Values) -> pa.Array:
    unit, (_, number, times) = _unit_of(expr.args[0]), values
    if not pa.types.is_timestamp(times.type):
        times = as_argument(times, TIME)
    numbers = as_argument(number, BIGINT)
    if unit in _LONG_UNITS:
        return shift_months(times, pc.multiply_checked(numbers, _LONG_UNITS[unit]))
    micros = pc.multiply_checked(numbers, _LENGTHS[unit])
    if unit in ("day", "week"):
        return shift_days(times, pc.divide(micros, DAY))
    return shift_days(times, pa.array(np.zeros(len(times)), BIGINT), micros)


def _timestamp_diff(expr: Expr, values: Values) -> pa.Array:
    unit = _unit_of(expr.args[0])
    start, end = (as_argument(value, TIME) for value in values[1:])
    if unit in _LONG_UNITS:
        raise NeedsSparkError(expr.sql())
    # Arrow truncates towards zero, as Spark does.
    return pc.divide(pc.subtract_checked(local_micros(end), local_micros(start)), _LENGTHS[unit])


def _datediff(expr: Expr, values: Values) -> pa.Array:
    if len(expr.args) == 3:
        return _timestamp_diff(expr, values)
    end, start = (as_argument(value, DATE).cast(INT) for value in values)
    return pc.subtract_checked(end, start)


def _date_add(sign: int, expr: Expr, values: Values) -> pa.Array:
    if len(expr.args) == 3:
        return _timestamp_add(expr, values)
    days, numbers = values
    return shift_days(as_argument(days, DATE), pc.multiply_checked(as_argument(numbers, INT), sign))


def _add_months_call(expr: Expr, values: Values) -> pa.Array:
    days, numbers = values
    return shift_months(as_argument(days, DATE), as_argument(numbers, INT))


def _last_day(days: int) -> int:
    month = np.datetime64(days, "D").astype("datetime64[M]") + 1
    return int(month.astype("datetime64[D]").astype(np.int64)) - 1


def _make_date(year: int, month: int, day: int) -> int:
    if not (1 <= month <= 12 and 1 <= day <= 31 and abs(year) < 10**6):
        raise ArithmeticError(f"{year}-{month}-{day} is not a date")
    first = np.datetime64((year - 1970) * 12 + month - 1, "M")
    days = int(first.astype("datetime64[D]").astype(np.int64)) + day - 1
    if np.datetime64(days, "D").astype("datetime64[M]") != first:
        raise ArithmeticError(f"{year}-{month}-{day} is not a date")
    return days


_PATTERN = re.compile(r"yyyy|MM|dd|HH|mm|ss|SSS|'[^']*'|[^A-Za-z'#\[\]{}]+")


_LETTERS = {
    "yyyy": "{0:04d}", "MM": "{1:02d}", "dd": "{2:02d}", "HH": "{3:02d}", "mm": "{4:02d}", "ss": "{5:02d}",
    "SSS": "{6:03d}",
}  # fmt: skip


def _date_format(expr: Expr, values: Values) -> pa.Array:
    text = text_of(expr.args[1])
    pieces = _PATTERN.findall(text)
    if "".join(pieces) != text or not text or "''" in text:
        raise NeedsSparkError(expr.sql())
    form = "".join(_LETTERS.get(piece) or piece.strip("'").replace("{", "{{").replace("}", "}}") for piece in pieces)
    local = local_micros(times := as_argument(values[0], TIME))
    names = ("year", "month", "day", "hour", "minute", "second", "millisecond")
    columns = [date_parts(local, name) for name in names]
    if ((columns[0] < 1) | (columns[0] > 9999)).any():
        raise NeedsSparkError(expr.sql())
    texts = [form.format(*row) for row in zip(*columns, strict=True)]
    return pa.array(texts, TEXT, mask=nulls_of(times))


def _from_number(size: int, expr: Expr, values: Values) -> pa.Array:
    """``timestamp_seconds``, ``timestamp_millis`` and ``timestamp_micros`` of whole numbers."""
    (value,) = values
    return pc.multiply_checked(as_argument(value, BIGINT), size).cast(TIME)


def _to_number(size: int, expr: Expr, values: Values) -> pa.Array:
    """``unix_seconds``, ``unix_millis`` and ``unix_micros``, rounded down."""
    (times,) = values
    if times.type != TIME:
        raise NeedsSparkError(expr.sql())
    return map_values(lambda micros: micros // size, BIGINT, times)


def _unix_timestamp(expr: Expr, values: Values) -> pa.Array:
    """The seconds of a time, rounded towards zero."""
    times = values[0] if len(expr.args) == 1 else None
    if times is None or not is_time(times.type):
        raise NeedsSparkError(expr.sql())
    # A time without a zone counts as one in UTC.
    moments = times if pa.types.is_timestamp(times.type) else cast(times, TIME)
    return pc.divide(moments.cast(BIGINT), SECOND)


def windows_of_times(call: Expr, times: pa.Array) -> pa.ListArray:
    """The windows that each time lies in, none for NULL; of ``session_window`` the one that a row alone would have."""
    if not 2 <= len(call.args) <= (4 if call.text.lower() == "window" else 2):
        raise NeedsSparkError(call.sql())
    try:
        size, *more = (parse_duration(text_of(length)) for length in call.args[1:])
    except ValueError as error:
        raise NeedsSparkError(call.sql()) from error
    slide, first = (*more, *(size, 0)[len(more) :])
    is_session = call.text.lower() == "session_window"
    if not pa.types.is_timestamp(times.type) or not 0 < slide <= size or (is_session and size >= DAY):
        # A gap of days has calendar days.
        raise NeedsSparkError(call.sql())
    micros = numpy_of(times.cast(BIGINT))
    latest = micros if is_session else (micros - first) // slide * slide + first
    starts = latest[:, None] - np.arange(-(-size // slide)) * slide
    lies_in = (starts + size > micros[:, None]) & ~nulls_of(times)[:, None]
    return _as_lists(starts, starts + size, lies_in, times.type)


def _as_lists(starts: Any, ends: Any, lies_in: Any, kind: pa.DataType) -> pa.ListArray:
    bounds = [pa.array(bound[lies_in], BIGINT).cast(kind) for bound in (starts, ends)]
    offsets = np.concatenate([[0], np.cumsum(lies_in.sum(axis=1))])
    return pa.ListArray.from_arrays(pa.array(offsets, INT), pa.StructArray.from_arrays(bounds, names=["start", "end"]))


def windows_in_list(expr: Expr, times: pa.Array) -> pa.Array:
    """The windows of a ``windows`` expression that each time lies in; none for NULL."""
    windows = windows_in(expr)
    if not pa.types.is_timestamp(times.type):
        raise NeedsSparkError(expr.sql())
    micros = numpy_of(times.cast(BIGINT))
    numbers = np.arange(windows.number)
    base = (micros // windows.base * windows.base)[:, None]
    starts, ends = base + windows.start * numbers, base + windows.first_end + windows.end * numbers
    lies_in = (ends > micros[:, None]) & ~nulls_of(times)[:, None]
    return _as_lists(starts, ends, lies_in, times.type)


_FIELD_NAMES = ("year", "quarter", "month", "day", "hour", "minute", "second", "dayofweek", "dayofyear", "weekday")
TIMES: Mapping[str, Evaluator] = {
    **{name: partial(_time_field, name) for name in _FIELD_NAMES},
    "dayofmonth": partial(_time_field, "day"),
    "weekofyear": partial(_time_field, "week"),
    "extract": _extract_call,
    "date_part": _extract_call,
    "datepart": _extract_call,
    "date_trunc": _date_trunc,
    "trunc": _trunc,
    "date_add": partial(_date_add, 1),
    "dateadd": partial(_date_add, 1),
    "date_sub": partial(_date_add, -1),
    "datediff": _datediff,
    "date_diff": _datediff,
    "add_months": _add_months_call,
    "last_day": by_value(DATE, _last_day, DATE),
    "make_date": by_value(DATE, _make_date, INT, INT, INT),
    "timestampadd": _timestamp_add,
    "timestampdiff": _timestamp_diff,
    "date_format": _date_format,
    "timestamp_seconds": partial(_from_number, SECOND),
    "timestamp_millis": partial(_from_number, 1000),
    "timestamp_micros": partial(_from_number, 1),
    "unix_seconds": partial(_to_number, SECOND),
    "unix_millis": partial(_to_number, 1000),
    "unix_micros": partial(_to_number, 1),
    "unix_timestamp": _unix_timestamp,
    "to_unix_timestamp": _unix_timestamp,
    "unix_date": by_value(INT, lambda days: days, DATE),
}
"""Functions of dates and timestamps."""
