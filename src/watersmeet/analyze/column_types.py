"""Types as far as declarations tell them, and the fields inside them; what Spark computes, only Spark knows."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from watersmeet.analyze.event_time import can_hold, time_type_of
from watersmeet.catalog import Field, Source
from watersmeet.plan.expressions import Expr
from watersmeet.type_names import parse_type_name


def fields_inside(type: str) -> tuple[Field, ...] | None:
    """The fields of a STRUCT, nothing for a plain type, None where only Spark can tell (arrays, maps, variants).

    >>> fields_inside("STRUCT<city: STRING, geo: STRUCT<x: INT, y: INT>>")[1].type
    'STRUCT<x: INT, y: INT>'
    >>> fields_inside("BIGINT")
    ()
    """
    word = type.strip().upper()
    if word.startswith(("ARRAY", "MAP", "VARIANT")) or word == "":
        return None
    if not word.startswith("STRUCT"):
        return ()
    inner = type.strip()[len("STRUCT") :].strip()
    return tuple(_field(part) for part in _split(inner[1:-1]))


def element_of(type: str) -> str | None:
    """The type of an array's elements; "" where only Spark can tell; None for what is no array.

    >>> element_of("ARRAY<STRUCT<x: INT>>"), element_of(""), element_of("INT")
    ('STRUCT<x: INT>', '', None)
    """
    text = type.strip()
    if text == "":
        return ""
    if not text.upper().startswith("ARRAY"):
        return None
    return text[len("ARRAY") :].strip()[1:-1].strip()


def _field(text: str) -> Field:
    if text.startswith("`"):
        end = text.index("`", 1)
        return Field(text[1:end], _type(text[end + 1 :]))
    end = next((i for i, letter in enumerate(text) if letter in ": "), len(text))
    return Field(text[:end], _type(text[end:]))


def _type(text: str) -> str:
    return text.strip().removeprefix(":").strip()


def _split(text: str) -> list[str]:
    parts, depth, start = list[str](), 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def type_of(expr: Expr, sources: Mapping[str, Source]) -> str | None:
    """The type of a column, of a field inside one, of a cast or of windows; None where only Spark can tell.

    >>> from watersmeet.plan.expressions import column
    >>> type_of(Expr("cast", (column(("a",)),), value="BIGINT"), {})
    'BIGINT'
    """
    if expr.op == "cast":
        return str(expr.value)
    if expr.op == "windows":
        time = type_of(expr.args[0], sources)
        return None if time is None else f"ARRAY<STRUCT<start: {time}, end: {time}>>"
    if expr.op != "column":
        return None
    [ref] = expr.refs
    source = sources.get(ref.source)
    field = source.field(ref.name) if source is not None else None
    for part in ref.path:
        fields = fields_inside(field.type) if field is not None else None
        field = next((f for f in fields or () if f.name.lower() == part.lower()), None)
    return field.type or None if field is not None else None


def class_of(type: str) -> str:
    """The kind of values that a type has: types of one class compare with each other.

    >>> class_of("DECIMAL(10,2)"), class_of("STRING COLLATE UTF8_LCASE"), class_of("ARRAY<INT>")
    ('number', 'text', 'array')
    """
    type_name = parse_type_name(type)
    return type_name.values if type_name else type.strip().lower()


def is_same_type(type: str, other: str) -> bool:
    """True if two types are one, however they are spelled.

    >>> is_same_type("decimal( 10, 2 )", "DECIMAL(10,2)")
    True
    """
    return "".join(type.upper().split()) == "".join(other.upper().split())


def is_list(tests: tuple[Expr, ...], sources: Mapping[str, Source], *, is_written: bool) -> bool:
    """Whether Spark may be told of tests that are joined by OR as of a list: equalities of one value with constants.

    IN compares all of them in one type, an equality in that of its two sides. So they are of one kind, that of the
    value; where only Spark knows the type of the value, a list is one if its author wrote IN.
    """
    if any(t.op != "=" or t.args[1].op != "literal" for t in tests):
        return False
    value = tests[0].args[0]
    if not is_written and any(t.args[0] != value for t in tests):
        return False
    kinds, type_ = {type(test.args[1].value) for test in tests}, type_of(value, sources)
    if type_ is None:
        return is_written and kinds in ({int}, {str})
    return (kinds, class_of(type_)) in (({int}, "number"), ({str}, "text"))


def can_hold_constant(type: str, value: Expr) -> bool:
    """True if a column of that type can show a constant; what only Spark can evaluate is taken for granted.

    >>> can_hold_constant("TINYINT", Expr("literal", value=128))
    False
    >>> can_hold_constant("STRING", Expr("literal", value="x"))
    True
    """
    if value.op == "negate" and value.args[0].op == "literal":
        inner = value.args[0].value
        if isinstance(inner, bool) or not isinstance(inner, int | float | Decimal):
            return False
        return can_hold_constant(type, Expr("literal", value=-inner))
    if value.op == "cast":
        return class_of(str(value.value)) == class_of(type)
    if value.op == "interval":
        return class_of(type) == "interval"
    if value.op != "literal" or value.value is None:
        return True
    match value.value:
        case bool():
            return class_of(type) == "boolean"
        case str():
            return class_of(type) == "text"
        case int() as number:
            return class_of(type) == "number" and (time_type_of(type) is None or can_hold(type, number))
        case _:
            return class_of(type) == "number" and time_type_of(type) is None
