"""The SQL that follows from what was found: declarations with their lags, and the join with its bounds."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.advice.amounts import Unit, interval
from watersmeet.advice.pair import PairAdvice, SideAdvice
from watersmeet.catalog import Field, Source, Watermark
from watersmeet.plan.words import kind_in_words, word
from watersmeet.references import mask_secrets


def proposal_sql(pairs: Sequence[PairAdvice]) -> str:
    """A script of all proposals: each stream once, with the longest lag that was found for it; then the joins."""
    joined = [pair for pair in pairs if pair.chosen is not None]
    sides: dict[tuple[str, str], tuple[SideAdvice, Unit]] = {}
    for pair in joined:
        for side in pair.sides:
            at = (side.arrivals.name.lower(), side.time.lower())
            if at not in sides or sides[at][0].lag.lag < side.lag.lag:
                sides[at] = (side, pair.unit)
    named: dict[str, list[tuple[SideAdvice, Unit]]] = {}
    for (name, _), found in sides.items():
        named.setdefault(name, []).append(found)
    return "\n\n".join([*(_stream(found) for found in named.values()), *(_join(pair) for pair in joined)])


def _stream(sides: Sequence[tuple[SideAdvice, Unit]]) -> str:
    """A declaration like that of the source, with the watermarks that are proposed."""
    source = sides[0][0].arrivals.source
    proposed = {side.time.lower(): _watermark(source, side, unit) for side, unit in sides}
    unchanged = [
        _format_watermark(watermark) for watermark in source.watermarks if watermark.column.lower() not in proposed
    ]
    lines = [*(_column(field) for field in source.fields if not field.hidden), *proposed.values(), *unchanged]
    body = ",\n".join(f"    {line}" for line in lines)
    options = ", ".join(f"{_option(name)} {_text(mask_secrets(value))}" for name, value in source.options.items())
    using = f" USING {source.format}" if source.format else ""
    order = f" ORDER BY {word(source.order)}" if source.order else ""
    return f"CREATE STREAM {word(source.name)} (\n{body}\n){using}{f' OPTIONS ({options})' if options else ''}{order};"


def _column(field: Field) -> str:
    return f"{word(field.name)} {field.type}{'' if field.nullable else ' NOT NULL'}"


def _watermark(source: Source, side: SideAdvice, unit: Unit) -> str:
    name = word(side.time)
    declared = source.watermark(side.time)
    idle = declared.idle if declared is not None else None
    idle = side.pauses.idle_after if side.pauses is not None else idle
    after = "" if idle is None else f" IDLE AFTER {interval(idle)}"
    return f"WATERMARK FOR {name} AS {name} - {interval(side.lag.lag, unit)}{after}"


def _format_watermark(watermark: Watermark) -> str:
    name = word(watermark.column)
    idle = "" if watermark.idle is None else f" IDLE AFTER {interval(watermark.idle)}"
    lag = interval(watermark.lag.value, "time" if watermark.lag.is_interval else "number")
    return f"WATERMARK FOR {name} AS {name} - {lag}{idle}"


def _join(pair: PairAdvice) -> str:
    assert pair.chosen is not None
    left, right = (word(alias) for alias in pair.request.aliases)
    names = [word(side.arrivals.name) for side in pair.sides]
    times = [f"{alias}.{word(side.time)}" for alias, side in zip((left, right), pair.sides, strict=True)]
    equal = [f"{left}.{word(mine)} = {right}.{word(other)}" for mine, other in pair.keys]
    bounds = pair.chosen.bounds
    low = f" - {interval(bounds.earlier, pair.unit)}" if bounds.earlier else ""
    high = f" + {interval(bounds.later, pair.unit)}" if bounds.later else ""
    within = f"{times[1]} BETWEEN {times[0]}{low} AND {times[0]}{high}"
    kind = "" if pair.request.kind == "inner" else f"{kind_in_words(pair.request.kind)} "
    condition = "\n    AND ".join([*equal, within])
    return (
        f"SELECT STREAM {', '.join(_outputs(pair, left, right))}\n"
        f"FROM {names[0]} {left}\n{kind}JOIN {names[1]} {right}\n    ON {condition};"
    )


def _outputs(pair: PairAdvice, left: str, right: str) -> list[str]:
    """The columns of both sides; those of the right one under another name where both have it."""
    shows_both = pair.request.kind not in ("semi", "anti")
    mine, others = ([field.name for field in side.arrivals.source.fields if not field.hidden] for side in pair.sides)
    taken = {name.lower() for name in mine}
    outputs = [f"{left}.{word(name)}" for name in mine]
    for name in others if shows_both else ():
        own = f"{pair.request.aliases[1]}_{name}"
        outputs.append(f"{right}.{word(name)}{f' AS {word(own)}' if name.lower() in taken else ''}")
    return outputs


def _option(name: str) -> str:
    return name if all(part.isidentifier() for part in name.split(".")) else f"`{name}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
