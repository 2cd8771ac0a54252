"""Unions: several sources as one, their columns by position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.draft import Draft, listed
from watersmeet.analyze.event_time import is_sound
from watersmeet.analyze.heartbeats import heartbeat_of
from watersmeet.catalog import Field, Source, Watermark
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr, Reference
from watersmeet.plan.nodes import Scan, Union


def parts_of(draft: Draft, union: Union) -> tuple[Source, ...]:
    """The sources of a union in order; one that is not declared has no columns."""
    return tuple(draft.sources.get(scan.source.lower(), Source(scan.source, ())) for scan in union.scans)


def merged(draft: Draft, union: Union) -> Source:
    """A union as one source: the columns of its first part, and the watermarks that all parts have.

    A union that has been refused has no columns, so that nothing is said of what follows from that.
    """
    first, *others = parts = parts_of(draft, union)
    is_known = all(is_sound(part) and part.kind == "stream" for part in parts)
    if not is_known or any(_difference(first, other) for other in others):
        return Source(union.alias, (), span=union.span)
    positions = range(len(first.fields))
    fields = tuple(replace(first.fields[i], nullable=any(p.fields[i].nullable for p in parts)) for i in positions)
    marks = tuple(mark for i in positions if (mark := _mark(i, parts)) is not None)
    return Source(union.alias, fields, marks, span=union.span, order=_order(parts), order_span=union.span)


def _order(parts: tuple[Source, ...]) -> str | None:
    """The column that orders the rows of all parts; None if they have none in common."""
    positions = {next((i for i, f in enumerate(p.fields) if _is_order(p, f)), None) for p in parts}
    position = positions.pop() if len(positions) == 1 else None
    return None if position is None else parts[0].fields[position].name


def _is_order(part: Source, field: Field) -> bool:
    return part.order is not None and field.name.lower() == part.order.lower()


def check_union(draft: Draft, union: Union) -> Iterator[Refusal]:
    """Parts that do not fit together."""
    first, *others = parts_of(draft, union)
    for scan, other in zip(union.scans[1:], others, strict=True):
        difference = _difference(first, other) if first.fields and other.fields else None
        if difference is not None:
            hint = f"declare {other.name} with the columns of {first.name}, in the same order."
            what = f"The union {union.alias}"
            yield draft.refusal("TYPE_MISMATCH", scan.span, expression=what, reason=difference, hint=hint)
    if merged(draft, union).fields and len({beat and beat.sql() for beat in _heartbeats(draft, union)}) > 1:
        names = listed(dict.fromkeys(scan.source for scan in union.scans))
        what = f"A union of {names}, whose heartbeats differ,"
        hint = "declare the same HEARTBEAT WHEN for all of them, or for none."
        yield draft.refusal("UNSUPPORTED_STATEMENT", union.span, what=what, hint=hint)


def union_heartbeat(draft: Draft, union: Union) -> Expr | None:
    """The condition under which a row of the union is a heartbeat, which is that of all its parts."""
    return next(_heartbeats(draft, union), None)


def _heartbeats(draft: Draft, union: Union) -> Iterator[Expr | None]:
    fields = merged(draft, union).fields
    for scan, part in zip(union.scans, parts_of(draft, union), strict=True):
        found = heartbeat_of(draft, Scan(scan.source, union.alias, scan.span))
        yield _by_position(found, part, fields) if found is not None and fields else None


def _by_position(condition: Expr, part: Source, fields: tuple[Field, ...]) -> Expr:
    names = dict(zip((field.name for field in part.fields), (field.name for field in fields), strict=True))

    def renamed(ref: Reference) -> Reference:
        return replace(ref, name=names[ref.name])

    return condition.map_references(renamed)


def _mark(position: int, parts: tuple[Source, ...]) -> Watermark | None:
    """The watermark of a column, if all parts have one: it is idle when all of them are."""
    marks = [part.watermark(part.fields[position].name) for part in parts]
    if marks[0] is None or None in marks:
        return None
    idle = [mark.idle for mark in marks if mark is not None and mark.idle is not None]
    return replace(marks[0], idle=max(idle) if len(idle) == len(marks) else None)


def _difference(first: Source, other: Source) -> str | None:
    """What keeps two parts of a union apart; None if their columns have the same types."""
    if len(first.fields) != len(other.fields):
        return f"{first.name} has {len(first.fields)} columns, {other.name} has {len(other.fields)}."
    for i, (mine, theirs) in enumerate(zip(first.fields, other.fields, strict=True), start=1):
        if _normal(mine.type) != _normal(theirs.type):
            columns = (f"`{mine.name}` {mine.type} in {first.name}", f"`{theirs.name}` {theirs.type} in {other.name}")
            return f"column {i} is {' and '.join(columns)}."
    return None


def _normal(type: str) -> str:
    return "".join(type.upper().split())
