"""Types as far as declarations give them, fields inside them, and event-time columns.

An event time has a type that can be one, belongs to a relation, and takes amounts that fit it. Only Spark knows the
types of what Spark computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.logical.expressions import Expr, Reference, windows_in
from watersmeet.logical.nodes import Scan
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    TimeColumn,
)
from watersmeet.schema import BY_NAME, TimeType, parse_type_name, time_type_of


@dataclass(frozen=True)
class EventTimeColumn:
    """A watermarked column of a relation, with its type."""

    column: TimeColumn
    type: str
    family: TimeType

    def __str__(self) -> str:
        return str(self.column)


def is_lossless_cast(type: str, cast: str) -> bool:
    """True if a cast from the one type to the other changes no value and stays in the family of event times.

    >>> is_lossless_cast("INT", "BIGINT"), is_lossless_cast("BIGINT", "INT"), is_lossless_cast("DATE", "TIMESTAMP")
    (True, False, False)
    """
    family = time_type_of(type)
    if family != "integer" or time_type_of(cast) != "integer":
        return family is not None and family == time_type_of(cast)
    return BY_NAME[type.strip().upper()].width <= BY_NAME[cast.strip().upper()].width


def can_hold(type: str, number: int) -> bool:
    """True if an integer type can hold a number.

    >>> can_hold("TINYINT", -128), can_hold("TINYINT", 128), can_hold("DATE", 5)
    (True, False, False)
    """
    reach = 2 ** (8 * BY_NAME[type.strip().upper()].width - 1) if time_type_of(type) == "integer" else 0
    return -reach <= number < reach


def fits(amount: Amount, family: TimeType) -> bool:
    """True if a time of that family can lag behind or lie within that amount."""
    return amount.is_interval == (family != "integer")


def example_lag(column: str, family: TimeType | None) -> str:
    """A watermark for a column of that family, as one writes it."""
    lag = "5" if family == "integer" else "INTERVAL 1 DAY" if family == "date" else "INTERVAL 5 SECONDS"
    return f"`WATERMARK FOR {column} AS {column} - {lag}`"


def wrong_unit(amount: Amount) -> str:
    """The reason why an amount does not fit a time."""
    if amount.is_interval:
        return "an integer event time is counted in plain numbers"
    return "a number without a unit"


def is_sound(source: Source) -> bool:
    """True if the source is known and each of its watermarks is a promise about an event time."""
    return bool(source.fields) and all(
        (column := source.field(watermark.column))
        and (family := time_type_of(column.type))
        and fits(watermark.lag, family)
        for watermark in source.watermarks
    )


def query_watermarks(source: Source, scan: Scan) -> tuple[Watermark, ...]:
    """The watermarks that a query gives a source, their columns spelled as the source does; the last one counts."""
    named = ((watermark, source.field(watermark.column)) for watermark in scan.watermarks)
    watermarks = {field.name: replace(watermark, column=field.name) for watermark, field in named if field is not None}
    return tuple(watermarks.values())


def with_query_watermarks(source: Source, scan: Scan) -> Source:
    """The source with the watermarks that the query itself gives it, in place of declared ones of the same column.

    If the query says which times count, it has no others.
    """
    overrides = query_watermarks(source, scan)
    names = {watermark.column.lower() for watermark in overrides}
    declared = (watermark for watermark in source.watermarks if watermark.column.lower() not in names)
    watermarks = (*declared, *overrides) if overrides else source.watermarks
    if scan.times:
        chosen = {name.lower() for name in scan.times}
        watermarks = tuple(watermark for watermark in watermarks if watermark.column.lower() in chosen)
    return replace(source, watermarks=watermarks)


def event_times(relation: AnalyzedRelation) -> tuple[EventTimeColumn, ...]:
    """The watermarked columns that a relation shows, from left to right."""
    if isinstance(relation, AnalyzedLeaf):
        return times_of(relation.alias, relation.source)
    return tuple(
        time
        for port, side in enumerate(relation.inputs)
        if not isinstance(relation, AnalyzedJoin) or relation.shows_times(port)
        for time in event_times(side)
    )


def times_of(alias: str, source: Source) -> tuple[EventTimeColumn, ...]:
    """The watermarked columns of a source."""
    return tuple(
        EventTimeColumn(TimeColumn(alias, column.name), column.type, family)
        for watermark in source.watermarks
        if (column := source.field(watermark.column)) and (family := time_type_of(column.type))
    )


def find_event_time(column: Expr, times: tuple[EventTimeColumn, ...]) -> EventTimeColumn | None:
    """The event time that a column is; None if it is not one."""
    if column.op != "column":
        return None
    [ref] = column.refs
    named = (ref.source, ref.name)
    return None if ref.path else next((t for t in times if (t.column.alias, t.column.name) == named), None)


def time_of_window_end(column: Expr, relation: AnalyzedRelation) -> EventTimeColumn | None:
    """The event time whose window ends at a column of the same row; None if it is not such an end."""
    end_column = _time_of_end(column.refs[0], relation) if column.op == "column" else None
    return next((time for time in event_times(relation) if time.column == end_column), None)


def _time_of_end(ref: Reference, relation: AnalyzedRelation) -> TimeColumn | None:
    if isinstance(relation, AnalyzedLeaf):
        is_own = ref.source == relation.alias and not ref.path
        time = dict(relation.source.ends).get(ref.name) if is_own else None
        return None if time is None else TimeColumn(relation.alias, time)
    if isinstance(relation, AnalyzedLateral) and relation.array.op == "windows" and ref.source == relation.alias:
        time = relation.array.args[0].refs[0]
        return TimeColumn(time.source, time.name) if ref.path == ("end",) and not time.path else None
    return next((end_column for side in relation.inputs if (end_column := _time_of_end(ref, side)) is not None), None)


def window_of_end(expr: Expr, relation: AnalyzedRelation) -> str | None:
    """A name for the window that a column of a row ends; None if it ends none."""
    ref = expr.refs[0] if expr.op == "column" else None
    if ref is None or _time_of_end(ref, relation) is None:
        return None
    return ref.source if ref.path else ref.column


@dataclass(frozen=True)
class WindowBound:
    """A column that bounds a window around ``time``: its end, or its start, at most ``length`` before the end.

    ``window``: a name for the window by its end; None: the end is not shown. ``shortest``: a start is at least so long
    before the end.
    """

    time: TimeColumn
    length: int
    window: str | None
    shortest: int = 0


def window_of_start(expr: Expr, relation: AnalyzedRelation) -> WindowBound | None:
    """The window that a column of a row starts; None if it starts none."""
    return _window_of_start(expr.refs[0], relation) if expr.op == "column" else None


def _window_of_start(ref: Reference, relation: AnalyzedRelation) -> WindowBound | None:
    if isinstance(relation, AnalyzedLeaf):
        is_own = ref.source == relation.alias and not ref.path
        start = next((start for start in relation.source.starts if is_own and start.column == ref.name), None)
        if start is None:
            return None
        window = f"{relation.alias}.{start.end}" if start.end else None
        return WindowBound(TimeColumn(relation.alias, start.time), start.length, window, start.shortest)
    if isinstance(relation, AnalyzedLateral) and relation.array.op == "windows" and ref.source == relation.alias:
        time = relation.array.args[0].refs[0]
        if ref.path != ("start",) or time.path:
            return None
        windows = windows_in(relation.array)
        return WindowBound(TimeColumn(time.source, time.name), windows.longest, ref.source, windows.first_end)
    return next((bound for side in relation.inputs if (bound := _window_of_start(ref, side)) is not None), None)


def window_bound(expr: Expr, relation: AnalyzedRelation) -> WindowBound | None:
    """The window that a column of a row starts or ends, if its time is an event time of the relation."""
    end = time_of_window_end(expr, relation)
    if end is not None:
        return WindowBound(end.column, 0, window_of_end(expr, relation))
    start = window_of_start(expr, relation)
    is_timed = start is not None and any(time.column == start.time for time in event_times(relation))
    return start if is_timed else None


def is_padded(alias: str, relation: AnalyzedRelation) -> bool:
    """Whether a relation has rows that show no part of a source."""
    for port, side in enumerate(relation.inputs):
        if alias in side.aliases:
            pads = isinstance(relation, AnalyzedJoin) and relation.pads(port) is not None
            return pads or (not isinstance(relation, AnalyzedLeaf) and is_padded(alias, side))
    return False


def fields_inside(type: str) -> tuple[Field, ...] | None:
    """The fields of a STRUCT, empty for a plain type, None where only Spark knows (arrays, maps, variants).

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
    """The type of an array's elements; "" where only Spark knows it; None for other types.

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
    """The type of a column, of a field inside one, of a cast or of windows; None where only Spark knows it.

    >>> from watersmeet.logical.expressions import column
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
    """Whether Spark may get tests joined by OR as an IN list: equalities of one value with constants.

    IN compares all of them in one type, an equality in that of its two sides. So they must have one type, that of the
    value; where only Spark knows the type of the value, it is a list if its author wrote IN.
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


def can_hold_constant(type: str, value: Expr) -> bool:  # noqa: PLR0911 - one case per kind of value
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
