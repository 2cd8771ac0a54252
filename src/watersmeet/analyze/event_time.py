"""Event times: which types can be one, which columns of a relation are one, which amounts fit them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.plan.expressions import Expr, Reference, windows_in
from watersmeet.plan.nodes import Scan
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedLateral, AnalyzedLeaf, AnalyzedRelation, TimeColumn
from watersmeet.type_names import BY_NAME, TimeType, time_type_of


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
    """Why an amount does not fit a time."""
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
    """Which of the times a column is; None if it is none of them."""
    if column.op != "column":
        return None
    [ref] = column.refs
    named = (ref.source, ref.name)
    return None if ref.path else next((t for t in times if (t.column.alias, t.column.name) == named), None)


def time_of_window_end(column: Expr, relation: AnalyzedRelation) -> EventTimeColumn | None:
    """The event time around which a column of the same row ends a window; None if it is no such end."""
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


def window_of_start(expr: Expr, relation: AnalyzedRelation) -> tuple[str, int] | None:
    """The name of the window that a column of a row starts, and how long that is at most; None if it starts none."""
    return _window_of_start(expr.refs[0], relation) if expr.op == "column" else None


def _window_of_start(ref: Reference, relation: AnalyzedRelation) -> tuple[str, int] | None:
    if isinstance(relation, AnalyzedLeaf):
        is_own = ref.source == relation.alias and not ref.path
        named = (start for start in relation.source.starts if is_own and start[0] == ref.name)
        return next(((f"{relation.alias}.{end}", length) for _, end, length in named), None)
    if isinstance(relation, AnalyzedLateral) and relation.array.op == "windows" and ref.source == relation.alias:
        return (ref.source, windows_in(relation.array).longest) if ref.path == ("start",) else None
    return next(
        (start_column for side in relation.inputs if (start_column := _window_of_start(ref, side)) is not None), None
    )


def is_padded(alias: str, relation: AnalyzedRelation) -> bool:
    """Whether a relation has rows that show no part of a source."""
    for port, side in enumerate(relation.inputs):
        if alias in side.aliases:
            pads = isinstance(relation, AnalyzedJoin) and relation.pads(port) is not None
            return pads or (not isinstance(relation, AnalyzedLeaf) and is_padded(alias, side))
    return False
