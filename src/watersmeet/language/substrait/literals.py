"""Literals of a Substrait plan as Spark writes them, with exactly the type that the plan gives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from watersmeet.language.substrait.types import spark_type, unsupported
from watersmeet.plan.expressions import Expr, Value

_EXACT = Context(prec=80)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000


@dataclass(frozen=True)
class Typed:
    """An expression and its type in Spark's DDL; None where the plan does not tell it."""

    expr: Expr
    type: str | None = None


def typed_literal(literal: Any, place: str) -> Typed:
    """A literal of the plan."""
    kind = literal.WhichOneof("kind")
    if kind == "null":
        type_ = spark_type(literal.null, place)
        return Typed(Expr("cast", (_written("NULL", None),), value=type_), type_)
    if kind not in _READERS:
        hint = "compute the value in the producer, or write it as a string and cast it."
        raise unsupported(f"A literal {kind or 'without a value'}", place, hint)
    try:
        return _READERS[kind](getattr(literal, kind))
    except (OverflowError, ValueError) as error:
        hint = "write dates and times of the years 1 to 9999 in whole microseconds, and decimals of 38 digits at most."
        raise unsupported(f"The literal {kind}", place, hint, str(error)) from None


def text_literal(value: str) -> Expr:
    r"""A string. Quotes, backslashes and what cannot be printed are escaped, so that Spark reads the same value.

    >>> print(text_literal("it's").text)
    'it\'s'
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    shown = "".join(c if c.isprintable() or ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in escaped)
    return Expr("literal", text=f"'{shown}'", value=value)


def _written(text: str, value: Value) -> Expr:
    return Expr("literal", text=text, value=value)


def _integer(type_: str, suffix: str) -> Callable[[int], Typed]:
    return lambda value: Typed(_written(f"{value}{suffix}", value), type_)


def _float(type_: str, suffix: str) -> Callable[[float], Typed]:
    def read(value: float) -> Typed:
        if math.isfinite(value):
            return Typed(_written(f"{value!r}{suffix}".upper().replace("E+", "E"), value), type_)
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return Typed(Expr("cast", (text_literal(name),), value=type_), type_)

    return read


def _decimal(literal: Any) -> Typed:
    if not 0 <= literal.scale <= literal.precision <= 38:
        raise ValueError(f"a decimal of {literal.precision} digits, {literal.scale} of them behind the point")
    unscaled = int.from_bytes(literal.value, "little", signed=True)
    value = Decimal(unscaled).scaleb(-literal.scale, _EXACT)
    type_ = f"DECIMAL({literal.precision},{literal.scale})"
    return Typed(Expr("cast", (_written(f"{value:f}BD", value),), value=type_), type_)


def _date(days: int) -> Typed:
    return Typed(Expr("other", text=f"DATE '{date(1970, 1, 1) + timedelta(days=days)}'"), "DATE")


def _timestamp(type_: str) -> Callable[[Any], Typed]:
    zone = "Z" if type_ == "TIMESTAMP" else ""

    def read(literal: Any) -> Typed:
        moment = _EPOCH + timedelta(microseconds=_microseconds(literal))
        return Typed(Expr("other", text=f"{type_} '{moment:%Y-%m-%d %H:%M:%S.%f}{zone}'"), type_)

    return read


def _microseconds(literal: Any) -> int:
    """A time as older plans write it, in microseconds, or as a number of parts of a second."""
    if isinstance(literal, int):
        return literal
    return _scaled(literal.value, literal.precision)


def _scaled(value: int, precision: int) -> int:
    if not 0 <= precision <= 12:
        raise ValueError(f"a time of {precision} digits behind the second")
    if precision <= 6:
        return value * 10 ** (6 - precision)
    whole, rest = divmod(value, 10 ** (precision - 6))
    if rest:
        raise ValueError("Spark counts time in microseconds")
    return whole


def _days_and_seconds(literal: Any) -> Typed:
    is_old = literal.WhichOneof("kind") == "microseconds"
    parts = literal.microseconds if is_old else _scaled(literal.subseconds, literal.precision)
    value = (literal.days * 86_400 + literal.seconds) * 1_000_000 + parts
    seconds = f"{'-' if value < 0 else ''}{abs(value) // 1_000_000}.{abs(value) % 1_000_000:06}"
    # A date and an interval of days give a date, as in the plan; an interval of seconds would give a timestamp.
    text = f"INTERVAL '{value // _DAY}' DAY" if value % _DAY == 0 else f"INTERVAL '{seconds}' SECOND"
    return Typed(Expr("interval", text=text, value=value), "INTERVAL DAY TO SECOND")


def _years_and_months(literal: Any) -> Typed:
    months = literal.years * 12 + literal.months
    return Typed(Expr("other", text=f"INTERVAL '{months}' MONTH"))


def _compound(literal: Any) -> Typed:
    if not literal.interval_year_to_month.years and not literal.interval_year_to_month.months:
        return _days_and_seconds(literal.interval_day_to_second)
    if literal.HasField("interval_day_to_second") and literal.interval_day_to_second.ByteSize():
        days = _days_and_seconds(literal.interval_day_to_second)
        if days.expr.value:
            raise ValueError("Spark has no interval of months and days")
    return _years_and_months(literal.interval_year_to_month)


_READERS: dict[str, Callable[[Any], Typed]] = {
    "boolean": lambda value: Typed(_written("TRUE" if value else "FALSE", value), "BOOLEAN"),
    "i8": _integer("TINYINT", "Y"),
    "i16": _integer("SMALLINT", "S"),
    "i32": _integer("INT", ""),
    "i64": _integer("BIGINT", "L"),
    "fp32": _float("FLOAT", "F"),
    "fp64": _float("DOUBLE", "D"),
    "string": lambda value: Typed(text_literal(value), "STRING"),
    "fixed_char": lambda value: Typed(text_literal(value), "STRING"),
    "var_char": lambda literal: Typed(text_literal(literal.value), "STRING"),
    "binary": lambda value: Typed(Expr("other", text=f"X'{value.hex().upper()}'"), "BINARY"),
    "fixed_binary": lambda value: Typed(Expr("other", text=f"X'{value.hex().upper()}'"), "BINARY"),
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp("TIMESTAMP_NTZ"),
    "timestamp_tz": _timestamp("TIMESTAMP"),
    "precision_timestamp": _timestamp("TIMESTAMP_NTZ"),
    "precision_timestamp_tz": _timestamp("TIMESTAMP"),
    "interval_day_to_second": _days_and_seconds,
    "interval_year_to_month": _years_and_months,
    "interval_compound": _compound,
}
