"""What explain says of a source: what it declares, what of it is read, and which rows."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.catalog import Source, Watermark
from watersmeet.duration import format_duration
from watersmeet.explanation.topology import PlanBlock, PlanStep
from watersmeet.formats import source_format
from watersmeet.plan.facts import Fact, conditions, texts
from watersmeet.plan.relation import AnalyzedScan
from watersmeet.plan.words import amount_in_words, word


def scan_block(scan: AnalyzedScan, read: Sequence[str] | None) -> PlanBlock:
    """A scan with its filters; ``read``: the columns that are read, if that is known."""
    heading = f"union AS {word(scan.alias)}" if scan.parts else source_heading(scan.source, scan.alias)
    beat = conditions("heartbeat", (scan.heartbeat,) if scan.heartbeat else (), "advances time, is not a row")
    filters = conditions("filter", scan.filters, "moved here from WHERE")
    data = {
        **_data(scan.source),
        "alias": scan.alias,
        "heartbeat": next(iter(texts((scan.heartbeat,) if scan.heartbeat else ())), None),
        "filters": texts(scan.filters),
        "read": None if read is None else list(read),
    }
    facts = (*_facts(scan.source), *read_facts(scan.source, read), beat)
    first = PlanStep("union" if scan.parts else "source", heading, facts, data)
    parts = tuple(
        PlanBlock(
            source_heading(part),
            (PlanStep("source", source_heading(part), _facts(part), _data(part)),),
            inputs_name="parts",
        )
        for part in scan.parts
    )
    return PlanBlock(
        heading, (first, *((PlanStep("filter", facts=(filters,)),) if scan.filters else ())), parts, "parts"
    )


def source_heading(source: Source, alias: str | None = None) -> str:
    """A source with what it is called and where it comes from.

    >>> source_heading(Source("orders", (), format="json"), "o")
    'stream orders AS o from json'
    """
    renamed = "" if alias in (None, source.name) else f" AS {word(alias or '')}"
    read = f" from {source.format}" if source.format else ""
    return f"{source.kind} {source.name}{renamed}{read}"


def _facts(source: Source) -> tuple[Fact, ...]:
    shown = [field for field in source.fields if not field.hidden]
    columns = ", ".join(f"{word(f.name)} {f.type}{'' if f.nullable else ' NOT NULL'}" for f in shown)
    return (
        ("columns", [columns, *([f"read from {source.read_from}"] if source.read_from else [])] if columns else []),
        ("key", [", ".join(word(name) for name in source.primary_key)] if source.primary_key else []),
        ("changes", [_changes(source)] if source.kind == "table" else []),
        ("watermark", [_watermark_words(source, watermark) for watermark in source.watermarks]),
        ("order", [word(source.order)] if source.order is not None else []),
    )


def _changes(source: Source) -> str:
    if source.changes is not None:
        return f"a change feed in the form of {source.changes}"
    return (
        "a row replaces the previous one with its key"
        if source.primary_key
        else "rows are inserted and deleted one by one"
    )


def read_facts(source: Source, read: Sequence[str] | None) -> tuple[Fact, ...]:
    """Which columns are read and which are not, if that is known.

    >>> from watersmeet.catalog import Field
    >>> read_facts(Source("orders", (Field("id", "BIGINT"), Field("note", "STRING"))), ["id"])
    (('read', ['id']), ('not read', ['note (not used)']))
    """
    if read is None:
        return ()
    names = [field.name for field in source.fields if not field.hidden]
    left_out = [word(name) for name in names if name not in read]
    if not left_out:
        return (("read", ["all columns"]),)
    return (
        ("read", [", ".join(word(name) for name in read) or "no column"]),
        ("not read", [f"{', '.join(left_out)} (not used)"]),
    )


def _watermark_words(source: Source, watermark: Watermark) -> str:
    idle = "" if watermark.idle is None else f", idle after {format_duration(watermark.idle)}"
    slowest = ", of the slowest partition" if source_format(source).has_partitions and source.kind == "stream" else ""
    return f"{watermark.column} - {amount_in_words(watermark.lag)}{slowest}{idle}"


def _data(source: Source) -> dict[str, object]:
    return {
        "scan": source.name,
        "kind": source.kind,
        "format": source.format,
        "columns_read_from": source.read_from or None,
        "columns": [{"name": f.name, "type": f.type, "nullable": f.nullable} for f in source.fields],
        "primary_key": list(source.primary_key),
        "changes": source.changes,
        "order": source.order,
        "watermarks": [
            {
                "column": watermark.column,
                "lag": amount_in_words(watermark.lag),
                "idle": None if watermark.idle is None else format_duration(watermark.idle),
            }
            for watermark in source.watermarks
        ],
    }
