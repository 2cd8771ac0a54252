"""How far back a state reaches: the first batch of which a row may still be alive, or count for one that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from watersmeet.observe.progress import Progress
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.state.state_schema import Reach
from watersmeet.physical.difference import NamedIdentity

BatchTimes = tuple[int, Watermarks]
"""A batch, and the latest time of each column up to it."""


@dataclass(frozen=True)
class ReplayStart:
    """The first batch that matters, and the marks that there were before it."""

    batch: int = 0
    watermarks: Watermarks = field(default_factory=dict[str, int])


def replay_start(
    now: NamedIdentity, batch_times: Sequence[BatchTimes], reach_of: Callable[[str], Reach]
) -> ReplayStart:
    """The first batch that matters to the last of those that were ``batch_times``; all do, if nothing is known.

    ``reach_of``: how long rows of an operator live, by its name in identities.
    """
    if not batch_times:
        return ReplayStart()
    stages, lags = now.identity["stages"], lags_of(now)

    def watermarks_at(place: int) -> dict[str, int]:
        return {c: t if t == END_OF_INPUT else t - lags[c] for c, t in batch_times[place][1].items() if c in lags}

    def last_expired(number: int, at: int) -> int:
        """The last place up to which no row matters to a stage at that place; -1: there is none."""
        stage, watermarks = stages[number], watermarks_at(at)
        reach, position = reach_of(stage["operator"]["family"]), at
        for port in range(len(stage["ports"])):
            limits = [
                (c, watermarks[watermark] - far)
                for c, watermark, far in reach(stage["operator"], port)
                if watermark in watermarks
            ]
            # The first mark to get there ends a life.
            positions = [_last_before(batch_times[: at + 1], column, limit) for column, limit in limits]
            position = min(position, max(positions, default=-1))
        for read in (read for port in stage["ports"] for read in port["reads"] if read.startswith("stage ")):
            # What is below must have been right when the first row came from there.
            position = (
                position if position < 0 else min(position, last_expired(int(read.removeprefix("stage ")), position))
            )
        return position

    place = min(
        (last_expired(number, len(batch_times) - 1) for number in range(len(stages))), default=len(batch_times) - 1
    )
    return ReplayStart() if place < 0 else ReplayStart(batch_times[place][0] + 1, watermarks_at(place))


def _last_before(batch_times: Sequence[BatchTimes], column: str, limit: int) -> int:
    """The last place at which no row of a column had reached a limit."""
    return max((n for n, (_, times) in enumerate(batch_times) if times.get(column, limit - 1) < limit), default=-1)


def lags_of(query: NamedIdentity) -> dict[str, int]:
    """The lags of all watermarked columns, by their canonical names."""
    return {
        column: lag
        for stage in query.identity["stages"]
        for port in stage["ports"]
        for column, lag in port["lags"].items()
    }


def times_after_batches(
    was: NamedIdentity, now: NamedIdentity, history: Sequence[Progress], last: int
) -> list[BatchTimes]:
    """How far times were after each batch that the history of a query tells of, in the columns of the query now.

    Nothing, if the history does not tell of the last batch, or of all columns.
    """
    lags, scans = lags_of(was), match_scans(was, now)
    records = {progress.batch: progress for progress in history if progress.batch <= last}
    if last not in records or not all(re.fullmatch(r"\d+\.[^.#]+", column) for column in lags):
        return []
    names = {column: f"{was.alias(column.partition('.')[0])}.{column.partition('.')[2]}".lower() for column in lags}
    batch_times: list[BatchTimes] = []
    for batch in sorted(records):
        own = {name.lower(): watermark for name, watermark in records[batch].own.items()}
        times: dict[str, int] = {}
        for column, name in names.items():
            number, _, rest = column.partition(".")
            if name in own and number in scans:
                watermark = own[name]
                times[f"{scans[number]}.{rest}"] = watermark if watermark == END_OF_INPUT else watermark + lags[column]
        batch_times.append((batch, times))
    columns = {name.lower() for name in records[last].own}
    return batch_times if columns <= set(names.values()) else []


def match_scans(was: NamedIdentity, now: NamedIdentity) -> dict[str, str]:
    """The scans of a query as it was by their numbers, and which they are now; those that have gone are left out."""
    free = {number: (words["source"].lower(), words["alias"].lower()) for number, words in now.words.items()}
    scans: dict[str, str] = {}
    for is_same in (_is_same, _has_source):
        for number, words in was.words.items():
            scan = words["source"].lower(), words["alias"].lower()
            fits = (
                next((n for n, candidate in free.items() if is_same(scan, candidate)), None)
                if number not in scans
                else None
            )
            if fits is not None:
                scans[number] = fits
                del free[fits]
    return scans


def _is_same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one == other


def _has_source(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[0] == other[0]


def sources_by_name(identity: Identity) -> Mapping[str, Identity]:
    """The sources of a query by name."""
    return {part["source"]: part for source in identity["sources"] for part in source["reads"]}
