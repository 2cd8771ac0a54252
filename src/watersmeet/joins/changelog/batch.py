"""One batch of a changelog join in one shard: what changed, what it meets, what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.changelog.table_join import JoinTables, TableJoinOperator
from watersmeet.joins.core.changes import ROWS_PER_PIECE
from watersmeet.joins.core.condition import null_safe_equal_at
from watersmeet.joins.core.matching import Ints
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, StateStore, Watermarks
from watersmeet.joins.state.layout import KeyedRows
from watersmeet.joins.state.table import chunk_codes

_T = TypeVar("_T")


def stream(
    join: TableJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: the changes of the result as they come, last the emission with the rest."""
    tables = JoinTables.of(join, store, watermarks)
    changes = [layout.empty_rows for layout in join.layouts]
    new = list(changes)
    for port, table in arrivals.items():
        changes[port], dead = tables.split_arrivals(port, table)
        new[port], stored_dead = _split_dead(join, port, changes[port])
        for rows in (dead, stored_dead):
            yield from tables.emit_dead(port, rows)
    yield from _join_changes(tables, new)
    yield from tables.finish(changes)


def _split_dead(join: TableJoinOperator, port: int, rows: KeyedRows) -> tuple[KeyedRows, KeyedRows]:
    """Of changes that are stored, those that may match, and those that never can: there are any with upserts only."""
    if not join.sides[port].upsert_key:
        return rows, rows.slice(0, 0)
    alive = join.sides[port].can_match(rows.table)
    return rows.where(alive), rows.where(~alive)


def _join_changes(tables: JoinTables, new: Sequence[KeyedRows]) -> Iterator[pa.Table]:
    """The changes of the result, by stretches of codes."""
    join = tables.join
    codes = [np.unique(rows.codes) for rows in new]
    both = np.union1d(*codes)
    counts = np.zeros(both.size, np.int64)
    for port, table in enumerate(tables.tables):
        probe_codes = both if join.tracks_matches[1 - port] else codes[1 - port]
        if len(table) > join.budget.chunk:
            counts[np.searchsorted(both, probe_codes)] += table.counts(probe_codes)
    for stretch in chunk_codes(both, counts, join.budget.chunk):
        yield from _join_stretch(tables, [_slice_codes(rows, int(stretch[0]), int(stretch[-1])) for rows in new])


def _join_stretch(tables: JoinTables, new: Sequence[KeyedRows]) -> Iterator[pa.Table]:
    """The changes of the result that these changes make, which have all codes of a stretch."""
    sums = [np.zeros(len(rows), np.int64) for rows in new]
    yield from _join_pairs(tables, new, sums)
    for port in (RIGHT, LEFT):
        for old in _read_stored(tables, port, np.unique(new[1 - port].codes)):
            shifts = np.zeros(len(old), np.int64)
            yield from _join_pairs(tables, _by_port(port, old, new), _by_port(port, shifts, sums))
            if tables.join.tracks_matches[port]:
                yield from _update_unmatched(tables, port, old, shifts)
    for port in (LEFT, RIGHT):
        if tables.join.tracks_matches[port]:
            yield from tables.emit_unmatched(port, new[port], new[port].weights * tables.join.output_flags(sums[port]))


def _by_port(port: int, mine: _T, both: Sequence[_T]) -> tuple[_T, _T]:
    """What is of this port, with what is of the other."""
    return (mine, both[RIGHT]) if port == LEFT else (both[LEFT], mine)


def _join_pairs(tables: JoinTables, both: Sequence[KeyedRows], sums: Sequence[Ints]) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows make; and add to each row's sum what it matches."""
    (left, right), (left_sums, right_sums) = both, sums
    if not len(left) or not len(right):
        return
    if not tables.join.shows_pairs:
        left_sums += _match_weights(tables.join, LEFT, left, right)
        return
    for pairs in tables.join.find_matches(left, right, ROWS_PER_PIECE):
        yield from tables.emit_pairs(left, right, pairs, left_sums, right_sums)


def _update_unmatched(tables: JoinTables, port: int, rows: KeyedRows, shifts: Ints) -> Iterator[pa.Table]:
    """What becomes of old rows whose sums change: some come out alone now, and some did but no longer do."""
    is_shifted = shifts != 0
    rows, shifts = rows.where(is_shifted), shifts[is_shifted]
    if not len(rows):
        return
    join = tables.join
    before = np.zeros(len(rows), np.int64)
    for others in _read_stored(tables, 1 - port, np.unique(rows.codes)):
        before += _match_weights(join, port, rows, others)
    output_changes = join.output_flags(before + shifts) - join.output_flags(before)
    yield from tables.emit_unmatched(port, rows, rows.weights * output_changes)


def _read_stored(tables: JoinTables, port: int, codes: Ints) -> Iterator[KeyedRows]:
    """The rows that a table had before the batch for these codes, in parts, without those that never match."""
    side = tables.join.sides[port]
    for rows in tables.tables[port].find_parts(codes):
        yield rows.where(side.can_match(rows.table)) if side.upsert_key else rows


def _match_weights(join: TableJoinOperator, port: int, rows: KeyedRows, others: KeyedRows) -> Ints:
    """For each of the rows of a port the weight of what it matches among rows of the other."""
    if not len(others):
        return np.zeros(len(rows), np.int64)
    if join.condition is None and _has_exact_codes(join, port, rows, others):
        totals = np.concatenate([[0], np.cumsum(others.weights)])
        start, stop = (np.searchsorted(others.codes, rows.codes, edge) for edge in ("left", "right"))
        return totals[stop] - totals[start]
    sums = np.zeros(len(rows), np.int64)
    left, right = (rows, others) if port == LEFT else (others, rows)
    for pairs in join.find_matches(left, right, ROWS_PER_PIECE):
        mine, theirs = pairs if port == LEFT else (pairs.build, pairs.probe)
        np.add.at(sums, mine, others.weights[theirs])
    return sums


def _has_exact_codes(join: TableJoinOperator, port: int, rows: KeyedRows, others: KeyedRows) -> bool:
    """Whether among these rows equal codes mean equal keys: nearly always so, as codes are hashes of 64 bits."""
    if join.left.exact:
        return True
    mine, theirs = (
        [part.table.column(name) for name in join.sides[side].keys] for side, part in ((port, rows), (1 - port, others))
    )
    first = np.searchsorted(others.codes, rows.codes, "left")
    has_match = np.flatnonzero(first < np.searchsorted(others.codes, rows.codes, "right"))
    # For each of the others, the first with its code.
    first_of_code = np.searchsorted(others.codes, others.codes, "left")
    return bool(
        null_safe_equal_at(mine, has_match, theirs, first[has_match]).all()
        and null_safe_equal_at(theirs, np.arange(len(others)), theirs, first_of_code).all()
    )


def _slice_codes(rows: KeyedRows, low: int, high: int) -> KeyedRows:
    return rows.slice(int(np.searchsorted(rows.codes, low, "left")), int(np.searchsorted(rows.codes, high, "right")))
