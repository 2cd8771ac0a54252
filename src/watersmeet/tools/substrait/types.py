"""Types and literals of a Substrait plan in Spark's DDL, and the refusal of those without a counterpart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any

from watersmeet.catalog import Field
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.logical.expressions import Expr, Value
from watersmeet.logical.words import word
from watersmeet.schema import TYPES, Type, parse_type

_SIMPLE = {kind: type_.name for type_ in TYPES for kind in type_.substrait}
"""The simple types. Spark has no nanoseconds: such a column becomes one of microseconds."""


def refuse_unsupported(construct: str, place: str, hint: str, reason: str = "") -> WatersmeetError:
    """The refusal of a part of a plan; ``place`` is the way to it from the root."""
    reason = f": {reason}" if reason else ""
    return refuse("UNSUPPORTED_SUBSTRAIT", what=construct, place=place, hint=hint, reason=reason)


def spark_type(type_: Any, place: str, names: Iterator[str] | None = None) -> str:
    """The type in Spark's DDL; ``names`` are those of the fields of structs inside it, each before those inside it."""
    kind = type_.WhichOneof("kind")
    if kind in _SIMPLE:
        return format_type(Type(_SIMPLE[kind]))
    if kind == "decimal":
        return f"DECIMAL({type_.decimal.precision},{type_.decimal.scale})"
    if kind == "list":
        return f"ARRAY<{spark_type(type_.list.type, place, names)}>"
    if kind == "map":
        return f"MAP<{spark_type(type_.map.key, place, names)}, {spark_type(type_.map.value, place, names)}>"
    if kind == "struct" and names is not None:
        fields = (f"{word(next(names, ''))}: {spark_type(inner, place, names)}" for inner in type_.struct.types)
        return f"STRUCT<{', '.join(fields)}>"
    hint = "cast the column to a type such as i64, string or precision_timestamp in the producer."
    reason = "its fields have no names" if kind == "struct" else "Spark has no type for its values"
    raise refuse_unsupported(f"The type {kind or 'without a kind'}", place, hint, reason)


def fields_of(schema: Any, place: str) -> tuple[Field, ...]:
    """The columns of a named struct. All may be NULL, because a promise of none would not be checked."""
    names = iter(schema.names)
    fields = tuple(Field(next(names, ""), spark_type(type_, place, names)) for type_ in schema.struct.types)
    if next(names, None) is not None or any(not field.name for field in fields):
        hint = "write the plan again: every column, and every field of a struct, has one name."
        raise refuse_unsupported("A schema with more or fewer names than columns", place, hint)
    return fields


def names_inside(type_: str) -> int:
    """The number of fields of the structs inside a type.

    >>> names_inside("ARRAY<STRUCT<a: INT, b: STRUCT<c: INT>>>"), names_inside("MAP<STRING, INT>")
    (3, 0)
    """
    return _names_inside(parse_type(type_))


def _names_inside(type_: Type) -> int:
    own = len(type_.parts) if type_.name == "STRUCT" else 0
    return own + sum(_names_inside(part.type) for part in type_.parts)


def format_type(type_: Type) -> str:
    """A parsed type as text.

    >>> format_type(parse_type("STRUCT<a: INT, b: MAP<STRING, DECIMAL(10,2)>>"))
    'STRUCT<a: INT, b: MAP<STRING, DECIMAL(10,2)>>'
    """
    if type_.name == "INTERVAL":
        return "INTERVAL DAY TO SECOND"
    if type_.name == "STRUCT":
        return f"STRUCT<{', '.join(f'{word(part.name)}: {format_type(part.type)}' for part in type_.parts)}>"
    numbers = f"({','.join(map(str, type_.numbers))})" if type_.numbers else ""
    parts = f"<{', '.join(format_type(part.type) for part in type_.parts)}>" if type_.parts else ""
    return type_.name + numbers + parts


_EXACT = Context(prec=80)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000


@dataclass(frozen=True)
class TypedExpr:
    """An expression and its type in Spark's DDL; None if it is not in the plan."""

    expr: Expr
    type: str | None = None


def read_literal(literal: Any, place: str) -> TypedExpr:
    """A literal of the plan."""
    kind = literal.WhichOneof("kind")
    if kind == "null":
        type_ = spark_type(literal.null, place)
        return TypedExpr(Expr("cast", (_literal("NULL", None),), value=type_), type_)
    if kind not in _READERS:
        hint = "compute the value in the producer, or write it as a string and cast it."
        raise refuse_unsupported(f"A literal {kind or 'without a value'}", place, hint)
    try:
        return _READERS[kind](getattr(literal, kind))
    except (OverflowError, ValueError) as error:
        hint = "write dates and times of the years 1 to 9999 in whole microseconds, and decimals of 38 digits at most."
        raise refuse_unsupported(f"The literal {kind}", place, hint, str(error)) from None


def text_literal(value: str) -> Expr:
    r"""A string. Quotes, backslashes and what cannot be printed are escaped, so that Spark reads the same value.

    >>> print(text_literal("it's").text)
    'it\'s'
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    shown = "".join(c if c.isprintable() or ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in escaped)
    return Expr("literal", text=f"'{shown}'", value=value)


def _literal(text: str, value: Value) -> Expr:
    return Expr("literal", text=text, value=value)


def _integer(type_: str, suffix: str, value: int) -> TypedExpr:
    return TypedExpr(_literal(f"{value}{suffix}", value), type_)


def _float(type_: str, suffix: str, value: float) -> TypedExpr:
    if math.isfinite(value):
        return TypedExpr(_literal(f"{value!r}{suffix}".upper().replace("E+", "E"), value), type_)
    name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return TypedExpr(Expr("cast", (text_literal(name),), value=type_), type_)


def _decimal(literal: Any) -> TypedExpr:
    if not 0 <= literal.scale <= literal.precision <= 38:
        raise ValueError(f"a decimal of {literal.precision} digits, {literal.scale} of them after the point")
    unscaled = int.from_bytes(literal.value, "little", signed=True)
    value = Decimal(unscaled).scaleb(-literal.scale, _EXACT)
    type_ = f"DECIMAL({literal.precision},{literal.scale})"
    return TypedExpr(Expr("cast", (_literal(f"{value:f}BD", value),), value=type_), type_)


def _timestamp(type_: str, literal: Any) -> TypedExpr:
    """A time as older plans write it, in microseconds, or as a number of parts of a second."""
    parts = literal if isinstance(literal, int) else _to_microseconds(literal.value, literal.precision)
    moment, zone = _EPOCH + timedelta(microseconds=parts), "Z" if type_ == "TIMESTAMP" else ""
    return TypedExpr(Expr("other", text=f"{type_} '{moment:%Y-%m-%d %H:%M:%S.%f}{zone}'"), type_)


def _to_microseconds(value: int, precision: int) -> int:
    if not 0 <= precision <= 12:
        raise ValueError(f"a time of {precision} digits after the second")
    if precision <= 6:
        return value * 10 ** (6 - precision)
    whole, rest = divmod(value, 10 ** (precision - 6))
    if rest:
        raise ValueError("Spark counts time in microseconds")
    return whole


def _days_and_seconds(literal: Any) -> TypedExpr:
    is_old = literal.WhichOneof("kind") == "microseconds"
    parts = literal.microseconds if is_old else _to_microseconds(literal.subseconds, literal.precision)
    value = (literal.days * 86_400 + literal.seconds) * 1_000_000 + parts
    seconds = f"{'-' if value < 0 else ''}{abs(value) // 1_000_000}.{abs(value) % 1_000_000:06}"
    # A date and an interval of days give a date, as in the plan; an interval of seconds would give a timestamp.
    text = f"INTERVAL '{value // _DAY}' DAY" if value % _DAY == 0 else f"INTERVAL '{seconds}' SECOND"
    return TypedExpr(Expr("interval", text=text, value=value), "INTERVAL DAY TO SECOND")


def _years_and_months(literal: Any) -> TypedExpr:
    months = literal.years * 12 + literal.months
    return TypedExpr(Expr("other", text=f"INTERVAL '{months}' MONTH"))


def _compound(literal: Any) -> TypedExpr:
    if not literal.interval_year_to_month.years and not literal.interval_year_to_month.months:
        return _days_and_seconds(literal.interval_day_to_second)
    if literal.HasField("interval_day_to_second") and literal.interval_day_to_second.ByteSize():
        days = _days_and_seconds(literal.interval_day_to_second)
        if days.expr.value:
            raise ValueError("Spark has no interval of months and days")
    return _years_and_months(literal.interval_year_to_month)


_READERS: dict[str, Callable[[Any], TypedExpr]] = {
    "boolean": lambda value: TypedExpr(_literal("TRUE" if value else "FALSE", value), "BOOLEAN"),
    "i8": partial(_integer, "TINYINT", "Y"),
    "i16": partial(_integer, "SMALLINT", "S"),
    "i32": partial(_integer, "INT", ""),
    "i64": partial(_integer, "BIGINT", "L"),
    "fp32": partial(_float, "FLOAT", "F"),
    "fp64": partial(_float, "DOUBLE", "D"),
    "string": lambda value: TypedExpr(text_literal(value), "STRING"),
    "fixed_char": lambda value: TypedExpr(text_literal(value), "STRING"),
    "var_char": lambda literal: TypedExpr(text_literal(literal.value), "STRING"),
    "binary": lambda value: TypedExpr(Expr("other", text=f"X'{value.hex().upper()}'"), "BINARY"),
    "fixed_binary": lambda value: TypedExpr(Expr("other", text=f"X'{value.hex().upper()}'"), "BINARY"),
    "decimal": _decimal,
    "date": lambda days: TypedExpr(Expr("other", text=f"DATE '{date(1970, 1, 1) + timedelta(days=days)}'"), "DATE"),
    "timestamp": partial(_timestamp, "TIMESTAMP_NTZ"),
    "timestamp_tz": partial(_timestamp, "TIMESTAMP"),
    "precision_timestamp": partial(_timestamp, "TIMESTAMP_NTZ"),
    "precision_timestamp_tz": partial(_timestamp, "TIMESTAMP"),
    "interval_day_to_second": _days_and_seconds,
    "interval_year_to_month": _years_and_months,
    "interval_compound": _compound,
}
