"""Advice on two sides of a join as values, and the SQL that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.catalog import Field, Source, Watermark
from watersmeet.locations import mask_secrets
from watersmeet.logical.nodes import JoinKind
from watersmeet.logical.words import kind_in_words, word
from watersmeet.schema import TimeType, time_type_of
from watersmeet.tools.advise.arrivals import (
    Bools,
    Disorder,
    Ints,
    LagCost,
    Pauses,
    SampledRows,
    Skew,
    Unit,
    codes_of,
    common_type,
    disorder,
    interval,
    lags_of,
    numbers_of,
    pauses,
    skew,
)
from watersmeet.tools.advise.distances import (
    SHARES,
    Bounds,
    Distances,
    KeyedTimes,
    LikelyKey,
    bounds_of,
    distances,
    likely_keys,
)

KEEP = 0.999
"""The share of pairs and of rows that a proposal covers by default."""
WORTH = 1.5
"""All are covered if that costs at most this many times as much."""


@dataclass(frozen=True)
class AdviceRequest:
    """A join to advise on: the sides, and its known parts.

    ``keys``: pairs of columns; empty: the likeliest are used. ``kind`` and ``aliases`` are for the SQL. ``bounds``: the
    current bounds, before and after the left row.
    """

    left: SampledRows
    right: SampledRows
    keys: tuple[tuple[str, str], ...] = ()
    kind: JoinKind = "inner"
    aliases: tuple[str, str] = ("l", "r")
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True)
class SideAdvice:
    """The findings about one side.

    ``time``: its event time; ``is_guessed``: no watermark is declared for it. ``rate``: rows per unit of event time, in
    the middle of the sample. ``lag``: the proposed one; ``declared``: the current one.
    """

    arrivals: SampledRows
    time: str
    is_guessed: bool
    rows: int
    rate: float
    behind: Disorder
    lags: tuple[LagCost, ...]
    lag: LagCost
    declared: LagCost | None
    skew: Skew | None
    pauses: Pauses | None


@dataclass(frozen=True)
class Cost:
    """Bounds, and the rows of state that they cost on average: of the left side and of the right one."""

    bounds: Bounds
    rows: tuple[float, float]


@dataclass(frozen=True)
class PairAdvice:
    """The findings about two sides. Without ``distances`` no row of one matches one of the other.

    ``costs``: of bounds that cover 90, 99, 99.9 and all of 100 pairs; ``chosen``: of the proposal; ``now``: of the
    current bounds.
    """

    request: AdviceRequest
    unit: Unit
    sides: tuple[SideAdvice, SideAdvice]
    likely: tuple[LikelyKey, ...]
    keys: tuple[tuple[str, str], ...]
    distances: Distances | None
    costs: tuple[Cost, ...] = ()
    chosen: Cost | None = None
    now: Cost | None = None


def event_time(arrivals: SampledRows) -> tuple[str, bool] | None:
    """The event time of a side, and whether it had to be guessed; None if no column can be one.

    Declared is the first watermark. Else it is the moment by which rows arrive in the best order.
    """
    if arrivals.source.watermarks:
        return arrivals.source.watermarks[0].column, False
    moments = [
        field.name for field in arrivals.source.fields if time_type_of(field.type) in ("timestamp", "timestamp_ntz")
    ]
    names = {name.lower() for name in arrivals.rows.column_names}
    ordered = sorted(
        (_disorder_share(arrivals, name), place) for place, name in enumerate(moments) if name.lower() in names
    )
    return (moments[ordered[0][1]], True) if ordered else None


def _disorder_share(arrivals: SampledRows, name: str) -> float:
    """The lag of rows by a column, as a share of its range; a column with NULLs comes after others."""
    times, is_there = numbers_of(arrivals.column(name))
    if not is_there.any():
        return 2.0
    reach = int(times[is_there].max() - times[is_there].min())
    behind = disorder(times, is_there, arrivals.partition).behind
    return float(behind.mean()) / max(1, reach) + float(1 - is_there.mean())


def rate_of(times: Ints) -> float:
    """Rows per unit of event time: of the middle half, for at the ends there are fewer, and some are far off."""
    if len(times) < 2:
        return 0.0
    low, high = np.quantile(times, (0.25, 0.75))
    return 0.5 * len(times) / max(1.0, float(high - low))


def advise_pair(request: AdviceRequest, keep: float = KEEP) -> PairAdvice | None:
    """Advice on a join; None if a side has no event time, or no row."""
    event_times = [event_time(side) for side in (request.left, request.right)]
    if event_times[0] is None or event_times[1] is None:
        return None
    names = (event_times[0], event_times[1])
    both = (numbers_of(request.left.column(names[0][0])), numbers_of(request.right.column(names[1][0])))
    if not all(there.any() for _, there in both):
        return None
    unit = _unit(_time_type(request.left, names[0][0]), _time_type(request.right, names[1][0]))
    likely = likely_keys(request.left, request.right, both)
    keys = tuple(pair for pair in request.keys if _fits(request, pair)) or tuple((k.left, k.right) for k in likely[:1])
    found_sides = [
        _side(side, number, names[number], both, [pair[number] for pair in keys], keep, unit)
        for number, side in enumerate((request.left, request.right))
    ]
    sides = (found_sides[0], found_sides[1])
    if not keys:
        return PairAdvice(request, unit, sides, likely, keys, None)
    columns = [[side.column(pair[n]) for pair in keys] for n, side in enumerate((request.left, request.right))]
    codes = codes_of(columns[0], columns[1])
    pair_distances = distances(*(KeyedTimes.of(codes[n], *both[n]) for n in (0, 1)))
    if pair_distances is None:
        return PairAdvice(request, unit, sides, likely, keys, None)
    costs = tuple(cost_of(bounds_of(pair_distances, share, unit), sides) for share in SHARES)
    enough = cost_of(bounds_of(pair_distances, keep, unit), sides)
    chosen = costs[-1] if sum(costs[-1].rows) <= WORTH * sum(enough.rows) else enough
    now = None
    if request.bounds is not None:
        earlier, later = request.bounds
        lags = [side.lag if side.declared is None else side.declared for side in sides]
        now = cost_of(Bounds(earlier, later, pair_distances.within(-earlier, later)), sides, (lags[0], lags[1]))
    return PairAdvice(request, unit, sides, likely, keys, pair_distances, costs, chosen, now)


def cost_of(bounds: Bounds, sides: tuple[SideAdvice, SideAdvice], lags: tuple[LagCost, LagCost] | None = None) -> Cost:
    """The cost of bounds, with the proposed lags or others, while both sides progress equally.

    A left row is retained until the right side's watermark, which is behind by its lag, passes its time and the bound.
    """
    lags = lags or (sides[0].lag, sides[1].lag)
    left = sides[0].rate * max(0, bounds.later + lags[1].lag)
    right = sides[1].rate * max(0, bounds.earlier + lags[0].lag)
    return Cost(bounds, (left, right))


def _side(
    arrivals: SampledRows,
    number: int,
    time: tuple[str, bool],
    times: tuple[tuple[Ints, Bools], tuple[Ints, Bools]],
    keys: Sequence[str],
    keep: float,
    unit: Unit,
) -> SideAdvice:
    own, there = times[number]
    others, others_there = times[1 - number]
    behind = disorder(own, there, arrivals.partition)
    lags = lags_of(behind, unit)
    lag = next(lag for lag in lags if lag.late <= 1 - keep + 1e-12)
    # All are in time if that does not cost much more.
    lag = lags[-1] if lags[-1].lag <= WORTH * lag.lag else lag
    watermark = None if time[1] else arrivals.source.watermark(time[0])
    declared = None if watermark is None else LagCost(watermark.lag.value, behind.late(watermark.lag.value))
    return SideAdvice(
        arrivals, *time, len(own), rate_of(own[there]), behind, lags, lag, declared,
        skew(arrivals.column(keys[0])) if len(keys) == 1 else None,
        pauses(own[there], others[others_there]) if unit == "time" else None,
    )  # fmt: skip


def _time_type(side: SampledRows, name: str) -> TimeType | None:
    field = side.source.field(name)
    return None if field is None else time_type_of(field.type)


def _unit(left: TimeType | None, right: TimeType | None) -> Unit:
    if "integer" in (left, right):
        return "number"
    return "day" if "date" in (left, right) else "time"


def _fits(request: AdviceRequest, pair: tuple[str, str]) -> bool:
    """Return whether both columns exist and can be compared exactly."""
    there = [{name.lower() for name in side.rows.column_names} for side in (request.left, request.right)]
    if pair[0].lower() not in there[0] or pair[1].lower() not in there[1]:
        return False
    return common_type(request.left.column(pair[0]).type, request.right.column(pair[1]).type) is not None


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
    for (name, _), sample in sides.items():
        named.setdefault(name, []).append(sample)
    return "\n\n".join([*(_stream(sample) for sample in named.values()), *(_join(pair) for pair in joined)])


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
