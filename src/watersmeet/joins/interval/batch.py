"""One batch of an interval join in one shard: what is new, what of the state it touches, what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.marks import Bound, Watermarks
from watersmeet.joins.core.matching import Bools, Ints, shares_a_code
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Store
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.interval.kept import limits_of, lives_of
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import Rows
from watersmeet.joins.state.spine import Spine, State

if TYPE_CHECKING:
    from watersmeet.joins.interval.operator import IntervalJoin

MATCHED = "matched"
"""The note that says which rows have matched."""

STRICT = "strict"
"""Among the numbers of the directory: rows have expired by strict bounds as such. In a state without it they have lived
a unit longer, so those at the very limit are still to come out."""

LIVES = "lives"
"""The same of the ends that rows carry. In a state without it rows have lived until their bounds alone."""

BEFORE = "before"
"""Among the numbers of the directory: the limits by which rows have expired before the bounds were changed. Those that
the new bounds end at once are still to come out."""

SPARSE = 2
"""Where rows carry their ends, a block of which less than one row in so many is alive is written anew: rows of one time
may end at any, and one that lives long would keep the others."""

FEW = 256
"""So few new rows most likely meet none of a run: their codes are looked at before anything is computed of them."""

BUDGET = Budget(largest=250_000, sparse=1)
"""Runs grow to about a million rows by merging and no further, so that expired runs can be dropped whole."""


class Kept:
    """What stays after a step: rows per port, and the earliest time in each column."""

    def __init__(self) -> None:
        self.rows = [0, 0]
        self.earliest: dict[str, int] = {}

    def add(self, port: int, rows: int, lowest: Marks) -> None:
        """Note rows that stay."""
        self.rows[port] += rows
        for name, time in lowest.items():
            self.earliest[name] = min(time, self.earliest.get(name, time))


def stream(
    join: IntervalJoin, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: joined rows as they come, last the emission with the rest."""
    every = (*join.bounds, *join.lives)
    shard = Shard(join, store, marks, every, join.waits)
    numbers = {STRICT: any(bound.strict for bound in join.bounds), LIVES: bool(join.lives)}
    known = shard.state.directory.numbers
    if any(asked and not known.get(number) for number, asked in numbers.items()):
        shard.before = Watermarks.of(shard.before.received, _before(join, known))
    if BEFORE in known:
        shard.before = Watermarks(shard.before.received, join.canonical.known(known[BEFORE]))
    spines = [
        shard.state.spine(name, layout, BUDGET, lambda rows, _: rows.where(_alive(shard, rows)))
        for name, layout in zip(("left", "right"), join.layouts, strict=True)
    ]
    new: dict[int, Rows] = {}
    padded: list[pa.Table] = []
    for port, table in arrivals.items():
        new[port], dead = _admitted(join, shard, port, table)
        padded += _padded(join, shard, port, dead)
    yield from _meet(join, shard, spines, new)
    kept = Kept()
    for port in (LEFT, RIGHT):
        for rows in _expired(join, shard, port, spines[port], kept):
            padded += _padded(join, shard, port, rows)
    for port, rows in new.items():
        alive = _alive(shard, rows)
        padded += _padded(join, shard, port, _alone(rows, ~alive))
        new[port] = rows = rows.where(alive)
        if len(rows):
            kept.add(port, len(rows), rows.lowest)
    for port, rows in _dropped(join, shard, spines, new, kept):
        padded += _padded(join, shard, port, rows)
    for port, rows in new.items():
        spines[port].add(rows)
    bounded = frozenset(bound.column for bound in join.bounds)
    windows = {side.window.time: side.window.size for side in join.sides if side.window is not None}
    watermarks = shard.after.emitted(join.times, bounded, kept.earliest, shard.state.directory.emitted, windows)
    yield shard.close(watermarks, padded, kept.rows, _noted(numbers, shard))


def take_over(join: IntervalJoin, store: Store, was: Identity) -> None:
    """Let rows go that have expired by the bounds of before, though the new ones might keep them, and note by which."""
    state = State(store, join.canonical)
    known = state.directory.numbers
    limits = state.directory.numbers.get(BEFORE)
    if limits is None:
        ends = [*(limits_of(was, 0) + limits_of(was, 1) if known.get(STRICT) else map(tuple, was["bounds"]))]
        ends += [life for port in (LEFT, RIGHT) for life in lives_of(was, port)] if known.get(LIVES) else []
        received = join.canonical.stored(state.directory.received)
        limits = Watermarks.of(received, [Bound(column, other, constant) for column, other, constant in ends]).limits
    before = Watermarks({}, join.canonical.known(limits))
    for name, layout in zip(("left", "right"), join.layouts, strict=True):
        spine = state.spine(name, layout, BUDGET)
        for block in spine.blocks:
            if before.expires(block.lowest):
                rows = spine.read(block)
                spine.remove(block, before.is_expired(rows.times, len(rows)))
    state.save(numbers={**known, BEFORE: limits})


def _before(join: IntervalJoin, known: Mapping[str, int]) -> list[Bound]:
    """By what rows have expired so far, given the numbers of the directory."""
    bounds = join.bounds if known.get(STRICT) else (replace(bound, strict=False) for bound in join.bounds)
    return [*bounds, *(join.lives if known.get(LIVES) else ())]


def _noted(numbers: Mapping[str, bool], shard: Shard) -> dict[str, int]:
    """What the next step must know of how rows have expired; nothing has before the first mark."""
    return {name: 1 for name, asked in numbers.items() if asked} if shard.after.received else {}


def _admitted(join: IntervalJoin, shard: Shard, port: int, table: pa.Table) -> tuple[Rows, Rows]:
    """The arrivals of a port that are in time: those that may match, sorted, and those that never can."""
    new, dead = shard.admitted(port, table, join.layouts[port])
    new = join.layouts[port].sorted(new)
    if join.tracked[port]:
        new = new.with_beside(**{MATCHED: np.zeros(len(new), np.bool_)})
    return new, dead


def _meet(join: IntervalJoin, shard: Shard, spines: Sequence[Spine], new: Mapping[int, Rows]) -> Iterator[pa.Table]:
    """Let the new rows meet the state of the other side, and each other; gives the joined rows as they come."""
    reach = {port: join.reach(port, rows) for port, rows in new.items()}
    for port, rows in new.items():
        spine = spines[1 - port]
        for block in spine.blocks if len(rows) else ():
            if not join.may_meet(port, rows, block):
                continue
            old = spine.read(block)
            if len(rows) <= FEW and not shares_a_code(old.codes, rows.codes):
                continue
            matched = old.beside.get(MATCHED)
            if matched is not None:
                old = old.with_beside(**{MATCHED: matched.copy()})
            yield from _joined(join, shard, *((rows, old) if port == LEFT else (old, rows)), port, reach[port])
            if matched is not None and not np.array_equal(matched, old.beside[MATCHED]):
                spine.annotate(block, MATCHED, old.beside[MATCHED])
    if len(new) == 2:
        yield from _joined(join, shard, new[LEFT], new[RIGHT], LEFT, reach[LEFT])


def _joined(
    join: IntervalJoin, shard: Shard, left: Rows, right: Rows, probe: int, reach: tuple[Ints, Ints]
) -> Iterator[pa.Table]:
    """What meets; and note who has matched."""
    times = left.times[join.left.time], right.times[join.right.time]
    for found in join.pairs(left, right, probe, reach):
        shard.tally.met(times[LEFT], found.probe, times[RIGHT], found.build)
        first = _note(left, found.probe)
        _note(right, found.build)
        if join.kind == "semi":
            shard.tally.matched += int(first.size)
            yield _table(join, _columns(join, LEFT, left).take(pa.array(first)).columns, [])
        elif join.kind != "anti":
            shard.tally.matched += int(found.probe.size)
            mine = _columns(join, LEFT, left).take(pa.array(found.probe))
            yield _table(join, mine.columns, _columns(join, RIGHT, right).take(pa.array(found.build)).columns)


def _note(rows: Rows, positions: Ints) -> Ints:
    """Note that these rows have matched; returns those that had not before."""
    matched = rows.beside.get(MATCHED)
    if matched is None:
        return positions[:0]
    first = np.unique(positions[~matched[positions]])
    matched[first] = True
    return first


def _expired(join: IntervalJoin, shard: Shard, port: int, spine: Spine, kept: Kept) -> Iterator[Rows]:
    """Drop the blocks that have expired whole; gives the rows of a preserved side that expired alone."""
    for block in spine.blocks:
        if not shard.after.expires(block.lowest) and all(end in block.lowest for end in join.sides[port].ends):
            kept.add(port, block.rows, block.lowest)
            continue
        if join.preserved[port]:
            rows = spine.read(block)
            yield _alone(rows, ~_alive(shard, rows) & ~shard.before.is_expired(rows.times, len(rows)))
        if shard.after.expires(block.highest):
            spine.drop(block)
            continue
        rows = spine.read(block)
        alive = _alive(shard, rows)
        left = int(alive.sum())
        if left:
            kept.add(port, left, {name: int(times[alive].min()) for name, times in rows.times.items()})
        if left * SPARSE < block.rows if join.lives else not left:
            spine.remove(block, ~alive)


def _dropped(
    join: IntervalJoin, shard: Shard, spines: Sequence[Spine], new: dict[int, Rows], kept: Kept
) -> list[tuple[int, Rows]]:
    """Drop the rows with the earliest times if more would be kept than may be; gives those that never matched."""
    if not shard.excess(kept.rows):
        return []
    held = [(port, block, spines[port].read(block)) for port in (LEFT, RIGHT) for block in spines[port].blocks]
    parts = [*held, *((port, None, rows) for port, rows in new.items())]
    alive = [_alive(shard, rows) for _, _, rows in parts]
    times = [rows.times[join.sides[port].time][lives] for (port, _, rows), lives in zip(parts, alive, strict=True)]
    oldest = shard.earliest(times, kept.rows)
    alone: list[tuple[int, Rows]] = []
    for (port, block, rows), among_alive, lives in zip(parts, oldest, alive, strict=True):
        if among_alive.any():
            drop = lives.copy()
            drop[lives] = among_alive
            shard.tally.dropped[port] += int(drop.sum())
            kept.rows[port] -= int(drop.sum())
            alone.append((port, _alone(rows, drop)))
            if block is None:
                new[port] = rows.where(lives & ~drop)
            else:
                spines[port].remove(block, ~lives | drop)
    return alone


def _alive(shard: Shard, rows: Rows) -> Bools:
    """Which rows something may still meet."""
    return ~shard.after.is_expired(rows.times, len(rows))


def _alone(rows: Rows, leaving: Bools) -> Rows:
    """Those of the leaving rows that never matched; none where that is not known."""
    matched = rows.beside.get(MATCHED)
    return rows.slice(0, 0) if matched is None else rows.where(leaving & ~matched)


def _padded(join: IntervalJoin, shard: Shard, port: int, rows: Rows) -> list[pa.Table]:
    """Rows of a preserved side with nulls for the other; no rows, no table."""
    if not len(rows) or not join.preserved[port]:
        return []
    shard.tally.padded[port] += len(rows)
    mine, nulls = _columns(join, port, rows).columns, [pa.nulls(len(rows))] * len(join.sides[1 - port].columns)
    return [_table(join, *((mine, nulls) if port == LEFT else (nulls, mine)))]


def _table(join: IntervalJoin, left: list[pa.Array], right: list[pa.Array]) -> pa.Table:
    """Rows of the result from the columns of both sides."""
    return pa.Table.from_arrays([*left, *right], names=[*join.left.columns, *join.right.columns])


def _columns(join: IntervalJoin, port: int, rows: Rows) -> pa.RecordBatch:
    return rows.table.select(list(join.sides[port].columns))
