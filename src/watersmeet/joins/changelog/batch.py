"""One batch of a changelog join in one shard: what changed, what it meets, what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import ROWS_PER_PIECE, Gathering
from watersmeet.joins.core.condition import same
from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Report, StateOverflowError, Store
from watersmeet.joins.state.table_rows import TableRows
from watersmeet.joins.state.table_state import TableState, chunked, upserted

if TYPE_CHECKING:
    from watersmeet.joins.changelog.table_join import TableJoin


class ChangelogBatch:
    """A step in progress: `admit` for each port, then `meet`, then `finish`.

    ``changes`` are all changes of a port, ``new`` those of them that may match.
    """

    def __init__(self, join: TableJoin, store: Store) -> None:
        self.join = join
        self.states = [
            TableState(store, name, layout, join.sizes)
            for name, layout in zip(("left", "right"), join.layouts, strict=True)
        ]
        self.changes = [layout.nothing for layout in join.layouts]
        self.new = [layout.nothing for layout in join.layouts]
        self.out = Gathering((*join.left.columns, *join.right.columns))
        self.rows, self.padded = [0, 0], [0, 0]
        self.matched = 0

    def admit(self, port: int, table: pa.Table) -> Iterator[pa.Table]:
        """Take in the changes of a table; what can never match comes out alone at once, or never."""
        self.rows[port] += table.num_rows
        side, layout = self.join.sides[port], self.join.layouts[port]
        if side.upsert_key:
            changes = upserted(self.states[port], table, side.upsert_key)
            alive = side.alive(changes.table)
            self.changes[port], self.new[port] = changes, changes.where(alive)
            dead = changes.where(~alive)
        else:
            alive = side.alive(table)
            rows = layout.rows(table)
            self.changes[port] = self.new[port] = layout.consolidated(rows.where(alive))
            dead = rows.where(~alive)
        if len(dead) and self.join.tracked[port]:
            yield from self.emit_alone(port, dead, dead.weights * self.join.meets(np.zeros(len(dead), np.int64)))

    def meet(self) -> Iterator[pa.Table]:
        """The changes of the result, by stretches of codes."""
        codes = [np.unique(rows.codes) for rows in self.new]
        together = np.union1d(*codes)
        counts = np.zeros(together.size, np.int64)
        for port, state in enumerate(self.states):
            asked = together if self.join.tracked[1 - port] else codes[1 - port]
            if len(state) > self.join.sizes.chunk:
                counts[np.searchsorted(together, asked)] += state.counts(asked)
        for some in chunked(together, counts, self.join.sizes.chunk):
            yield from self.meet_some(int(some[0]), int(some[-1]))

    def meet_some(self, low: int, high: int) -> Iterator[pa.Table]:
        """The changes of the result for codes from ``low`` to ``high``."""
        new = [_between(rows, low, high) for rows in self.new]
        old = [self.stored(port, np.unique(new[1 - port].codes)) for port in (LEFT, RIGHT)]
        sums = [np.zeros(len(rows), np.int64) for rows in new]
        shifts = [np.zeros(len(rows), np.int64) for rows in old]
        yield from self.pair(new[LEFT], new[RIGHT], sums[LEFT], sums[RIGHT])
        yield from self.pair(new[LEFT], old[RIGHT], sums[LEFT], shifts[RIGHT])
        yield from self.pair(old[LEFT], new[RIGHT], shifts[LEFT], sums[RIGHT])
        for port in (LEFT, RIGHT):
            if self.join.tracked[port]:
                yield from self.emit_alone(port, new[port], new[port].weights * self.join.meets(sums[port]))
                yield from self.turn(port, old[port], shifts[port])

    def pair(self, left: TableRows, right: TableRows, left_sums: Ints, right_sums: Ints) -> Iterator[pa.Table]:
        """The changes that the pairs of these rows make; and add to each row's sum what it matches."""
        join = self.join
        if not len(left) or not len(right):
            return
        if not join.shows_pairs:
            left_sums += self.sums(LEFT, left, right)
            return
        for found in join.by_code(left, right, ROWS_PER_PIECE):
            if join.tracked[LEFT]:
                np.add.at(left_sums, found.probe, right.weights[found.build])
            if join.tracked[RIGHT]:
                np.add.at(right_sums, found.build, left.weights[found.probe])
            self.matched += int(found.probe.size)
            yield from self.out.add(join.joined(left, right, found))

    def turn(self, port: int, rows: TableRows, shifts: Ints) -> Iterator[pa.Table]:
        """What becomes of old rows whose sums change: some come out alone now, and some did but no longer do."""
        some = shifts != 0
        rows, shifts = rows.where(some), shifts[some]
        if not len(rows):
            return
        before = self.sums(port, rows, self.stored(1 - port, np.unique(rows.codes)))
        turned = self.join.meets(before + shifts) - self.join.meets(before)
        yield from self.emit_alone(port, rows, rows.weights * turned)

    def sums(self, port: int, rows: TableRows, others: TableRows) -> Ints:
        """For each of the rows of a port the weight of what it matches among rows of the other."""
        if not len(others):
            return np.zeros(len(rows), np.int64)
        if self.join.condition is None and self.is_exact(port, rows, others):
            totals = np.concatenate([[0], np.cumsum(others.weights)])
            start, stop = (np.searchsorted(others.codes, rows.codes, edge) for edge in ("left", "right"))
            return totals[stop] - totals[start]
        sums = np.zeros(len(rows), np.int64)
        left, right = (rows, others) if port == LEFT else (others, rows)
        for found in self.join.by_code(left, right, ROWS_PER_PIECE):
            mine, theirs = found if port == LEFT else (found.build, found.probe)
            np.add.at(sums, mine, others.weights[theirs])
        return sums

    def is_exact(self, port: int, rows: TableRows, others: TableRows) -> bool:
        """Whether among these rows equal codes mean equal keys: nearly always so, as codes are hashes of 64 bits."""
        if self.join.left.exact:
            return True
        mine, theirs = self.join.sides[port].keys, self.join.sides[1 - port].keys
        first = np.searchsorted(others.codes, rows.codes, "left")
        there = np.flatnonzero(first < np.searchsorted(others.codes, rows.codes, "right"))
        return bool(
            _agree(rows, mine, there, others, theirs, first[there]).all()
            and _agree(others, theirs, np.arange(len(others)), others, theirs, _firsts(others)).all()
        )

    def emit_alone(self, port: int, rows: TableRows, weights: Ints) -> Iterator[pa.Table]:
        """Rows of a port without a partner, so many times each."""
        table = self.join.alone(port, rows, weights)
        if self.join.kind == "semi":
            self.matched += table.num_rows
        else:
            self.padded[port] += table.num_rows
        yield from self.out.add(table)

    def stored(self, port: int, codes: Ints) -> TableRows:
        """The rows that a table had before the batch for these codes, without those that never match."""
        rows = self.states[port].matching(codes)
        side = self.join.sides[port]
        return rows.where(side.alive(rows.table)) if side.upsert_key else rows

    def finish(self) -> Iterator[pa.Table | Emission]:
        """Store the changes and hand out the rest."""
        for state, changes in zip(self.states, self.changes, strict=True):
            state.apply(changes)
        limit(self.states, self.join.max_rows)
        for state in self.states:
            state.save()
        yield from self.out.rest()
        yield Emission(report=report(self.states, self.rows, self.matched, self.padded))


def report(states: list[TableState], rows: list[int], matched: int, padded: list[int]) -> Report:
    """What a step did, in numbers."""
    kept = (len(states[LEFT]), len(states[RIGHT]))
    written = sum(state.written for state in states)
    return Report((rows[LEFT], rows[RIGHT]), (0, 0), matched, (padded[LEFT], padded[RIGHT]), kept, written=written)


def limit(states: list[TableState], max_rows: int | None) -> None:
    """Fail if tables hold more rows than they may; rows that cancel out do not count, but are first seen here."""
    if max_rows is None or sum(len(state) for state in states) <= max_rows:
        return
    kept = tuple(sum(len(block) for block in state.blocks()) for state in states)
    if sum(kept) > max_rows:
        raise StateOverflowError(kept, max_rows)
    for state in states:
        state.compact()


def _between(rows: TableRows, low: int, high: int) -> TableRows:
    return rows.slice(int(np.searchsorted(rows.codes, low, "left")), int(np.searchsorted(rows.codes, high, "right")))


def _firsts(rows: TableRows) -> Ints:
    """For each row the position of the first with its code."""
    return np.searchsorted(rows.codes, rows.codes, "left")


def _agree(
    rows: TableRows, keys: tuple[str, ...], at: Ints, others: TableRows, other_keys: tuple[str, ...], places: Ints
) -> Bools:
    """Where the keys of rows and others at these positions are equal."""
    equal = np.ones(at.size, np.bool_)
    for mine, theirs in zip(keys, other_keys, strict=True):
        values = rows.table.column(mine).take(pa.array(at))
        equal &= same(values, others.table.column(theirs).take(pa.array(places)))
    return equal
