"""Watermarks that are missing: which sources lack one, and what to declare."""

from __future__ import annotations

from watersmeet.analyze.draft import listed
from watersmeet.analyze.event_time import family_of
from watersmeet.catalog import NOWHERE, Field, Source
from watersmeet.plan.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedView,
)


def unmarked(side: AnalyzedRelation) -> tuple[AnalyzedLeaf, ...]:
    """The sources without a watermark under a join, as far as no join between has asked them for one."""
    match side:
        case AnalyzedScan() | AnalyzedView():
            return () if side.source.watermarks else (side,)
        case AnalyzedLateral():
            return unmarked(side.input)
        case AnalyzedJoin():
            return tuple(leaf for below in side.untimed for leaf in unmarked(below))
        case _:
            return ()


def watermark_hint(side: AnalyzedLeaf, compared: list[str]) -> str:
    """Which watermark to declare for a source; ``compared`` are its columns that a condition mentions."""
    source = side.source
    if isinstance(side, AnalyzedView):
        return "select a watermarked column in that view, as it is."
    column = _likely_time(source, compared)
    if side.parts:
        return _union_hint(side, column)
    if source.span == NOWHERE:
        if column is None or family_of(column.type) == "integer":
            return (
                f'add a TIMESTAMP column to the DataFrame {source.name}, and call `.withWatermark(name, "5 seconds")`.'
            )
        return f'call `.withWatermark("{column.name}", "5 seconds")` on the DataFrame {source.name}.'
    if column is None:
        return f"add a TIMESTAMP column to {source.name}, and `WATERMARK FOR` it."
    return f"add {_declaration(column)} to the columns of {source.name}."


def _union_hint(side: AnalyzedLeaf, column: Field | None) -> str:
    if column is None:
        return (
            f"add a TIMESTAMP column to {listed([part.name for part in side.parts])}, and `WATERMARK FOR` it in each."
        )
    position = side.source.fields.index(column)
    bare = {p.name: p.fields[position] for p in side.parts if not p.watermark(p.fields[position].name)}
    return "add " + listed([f"{_declaration(field)} to the columns of {name}" for name, field in bare.items()]) + "."


def _declaration(column: Field) -> str:
    family = family_of(column.type)
    lag = "5" if family == "integer" else "INTERVAL 1 DAY" if family == "date" else "INTERVAL 5 SECONDS"
    return f"`WATERMARK FOR {column.name} AS {column.name} - {lag}`"


def _likely_time(source: Source, compared: list[str]) -> Field | None:
    """A timestamp that the condition mentions, a timestamp, a date, or an integer that the condition mentions."""

    def likelihood(field: Field) -> tuple[bool, bool, bool]:
        family = family_of(field.type)
        return family != "integer", field.name in compared, family != "date"

    fields = [f for f in source.fields if (family := family_of(f.type)) and (family != "integer" or f.name in compared)]
    # Of integers the last one mentioned: keys are written before times.
    fields.sort(key=lambda field: compared.index(field.name) if field.name in compared else -1, reverse=True)
    return max(fields, key=likelihood, default=None)
