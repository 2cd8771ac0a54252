"""How far back a state reaches: the first batch of which a row may still be alive, or count for one that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.operator import END_OF_INPUT, Marks
from watersmeet.joins.state.kept import Reach
from watersmeet.observe.progress import Progress
from watersmeet.physical.difference import Told

Seen = tuple[int, Marks]
"""A batch, and the latest time of each column up to it."""


@dataclass(frozen=True)
class Begin:
    """The first batch that matters, and the marks that there were before it."""

    batch: int = 0
    marks: Marks = field(default_factory=dict[str, int])


def begin_of(now: Told, seen: Sequence[Seen], reach_of: Callable[[str], Reach]) -> Begin:
    """The first batch that matters to the last of those that were ``seen``; all do, if nothing is known.

    ``reach_of``: how long rows of an operator live, by its name in identities.
    """
    if not seen:
        return Begin()
    stages, lags = now.identity["stages"], lags_of(now)

    def marks_at(place: int) -> dict[str, int]:
        return {c: t if t == END_OF_INPUT else t - lags[c] for c, t in seen[place][1].items() if c in lags}

    def forgotten(number: int, at: int) -> int:
        """The last place up to which no row matters to a stage at that place; -1: there is none."""
        stage, marks = stages[number], marks_at(at)
        reach, found = reach_of(stage["operator"]["family"]), at
        for port in range(len(stage["ports"])):
            limits = [(c, marks[mark] - far) for c, mark, far in reach(stage["operator"], port) if mark in marks]
            # The first mark to get there ends a life.
            past = [_last_before(seen[: at + 1], column, limit) for column, limit in limits]
            found = min(found, max(past, default=-1))
        for read in (read for port in stage["ports"] for read in port["reads"] if read.startswith("stage ")):
            # What is below must have been right when the first row came from there.
            found = found if found < 0 else min(found, forgotten(int(read.removeprefix("stage ")), found))
        return found

    place = min((forgotten(number, len(seen) - 1) for number in range(len(stages))), default=len(seen) - 1)
    return Begin() if place < 0 else Begin(seen[place][0] + 1, marks_at(place))


def _last_before(seen: Sequence[Seen], column: str, limit: int) -> int:
    """The last place at which no row of a column had reached a limit."""
    return max((n for n, (_, times) in enumerate(seen) if times.get(column, limit - 1) < limit), default=-1)


def lags_of(told: Told) -> dict[str, int]:
    """The lags of all watermarked columns, by their canonical names."""
    return {
        column: lag
        for stage in told.identity["stages"]
        for port in stage["ports"]
        for column, lag in port["lags"].items()
    }


def seen_of(was: Told, now: Told, history: Sequence[Progress], last: int) -> list[Seen]:
    """How far times were after each batch that the history of a query tells of, in the columns of the query now.

    Nothing, if the history does not tell of the last batch, or of all columns.
    """
    lags, scans = lags_of(was), scans_now(was, now)
    records = {one.batch: one for one in history if one.batch <= last}
    if last not in records or not all(re.fullmatch(r"\d+\.[^.#]+", column) for column in lags):
        return []
    called = {column: f"{was.alias(column.partition('.')[0])}.{column.partition('.')[2]}".lower() for column in lags}
    seen: list[Seen] = []
    for batch in sorted(records):
        own = {name.lower(): mark for name, mark in records[batch].own.items()}
        times: dict[str, int] = {}
        for column, name in called.items():
            number, _, rest = column.partition(".")
            if name in own and number in scans:
                mark = own[name]
                times[f"{scans[number]}.{rest}"] = mark if mark == END_OF_INPUT else mark + lags[column]
        seen.append((batch, times))
    known = {name.lower() for name in records[last].own}
    return seen if known <= set(called.values()) else []


def scans_now(was: Told, now: Told) -> dict[str, str]:
    """The scans of a query as it was by their numbers, and which they are now; those that have gone are left out."""
    free = {number: (words["source"].lower(), words["alias"].lower()) for number, words in now.words.items()}
    found: dict[str, str] = {}
    for is_same in (_is_same, _has_source):
        for number, words in was.words.items():
            known = words["source"].lower(), words["alias"].lower()
            fits = next((n for n, told in free.items() if is_same(known, told)), None) if number not in found else None
            if fits is not None:
                found[number] = fits
                del free[fits]
    return found


def _is_same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one == other


def _has_source(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[0] == other[0]


def reads_of(identity: Identity) -> Mapping[str, Identity]:
    """The sources of a query by name."""
    return {part["source"]: part for source in identity["sources"] for part in source["reads"]}
