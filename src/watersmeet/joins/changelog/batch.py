"""One batch of a changelog join in one shard: what changed, what it meets, what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.changelog.table_join import TableJoin, Tables
from watersmeet.joins.core.changes import ROWS_PER_PIECE
from watersmeet.joins.core.condition import same_at
from watersmeet.joins.core.matching import Ints
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Store
from watersmeet.joins.state.layout import Rows
from watersmeet.joins.state.table import chunked

_T = TypeVar("_T")


def stream(
    join: TableJoin, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: the changes of the result as they come, last the emission with the rest."""
    tables = Tables.of(join, store, marks)
    changes = [layout.nothing for layout in join.layouts]
    new = list(changes)
    for port, table in arrivals.items():
        changes[port], dead = tables.arrived(port, table)
        new[port], stored_dead = _parted(join, port, changes[port])
        for rows in (dead, stored_dead):
            yield from tables.never_matched(port, rows)
    yield from _meet(tables, new)
    yield from tables.finish(changes)


def _parted(join: TableJoin, port: int, rows: Rows) -> tuple[Rows, Rows]:
    """Of changes that are stored, those that may match, and those that never can: there are any with upserts only."""
    if not join.sides[port].upsert_key:
        return rows, rows.slice(0, 0)
    alive = join.sides[port].alive(rows.table)
    return rows.where(alive), rows.where(~alive)


def _meet(tables: Tables, new: Sequence[Rows]) -> Iterator[pa.Table]:
    """The changes of the result, by stretches of codes."""
    join = tables.join
    codes = [np.unique(rows.codes) for rows in new]
    both = np.union1d(*codes)
    counts = np.zeros(both.size, np.int64)
    for port, table in enumerate(tables.tables):
        asked = both if join.tracked[1 - port] else codes[1 - port]
        if len(table) > join.budget.chunk:
            counts[np.searchsorted(both, asked)] += table.counts(asked)
    for some in chunked(both, counts, join.budget.chunk):
        yield from _meet_some(tables, [_between(rows, int(some[0]), int(some[-1])) for rows in new])


def _meet_some(tables: Tables, new: Sequence[Rows]) -> Iterator[pa.Table]:
    """The changes of the result that these changes make, which have all codes of a stretch."""
    sums = [np.zeros(len(rows), np.int64) for rows in new]
    yield from _pair(tables, new, sums)
    for port in (RIGHT, LEFT):
        for old in _stored(tables, port, np.unique(new[1 - port].codes)):
            shifts = np.zeros(len(old), np.int64)
            yield from _pair(tables, _beside(port, old, new), _beside(port, shifts, sums))
            if tables.join.tracked[port]:
                yield from _turn(tables, port, old, shifts)
    for port in (LEFT, RIGHT):
        if tables.join.tracked[port]:
            yield from tables.alone(port, new[port], new[port].weights * tables.join.meets(sums[port]))


def _beside(port: int, mine: _T, both: Sequence[_T]) -> tuple[_T, _T]:
    """What is of this port, with what is of the other."""
    return (mine, both[RIGHT]) if port == LEFT else (both[LEFT], mine)


def _pair(tables: Tables, both: Sequence[Rows], sums: Sequence[Ints]) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows make; and add to each row's sum what it matches."""
    (left, right), (left_sums, right_sums) = both, sums
    if not len(left) or not len(right):
        return
    if not tables.join.shows_pairs:
        left_sums += _sums(tables.join, LEFT, left, right)
        return
    for found in tables.join.by_code(left, right, ROWS_PER_PIECE):
        yield from tables.pairs(left, right, found, left_sums, right_sums)


def _turn(tables: Tables, port: int, rows: Rows, shifts: Ints) -> Iterator[pa.Table]:
    """What becomes of old rows whose sums change: some come out alone now, and some did but no longer do."""
    some = shifts != 0
    rows, shifts = rows.where(some), shifts[some]
    if not len(rows):
        return
    join = tables.join
    before = np.zeros(len(rows), np.int64)
    for others in _stored(tables, 1 - port, np.unique(rows.codes)):
        before += _sums(join, port, rows, others)
    turned = join.meets(before + shifts) - join.meets(before)
    yield from tables.alone(port, rows, rows.weights * turned)


def _stored(tables: Tables, port: int, codes: Ints) -> Iterator[Rows]:
    """The rows that a table had before the batch for these codes, in parts, without those that never match."""
    side = tables.join.sides[port]
    for rows in tables.tables[port].parts(codes):
        yield rows.where(side.alive(rows.table)) if side.upsert_key else rows


def _sums(join: TableJoin, port: int, rows: Rows, others: Rows) -> Ints:
    """For each of the rows of a port the weight of what it matches among rows of the other."""
    if not len(others):
        return np.zeros(len(rows), np.int64)
    if join.condition is None and _is_exact(join, port, rows, others):
        totals = np.concatenate([[0], np.cumsum(others.weights)])
        start, stop = (np.searchsorted(others.codes, rows.codes, edge) for edge in ("left", "right"))
        return totals[stop] - totals[start]
    sums = np.zeros(len(rows), np.int64)
    left, right = (rows, others) if port == LEFT else (others, rows)
    for found in join.by_code(left, right, ROWS_PER_PIECE):
        mine, theirs = found if port == LEFT else (found.build, found.probe)
        np.add.at(sums, mine, others.weights[theirs])
    return sums


def _is_exact(join: TableJoin, port: int, rows: Rows, others: Rows) -> bool:
    """Whether among these rows equal codes mean equal keys: nearly always so, as codes are hashes of 64 bits."""
    if join.left.exact:
        return True
    mine, theirs = (
        [part.table.column(name) for name in join.sides[side].keys] for side, part in ((port, rows), (1 - port, others))
    )
    first = np.searchsorted(others.codes, rows.codes, "left")
    there = np.flatnonzero(first < np.searchsorted(others.codes, rows.codes, "right"))
    # For each of the others, the first with its code.
    firsts = np.searchsorted(others.codes, others.codes, "left")
    return bool(
        same_at(mine, there, theirs, first[there]).all()
        and same_at(theirs, np.arange(len(others)), theirs, firsts).all()
    )


def _between(rows: Rows, low: int, high: int) -> Rows:
    return rows.slice(int(np.searchsorted(rows.codes, low, "left")), int(np.searchsorted(rows.codes, high, "right")))
