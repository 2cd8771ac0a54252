"""Casts between Spark's types, and times in the zone of its session, in this process.

A cast that fails in Spark's ANSI mode raises an ArithmeticError. One that is not certain to give Spark's value raises
`NeedsSparkError`, for all of its rows.

A local time counts microseconds as a clock in the zone shows them. As in Java, a local time that two moments have is
the earlier one, and one that clocks skip is as much later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, reduce
from math import isfinite, trunc
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.duration import DAY, HOUR, MINUTE, SECOND, is_fixed_zone
from watersmeet.local.cells import NeedsSparkError
from watersmeet.logical.expressions import Expr
from watersmeet.operators.core.matching import Ints
from watersmeet.operators.core.python_values import offset_zone

TIME = pa.timestamp("us", tz="UTC")
BOOLEAN, TEXT, INT, BIGINT, DOUBLE, DATE = (
    pa.bool_(), pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.date32(),
)  # fmt: skip
MONTHS = pa.month_day_nano_interval()
"""The type of months here, which Arrow in Python has no better one for."""
INTEGERS = (pa.int8(), pa.int16(), INT, BIGINT)
DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""The digits that Spark gives to integers of this many bits in decimal arithmetic."""
LONGEST = 38

Values = list[pa.Array]
Evaluator = Callable[[Expr, Values], pa.Array]
"""Computes a call from the values of its args."""
ValueFunction = Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
"""A function of the Python values of one row."""


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """The type in which Spark compares values of several types, or in which it returns one of them.

    >>> common_type([pa.int32(), pa.decimal128(5, 2)]), common_type([pa.float32(), pa.int32()])
    (Decimal128Type(decimal128(12, 2)), DataType(double))
    """
    return reduce(_wider, kinds, pa.null())


def _wider(left: Any, right: Any) -> pa.DataType:  # noqa: PLR0911 - one case per pair of types
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if not is_ansi_session():
        raise NeedsSparkError(f"a type for {left} and {right} without ANSI mode")
    if is_number(left) and is_number(right):
        if pa.types.is_floating(left) or pa.types.is_floating(right):
            return DOUBLE
        if pa.types.is_decimal(left) or pa.types.is_decimal(right):
            (p, s), (q, t) = precision_of(left), precision_of(right)
            return _decimal_type(max(p - s, q - t) + max(s, t), max(s, t))
        return max(left, right, key=lambda kind: kind.bit_width)
    times = [kind for kind in (left, right) if is_time(kind)]
    if len(times) == 2:
        return (
            TIME if any(pa.types.is_timestamp(kind) and kind.tz is not None for kind in times) else pa.timestamp("us")
        )
    if TEXT in (left, right):
        other = right if left == TEXT else left
        if other in INTEGERS:
            return BIGINT
        if is_number(other):
            return DOUBLE
        if times or other == BOOLEAN:
            return other
    raise NeedsSparkError(f"a type for {left} and {right}")


def is_time(kind: pa.DataType) -> bool:
    """Whether it is DATE, TIMESTAMP or TIMESTAMP_NTZ."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _decimal_type(precision: int, scale: int) -> pa.DataType:
    if precision > LONGEST:
        raise NeedsSparkError(f"a decimal of {precision} digits")
    return pa.decimal128(precision, scale)


def is_number(kind: pa.DataType) -> bool:
    """Whether its values are numbers."""
    return kind in INTEGERS or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def precision_of(kind: Any) -> tuple[int, int]:
    """The digits of a decimal, and those behind the point; of an integer as Spark casts it to one."""
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (DIGITS[kind.bit_width], 0)


_ZONE: ContextVar[str] = ContextVar("session_zone", default="UTC")
_IS_ANSI: ContextVar[bool] = ContextVar("session_is_ansi", default=True)


@contextmanager
def in_session(zone: str | None, *, is_ansi: bool = True) -> Generator[None]:
    """Evaluate meanwhile as a session with that time zone does; None: in UTC. ``is_ansi``: whether it follows ANSI."""
    tokens = _ZONE.set(zone or "UTC"), _IS_ANSI.set(is_ansi)
    try:
        yield
    finally:
        _ZONE.reset(tokens[0])
        _IS_ANSI.reset(tokens[1])


def is_ansi_session() -> bool:
    """Whether what fails is an error, and not NULL or a number that has run over."""
    return _IS_ANSI.get()


def session_zone() -> str:
    """The time zone of the session."""
    return _ZONE.get()


_ERA = 146_097 * DAY
"""400 years, after which days, weekdays and so the clocks of a zone repeat."""
_LAST_YEAR = 2500


@lru_cache(maxsize=32)
def _offset_changes(zone: str) -> tuple[Ints, Ints]:
    """The moments at which the offset of a zone changes, and the offsets from each on, in microseconds.

    The first holds at all times before.
    """
    if is_fixed_zone(zone):
        return np.array([0]), np.array([_micros(offset_zone(zone).utcoffset(None))])
    try:
        rules = ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise NeedsSparkError(f"the time zone {zone}") from None

    def offset(moment: datetime) -> int:
        return _micros(moment.astimezone(rules).utcoffset())

    moment, step = datetime(1800, 1, 1, tzinfo=UTC), timedelta(days=5)
    moments, offsets = [-(2**63)], [offset(moment)]
    while moment.year < _LAST_YEAR:
        following = moment + step
        if offset(following) != offsets[-1]:
            low, high = 0, step // timedelta(seconds=1)
            while high - low > 1:
                middle = (low + high) // 2
                is_before = offset(moment + timedelta(seconds=middle)) == offsets[-1]
                low, high = (middle, high) if is_before else (low, middle)
            change = moment + timedelta(seconds=high)
            moments.append((change - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
            offsets.append(offset(change))
        moment = following
    return np.array(moments), np.array(offsets)


def _micros(offset: timedelta | None) -> int:
    return (offset or timedelta()) // timedelta(microseconds=1)


def _offsets_at(micros: Ints) -> Ints:
    """The offsets of the session's zone at moments."""
    moments, offsets = _offset_changes(session_zone())
    last = (_LAST_YEAR - 1 - 1970) * 365 * DAY
    eras = -(-np.where(micros > last, micros - last, 0) // _ERA)
    return offsets[np.maximum(np.searchsorted(moments, micros - eras * _ERA, side="right") - 1, 0)]


def local_micros(times: pa.Array) -> pa.Array:
    """The local times of a column of dates or timestamps."""
    if pa.types.is_date(times.type):
        return pc.multiply_checked(times.cast(pa.int32()).cast(BIGINT), DAY)
    micros = times.cast(BIGINT)
    if times.type.tz is None:
        return micros
    return pc.add_checked(micros, pa.array(_offsets_at(_numbers_within_range(micros)), BIGINT))


def micros_of_local(local: pa.Array, preferred: pa.Array | None = None) -> pa.Array:
    """The moments of local times, as TIMESTAMP.

    ``preferred``: moments whose offsets win where a local time has several.
    """
    micros = _numbers_within_range(local)
    before, after = _offsets_at(micros - DAY), _offsets_at(micros + DAY)
    first, second = micros - before, micros - after
    is_second = (_offsets_at(first) != before) & (_offsets_at(second) == after)
    moments = np.where(is_second, second, first)
    if preferred is not None:
        offsets = _offsets_at(numpy_of(preferred.cast(BIGINT)))
        moments = np.where(_offsets_at(micros - offsets) == offsets, micros - offsets, moments)
    return pa.array(moments, BIGINT, mask=nulls_of(local)).cast(TIME)


def _numbers_within_range(times: pa.Array) -> Ints:
    """The numbers of times; those at the ends of 64 bits, which an offset would leave, are left to Spark."""
    micros = numpy_of(times)
    if ((micros > 2**63 - 2 * DAY) | (micros < 2 * DAY - 2**63)).any():
        raise NeedsSparkError("times at the ends of 64 bits")
    return micros


def numpy_of(values: pa.Array) -> Ints:
    """The numbers of a column, with 0 for NULL."""
    return pc.fill_null(values, 0).to_numpy(zero_copy_only=False)


def nulls_of(values: pa.Array) -> npt.NDArray[np.bool_]:
    """A mask of the rows that are NULL."""
    return values.is_null().to_numpy(zero_copy_only=False)


def python_list(values: pa.Array) -> list[Any]:
    """The values of a column: numbers for times, since not all of them have a ``datetime``."""
    kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        values = values.cast(BIGINT)
    try:
        return values.to_pylist()
    except (UnicodeDecodeError, ValueError) as error:
        raise NeedsSparkError(f"values of {kind}") from error


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of values as `python_list` gives them."""
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.array(values, BIGINT).cast(kind)
    return pa.array(values, kind)


_WIDE = Context(prec=400)


def decimal_of(value: Decimal | int, kind: Any) -> Decimal:
    """A number in a type of decimals, rounded half up; an ArithmeticError if it does not fit."""
    number = Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _WIDE)
    if abs(number.scaleb(kind.scale, _WIDE)) >= 10**kind.precision:
        raise ArithmeticError(f"{value} does not fit {kind}")
    # -0 is not a value of Java's BigDecimal.
    return number if number else abs(number)


_LETTERS = re.compile("[\u0000-\u017f\u0370-\u04ff]*")
"""Latin, Greek and Cyrillic: further letters got their capitals in later versions of Unicode."""


def letters_of(text: str) -> str:
    """A text whose capital and small letters are the same in all versions of Unicode; others are left to Spark."""
    if _LETTERS.fullmatch(text) is None:
        raise NeedsSparkError(f"the letters of {text!r}")
    return text


def cast(values: pa.Array, kind: pa.DataType, *, is_try: bool = False) -> pa.Array:
    """The values in another type, as Spark casts them; with ``is_try`` NULL where that fails.

    >>> cast(pa.array(["1", " -2 "]), pa.int32()).to_pylist(), cast(pa.array([2.5]), pa.int64()).to_pylist()
    ([1, -2], [2])
    """
    source = values.type
    if source == kind:
        return values
    if pa.types.is_null(source):
        return pa.nulls(len(values), kind)
    if all(pa.types.is_timestamp(one) and one.tz is not None for one in (source, kind)):
        return values.cast(kind)
    if not is_ansi_session():
        raise NeedsSparkError(f"a cast of {source} to {kind} without ANSI mode")
    whole = _cast_whole(values, kind)
    if whole is not None:
        return whole
    convert = _converter(source, kind)

    def value(one: Any) -> Any:
        try:
            return None if one is None else convert(one)
        except ArithmeticError:
            if is_try:
                return None
            raise

    return array_of([value(one) for one in python_list(values)], kind)


def _cast_whole(values: pa.Array, kind: Any) -> pa.Array | None:
    """Casts of whole columns; None for others."""
    source = values.type
    is_integer = pa.types.is_signed_integer(source)
    if is_integer and pa.types.is_signed_integer(kind) and kind.bit_width >= source.bit_width:
        return values.cast(kind)
    if (is_integer and pa.types.is_floating(kind)) or (pa.types.is_floating(source) and kind == pa.float64()):
        return values.cast(kind, safe=False)
    if pa.types.is_boolean(source) and pa.types.is_signed_integer(kind):
        return values.cast(kind)
    if not (pa.types.is_date(source) or pa.types.is_timestamp(source)):
        return None
    if pa.types.is_timestamp(kind):
        local = local_micros(values)
        return local.cast(kind) if kind.tz is None else micros_of_local(local)
    if pa.types.is_date(kind):
        days = numpy_of(local_micros(values)) // DAY
        return pa.array(days, pa.int32(), mask=nulls_of(values)).cast(kind)
    if pa.types.is_string(kind):
        local, is_date = local_micros(values), pa.types.is_date(source)
        texts = [None if micros is None else _time_text(micros, is_date=is_date) for micros in local.to_pylist()]
        return pa.array(texts, kind)
    return None


def _converter(source: Any, kind: Any) -> Callable[[Any], Any]:
    """A function of the values of one type that gives those of another."""
    groups = (_group(source), _group(kind))
    is_local = any(pa.types.is_timestamp(one) and one.tz is None for one in (source, kind))
    convert = _CONVERTERS.get(groups)
    if groups[0] == "text":
        convert = _READERS.get(groups[1])
    elif "time" in groups and is_local:
        convert = None
    if convert is None:
        raise NeedsSparkError(f"a cast of {source} to {kind}")
    return lambda value: convert(value, kind)


def _group(kind: pa.DataType) -> str:
    if pa.types.is_signed_integer(kind):
        return "integer"
    if pa.types.is_float32(kind):
        return "single"
    if pa.types.is_float64(kind):
        return "double"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "date" if pa.types.is_date(kind) else "time" if pa.types.is_timestamp(kind) else str(kind)


def _integer(value: Any, kind: Any) -> int:
    """A number without its fraction; it fails if it is not one, or too large."""
    if isinstance(value, float) and not isfinite(value):
        raise ArithmeticError(f"{value} is not a whole number")
    number = trunc(value)
    if not -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1):
        raise ArithmeticError(f"{value} does not fit {kind}")
    return number


def _decimal_of_double(value: float, kind: Any) -> Decimal:
    if not isfinite(value):
        raise NeedsSparkError(f"{value} as a decimal")
    return round_digits(value, lambda digits: decimal_of(digits, kind))


def round_digits(value: float, rounding: Callable[[Decimal], Decimal]) -> Decimal:
    """The digits that Java prints of a number, after rounding: older versions print others at the end of long ones."""
    digits = Decimal(repr(value))
    _, figures, exponent = digits.as_tuple()
    doubt = Decimal((0, (2,), int(exponent))) if len(figures) > _CERTAIN else Decimal(0)
    values = {rounding(one) for one in (digits, digits - doubt, digits + doubt)}
    if len(values) > 1:
        raise NeedsSparkError(f"the digits of {value}")
    return values.pop()


_CERTAIN = 15
"""Digits that every version of Java prints of a double."""


def _nearest_single(value: float) -> Any:
    with np.errstate(over="ignore"):
        return np.float32(value)


def _single(value: float) -> Any:
    """A FLOAT of a number that was rounded to a double already; where that may matter, Spark has to say."""
    single = _nearest_single(value)
    for other in (np.nextafter(single, np.float32(np.inf)), np.nextafter(single, np.float32(-np.inf))):
        if isfinite(float(other)) and (float(single) + float(other)) / 2 == value:
            raise NeedsSparkError(f"{value} as FLOAT")
    return single


def _text_of_double(value: float, *, is_single: bool) -> str:
    """A number as Java writes it, if all versions of Java write it so."""
    if value != value:
        return "NaN"
    if not isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = str(np.float32(value)) if is_single else repr(value)
    digits = len(text.replace("-", "").replace(".", "").strip("0"))
    if value != 0 and not (1e-3 <= abs(value) < 1e7 and digits <= (6 if is_single else 15) and "e" not in text):
        raise NeedsSparkError(f"the digits of {value}")
    return text


def _time_text(micros: int, *, is_date: bool) -> str:
    seconds, fraction = divmod(micros, SECOND)
    text = str(np.datetime64(seconds, "s")).replace("T", " ")
    year, dash, rest = text.removeprefix("-").partition("-")
    sign = "-" if text.startswith("-") else "+" if len(year) > 4 else ""
    whole = f"{sign}{year.rjust(4, '0')}{dash}{rest}"
    if is_date:
        return whole.partition(" ")[0]
    return f"{whole}.{fraction:06d}".rstrip("0") if fraction else whole


_NUMERIC = ("integer", "decimal", "double", "single")
_CONVERTERS: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    **{(group, "integer"): _integer for group in _NUMERIC},
    **{(group, "boolean"): lambda value, _: value != 0 for group in _NUMERIC},
    ("integer", "decimal"): decimal_of,
    ("decimal", "decimal"): decimal_of,
    ("double", "decimal"): _decimal_of_double,
    ("decimal", "double"): lambda value, _: float(value),
    ("decimal", "single"): lambda value, _: _single(float(value)),
    ("double", "single"): lambda value, _: _nearest_single(value),
    ("integer", "text"): lambda value, _: str(value),
    ("decimal", "text"): lambda value, _: f"{value:f}",
    ("boolean", "text"): lambda value, _: "true" if value else "false",
    ("boolean", "double"): lambda value, _: float(value),
    ("boolean", "single"): lambda value, _: float(value),
    ("double", "text"): lambda value, _: _text_of_double(value, is_single=False),
    ("single", "text"): lambda value, _: _text_of_double(value, is_single=True),
    ("integer", "time"): lambda value, _: min(max(value * SECOND, -(2**63)), 2**63 - 1),
    ("time", "integer"): lambda value, kind: _integer(value // SECOND, kind),
    ("time", "double"): lambda value, _: value / SECOND,
}
"""Functions that give a value of a type for one of another; the type with its size goes along."""

_BLANKS = "".join(map(chr, (*range(33), 127)))
"""The characters that Spark trims before it reads a text as another type."""


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


_BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True), **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}  # fmt: skip


_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)


_MOMENT = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.([0-9]{1,9}))?(Z|UTC|[+-][0-9]{2}:[0-9]{2})?)?)?)?"
)


_OF_NOW = ("now", "today", "tomorrow", "yesterday", "epoch")


def _read_integer(text: str, kind: Any) -> int:
    if re.fullmatch(r"[+-]?[0-9]+", text.strip(_BLANKS)) is None:
        raise ArithmeticError(f"{text!r} is not a whole number")
    return _integer(int(text.strip(_BLANKS)), kind)


def _read_decimal(text: str, kind: Any) -> Decimal:
    if _NUMBER.fullmatch(text.strip(_BLANKS)) is None:
        raise ArithmeticError(f"{text!r} is not a number")
    number = Decimal(text.strip(_BLANKS))
    if not -350 < number.adjusted() < 100:
        raise NeedsSparkError(f"{text!r} as a decimal")
    return decimal_of(number, kind)


def _read_double(text: str, kind: Any) -> Any:
    stripped = text.strip(_BLANKS[:-1])
    if _NUMBER.fullmatch(stripped) is None:
        if not re.search("[0-9]|inf|nan", stripped, re.IGNORECASE):
            raise ArithmeticError(f"{text!r} is not a number")
        raise NeedsSparkError(f"{text!r} as a number")
    number = float(stripped)
    return _single(number) if kind == pa.float32() else number


def _read_boolean(text: str, _kind: Any) -> bool:
    value = _BOOLEANS.get(text.strip(_BLANKS).lower())
    if value is None:
        raise ArithmeticError(f"{text!r} is not a BOOLEAN")
    return value


def _read_date(text: str, _kind: Any) -> int:
    match = _DATE.fullmatch(text.strip(_BLANKS))
    if match is None:
        raise _unreadable(text, "DATE")
    sign, year, month, day = match.groups()
    return _days(int(year) * (-1 if sign == "-" else 1), int(month or 1), int(day or 1), text)


def _unreadable(text: str, type_: str) -> Exception:
    is_clock = text.strip(_BLANKS).lower().startswith(_OF_NOW)
    return NeedsSparkError(f"{text!r} as {type_}") if is_clock else ArithmeticError(f"{text!r} is not a {type_}")


def _days(year: int, month: int, day: int, text: str) -> int:
    if 1 <= month <= 12:
        months = (year - 1970) * 12 + month - 1
        days, following = (
            int(np.datetime64(number, "M").astype("datetime64[D]").astype(np.int64)) for number in (months, months + 1)
        )
        if 1 <= day <= following - days:
            return days + day - 1
    raise ArithmeticError(f"{text!r} is not a date")


def _read_time(text: str, kind: Any) -> int:
    stripped = text.strip(_BLANKS)
    match = _MOMENT.fullmatch(stripped)
    if match is None:
        if any(letter.isdigit() for letter in stripped):
            raise NeedsSparkError(f"{text!r} as TIMESTAMP")
        raise _unreadable(text, "TIMESTAMP")
    sign, year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = _days(int(year) * (-1 if sign == "-" else 1), int(month or 1), int(day or 1), text)
    if int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        raise ArithmeticError(f"{text!r} is not a TIMESTAMP")
    micros = days * DAY + int(hour or 0) * HOUR + int(minute or 0) * MINUTE + int(second or 0) * SECOND
    micros += int((fraction or "0").ljust(6, "0")[:6])
    if not -(2**63) <= micros < 2**63:
        raise ArithmeticError(f"{text!r} is too large for a TIMESTAMP")
    if kind.tz is None:
        if zone is not None:
            raise NeedsSparkError(f"{text!r} as TIMESTAMP_NTZ")
        return micros
    if zone is None:
        return micros_of_local(pa.array([micros], BIGINT)).cast(BIGINT)[0].as_py()
    if zone in ("Z", "UTC"):
        return micros
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 17 or minutes > 59:
        raise NeedsSparkError(f"{text!r} as TIMESTAMP")
    return micros - (hours * HOUR + minutes * MINUTE) * (-1 if zone[0] == "-" else 1)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "integer": _read_integer, "decimal": _read_decimal, "double": _read_double, "single": _read_double,
    "boolean": _read_boolean, "date": _read_date, "time": _read_time,
}  # fmt: skip


def as_argument(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """An argument in the type that a function takes, where Spark casts it by itself."""
    is_wider = is_number(kind) and is_number(value.type) and common_type([value.type, kind]) == kind
    as_text = kind == TEXT and not pa.types.is_binary(value.type)
    as_time = kind in (TIME, DATE) and (value.type == TEXT or is_time(value.type))
    if value.type == kind or pa.types.is_null(value.type) or is_wider or as_text or as_time:
        return cast(value, kind)
    raise NeedsSparkError(f"{kind} from {value.type}")


def map_values(function: ValueFunction, kind: pa.DataType, *arrays: pa.Array) -> pa.Array:
    """A function of the values of each row; NULL where one of them is."""
    lists = [python_list(array) for array in arrays]
    compute: Callable[..., Any] = function
    values = [None if None in row else compute(*row) for row in zip(*lists, strict=True)]
    return array_of(values, kind)


def by_value(kind: pa.DataType, function: ValueFunction, *takes: pa.DataType, optional: int = 0) -> Evaluator:
    """A function of Python values: its type, and the types that it takes, of which the last ``optional`` may miss."""

    def evaluate_call(expr: Expr, values: Values) -> pa.Array:
        if not len(takes) - optional <= len(expr.args) <= len(takes):
            raise NeedsSparkError(expr.sql())
        arrays = [as_argument(value, taken) for value, taken in zip(values, takes, strict=False)]
        return map_values(function, kind, *arrays)

    return skip_nulls(evaluate_call)


def skip_nulls(function: Evaluator) -> Evaluator:
    """A function that is NULL where an argument is: whether another argument fails there, Spark has to say."""

    def evaluate_call(expr: Expr, values: Values) -> pa.Array:
        try:
            return function(expr, values)
        except (ArithmeticError, pa.ArrowInvalid):
            valid = reduce(pc.and_, (value.is_valid() for value in values))
            function(expr, [value.filter(valid) for value in values])
            raise NeedsSparkError(expr.sql()) from None

    return evaluate_call
