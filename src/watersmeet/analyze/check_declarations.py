"""The pass that looks at what a script declares, before any query uses it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from watersmeet.analyze.event_time import example_lag, fits, time_type_of, wrong_unit
from watersmeet.analyze.watermarks import check_heartbeats
from watersmeet.catalog import Sink, Source, Span, Watermark, is_folder_name
from watersmeet.errors import Refusal, WatersmeetError, did_you_mean
from watersmeet.formats import check_source
from watersmeet.plan.nodes import Script
from watersmeet.plan.words import amount_in_words
from watersmeet.references import find_missing


def check_declarations(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """What is wrong with the sources and sinks themselves."""
    return (
        *_duplicates(script, "stream or table", script.sources),
        *_duplicates(script, "sink", script.sinks),
        *_check_folder_names(script),
        *check_heartbeats(script, sources),
        *(refusal for source in (*script.sources, *sources.values()) for refusal in _check_source(script, source)),
        *(refusal for sink in script.sinks for refusal in _check_fields(script, sink)),
    )


def check_references(script: Script) -> None:
    """Refuse options that refer to what is not there: no part of the analysis, which needs none of it."""
    refusals = [
        Refusal("MISSING_REFERENCE", {"name": f"The option {n} of {o.name}", "reason": reason}, script.place(o.span))
        for o in (*script.sources, *script.sinks)
        for n, value in o.options.items()
        for reason in find_missing(value)
    ]
    if refusals:
        raise WatersmeetError(refusals)


def _duplicates(script: Script, what: str, declarations: tuple[Source | Sink, ...]) -> Iterator[Refusal]:
    seen = set[str]()
    for declaration in declarations:
        if declaration.name.lower() in seen:
            yield _duplicate(script, declaration.name, f"a {what}", "give one of them another name.", declaration.span)
        seen.add(declaration.name.lower())


def _check_folder_names(script: Script) -> Iterator[Refusal]:
    """Names of sinks, and of tables, that are none of a folder: checkpoints and kept tables lie in one of that name."""
    tables = (source for source in script.sources if source.kind == "table")
    for what, declaration in (*(("sink", sink) for sink in script.sinks), *(("table", table) for table in tables)):
        name = declaration.name
        if not is_folder_name(name):
            example = "_".join(re.findall(r"\w+", name)) or "joined"
            parameters = {"what": what, "name": name, "example": example}
            yield Refusal("WRONG_NAME", parameters, script.place(declaration.span))


def _check_source(script: Script, source: Source) -> Iterator[Refusal]:
    yield from _check_fields(script, source)
    yield from (replace(wrong, place=script.place(source.span)) for wrong in check_source(source))
    yield from _check_order(script, source)
    for name in source.primary_key:
        if source.field(name) is None:
            yield _unknown_column(script, name, source, source.span)
    columns = [watermark.column.lower() for watermark in source.watermarks]
    for i, watermark in enumerate(source.watermarks):
        if watermark.column.lower() in columns[:i]:
            hint = f"keep one `WATERMARK FOR {watermark.column}`."
            yield _duplicate(script, watermark.column, "a watermarked column", hint, watermark.span)
        yield from check_watermark(script, source, watermark)


def _check_fields(script: Script, owner: Source | Sink) -> Iterator[Refusal]:
    seen = set[str]()
    for field in owner.fields:
        is_seen = field.name.lower() in seen
        seen.add(field.name.lower())
        if is_seen:
            yield _duplicate(
                script, field.name, f"a column of {owner.name}", "give one of them another name.", owner.span
            )


def _check_order(script: Script, source: Source) -> Iterator[Refusal]:
    if source.order is None:
        return
    field = source.field(source.order)
    if field is None:
        yield _unknown_column(script, source.order, source, source.order_span)
    elif time_type_of(field.type) is None:
        hint = "order it by a column of an integer type, TIMESTAMP or DATE."
        reason = f"`{field.name}` is {field.type}, which has no order"
        parameters = {"what": source.name, "reason": reason, "cause": f"{field.type}", "hint": hint}
        yield Refusal("WRONG_ORDER", parameters, script.place(source.order_span) or script.place(source.span))


def _unknown_column(script: Script, name: str, source: Source, span: Span) -> Refusal:
    suggestion = did_you_mean(name, [f.name for f in source.fields])
    parameters = {"column": name, "where": f"in {source.name}", "suggestion": suggestion}
    return Refusal("UNKNOWN_COLUMN", parameters, script.place(span) or script.place(source.span))


def check_watermark(script: Script, source: Source, watermark: Watermark) -> Iterator[Refusal]:
    """What is wrong with a watermark, whether the declaration of its source gives it or a query."""
    place = script.place(watermark.span) or script.place(source.span)
    field = source.field(watermark.column)
    if field is None:
        yield _unknown_column(script, watermark.column, source, watermark.span)
        return
    family = time_type_of(field.type)
    if family is None:
        # Of what a view computes only Spark knows the type, unless a cast tells it.
        type_name = field.type or f"not known before it runs; write `CAST({field.name} AS TIMESTAMP)` in the view"
        yield Refusal("WRONG_EVENT_TIME", {"column": field.name, "type": type_name}, place)
    elif not fits(watermark.lag, family):
        what = f"A lag of {amount_in_words(watermark.lag)}"
        hint = f"write {example_lag(field.name, family)}."
        parameters = {"what": what, "column": field.name, "type": field.type, "hint": hint}
        yield Refusal("WRONG_TIME_UNIT", {**parameters, "cause": wrong_unit(watermark.lag)}, place)


def _duplicate(script: Script, name: str, before: str, hint: str, span: Span) -> Refusal:
    return Refusal("DUPLICATE_NAME", {"name": name, "before": before, "hint": hint}, script.place(span))
