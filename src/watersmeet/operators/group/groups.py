"""The groups of a shard: a spine of groups with their accumulators, in which the newest run that has a group wins.

Invariants. A run has each group at most once, and only neighbours are merged. A deleted group is stored as one without
rows until no older run can have it. Blocks whose windows have all closed are dropped whole: their groups are never read
again.

Groups of format 1, in which sums of doubles were doubles, are converted when read. ``sum(x)#1`` was the sum, and
continues as the exact value of that double; ``moments(x)#1`` and ``#2`` were the mean and the sum of squared
deviations. The type of these columns gives the format of a block, so no block is rewritten for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import first_positions, key_ids
from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, Pairs, as_int64, match, sort_order
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.group.exact_sums import UNIT, Doubles, add_doubles
from watersmeet.operators.state.layout import Budget, FinalityBound, KeyedRows, RowLayout, concat_rows, to_record_batch
from watersmeet.operators.state.spine import ShardState, Spine

_BITS = 28
"""A count with more bits is split, as it cannot be a weight."""


def upgrade_groups(groups: pa.RecordBatch) -> pa.RecordBatch:
    """The groups with exact sums; those that have them are left as they are."""
    columns = dict(zip(groups.schema.names, groups.columns, strict=True))
    for name, column in list(columns.items()):
        if pa.types.is_float64(column.type) and name.endswith(")#1"):
            prefix = name.removesuffix("1")
            if name.startswith("sum("):
                columns |= _upgrade_sum(columns, prefix)
            elif name.startswith("moments("):
                columns |= _upgrade_moments(columns, prefix)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _upgrade_sum(columns: dict[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    total = _to_doubles(columns[f"{prefix}1"])
    places = np.arange(len(total))
    # A sum that is infinite or NaN stays so.
    kinds = (np.isnan(total), np.isposinf(total), np.isneginf(total))
    non_finite = {f"{prefix}{n}": _add_flags(columns[f"{prefix}{n}"], kind) for n, kind in enumerate(kinds, 2)}
    return {f"{prefix}1": add_doubles(pa.nulls(len(total)), places, total, np.ones_like(places)), **non_finite}


def _upgrade_moments(columns: dict[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    mean, squares = _to_doubles(columns[f"{prefix}1"]), _to_doubles(columns[f"{prefix}2"])
    finite = np.isfinite(mean) & np.isfinite(squares)
    mean, squares = np.where(finite, mean, 0.0), np.where(finite, squares, 0.0)
    count = columns[f"{prefix}0"].to_numpy() - columns[f"{prefix}3"].to_numpy()
    places = np.arange(len(mean))
    # The sum of squares is that of what values are off their mean, and the square of the mean for each.
    deviations = add_doubles(pa.nulls(len(mean)), places, squares, np.ones_like(places), up=-UNIT)
    return {
        f"{prefix}1": _add_repeated(pa.nulls(len(mean)), places, mean, count, 1),
        f"{prefix}2": _add_repeated(deviations, places, mean, count, 2),
        f"{prefix}3": _add_flags(columns[f"{prefix}3"], ~finite),
    }


def _add_repeated(old: pa.Array, places: Ints, values: Doubles, counts: Ints, power: Literal[1, 2]) -> pa.Array:
    """Sums, to which values, or their squares, are added so many times."""
    for above in range(0, 63, _BITS):
        part = (counts >> above) & (2**_BITS - 1)
        if part.any():
            old = add_doubles(old, places, values, part, power=power, up=above)
    return old


def _add_flags(count: pa.Array, flags: Bools) -> pa.Array:
    return pa.array(count.to_numpy() + flags)


def _to_doubles(array: pa.Array) -> Doubles:
    return array.to_numpy(zero_copy_only=False)


CODE, END, COUNT = "#code", "#end", "count()#0"
"""The stored columns of a group besides its keys and other accumulators: its code, the end of its window in
microseconds, if it has one, and its number of rows.
"""

KEEPS_ZERO_SIGN = "signed"
"""A number of the directory: ``min``, ``max``, ``first``, ``last`` and the like show -0.0 as such, and keys show 0.0
for it at every depth. A state without it has shown 0.0 for -0.0 as a value, and -0.0 inside structs and arrays as a
key. It continues to do so, so that retractions equal the emitted rows.
"""

TYPES = "types"
"""An entry of the directory's numbers: the Arrow schema of what the aggregates read, in base64, where groups are
emitted once. A batch without arrivals may close groups, and their values depend on these types.
"""

MOST_ENDS = 1_024
"""The number of different window ends that the directory counts exactly; every batch reads and writes it."""

BUDGET = Budget(block=65_536, in_order=True, chunk=262_144)


class _GroupLayout(RowLayout):
    """The layout of groups, which also reads format 1."""

    def rows(self, table: pa.Table | pa.RecordBatch) -> KeyedRows:
        """The table's columns as rows; sums of doubles stored as doubles become exact."""
        return super().rows(upgrade_groups(to_record_batch(table)))


def open_groups(
    state: ShardState, keys: Sequence[str], accumulators: Sequence[str], finality: FinalityBound | None
) -> Spine:
    """The groups of a shard; ``finality``: which of them have ended, by their windows or a key; None: none ever does.

    Without arrivals it is not known which accumulators there are; groups can then be dropped, but not merged.
    """

    def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
        stay = is_newest(rows, keys)
        if finality is not None:
            stay &= finality.is_open(rows)
        return rows.where(stay & ~is_empty(rows.table, keys) if is_oldest else stay)

    times = () if finality is None else (finality.time,)
    # Columns that are not keys follow them.
    layout = _GroupLayout(tuple(dict.fromkeys((*keys, *accumulators, CODE, *times))), times, code=CODE)
    return state.spine("groups", layout, BUDGET if accumulators else replace(BUDGET, merge_at=sys.maxsize), alive)


def find_groups(
    spine: Spine, keys: pa.RecordBatch, codes: Ints, ends: Ints | None = None
) -> tuple[pa.RecordBatch | None, Ints]:
    """Stored groups, and for each of these groups its position among them; -1: not stored.

    The groups are distinct and sorted by code. ``ends``: of sessions, since all those of a key share a code.
    """
    places = np.full(len(codes), -1)
    parts: list[KeyedRows] = []
    count, missing = 0, np.arange(len(codes))
    for run in reversed(spine.runs):
        for block in run:
            first = np.searchsorted(codes[missing], block.lowest_code, "left")
            queried = missing[first : np.searchsorted(codes[missing], block.highest_code, "right")]
            if queried.size:
                rows = spine.read(block)
                pairs = _match_groups(rows, keys, codes, queried, ends)
                parts.append(rows.take(pairs.build))
                places[pairs.probe] = count + np.arange(pairs.probe.size)
                count += pairs.probe.size
        # Whatever older runs have of these groups counts no longer.
        missing = missing[places[missing] < 0]
    if not parts:
        return None, places
    table = concat_rows(parts).table
    present = np.flatnonzero(places >= 0)
    places[present[is_empty(table, keys.schema.names)[places[present]]]] = -1
    return table, places


def is_empty(groups: pa.RecordBatch, keys: Sequence[str]) -> Bools:
    """A mask of the groups that have no rows left and disappear; the one without keys never does."""
    count = as_int64(groups.column(COUNT))
    return count == 0 if keys else np.zeros(len(count), np.bool_)


def rows_to_close(
    spine: Spine, finality: FinalityBound, closed_before: int, counts: EndCounts, before_end: int
) -> KeyedRows | None:
    """All stored rows that the bound closes and that had not closed before, sorted, the older first among equals.

    ``counts`` tells whether there may be any, without reading the state.
    """
    if finality.mark <= closed_before or not counts.may_close(finality.mark, before_end):
        return None
    parts: list[KeyedRows] = []
    for run in spine.runs:
        for block in run:
            lowest, highest = block.lowest.get(finality.time), block.highest.get(finality.time)
            if lowest is None or highest is None or lowest > finality.mark or highest <= closed_before:
                continue
            rows = spine.read(block)
            times = rows.times[finality.time]
            parts.append(rows.where(spine.live_mask(block) & (times > closed_before) & (times <= finality.mark)))
    return spine.layout.merge(parts) if parts else None


@dataclass(frozen=True)
class EndCounts:
    """How many groups there are by the end of their windows; ends are rounded up to a multiple of ``grain``.

    The grain is a power of two, and doubles until there are at most `MOST_ENDS` different ends: sessions have as many
    as there are sessions, and every batch writes all counts. Groups whose windows have ended are counted until their
    rounded end is reached, so that with a grain above 1 the total may be a little too high.
    """

    counts: Mapping[int, int] = field(default_factory=dict[int, int])
    grain: int = 1

    @staticmethod
    def of(numbers: Mapping[str, Any]) -> EndCounts:
        """The counts in the numbers of a directory; an older state has every end."""
        counts = EndCounts(dict[int, int](numbers.get("groups", ())), int(numbers.get("grain", 1)))
        return counts.coarsen(_grain_of(np.array(list(counts.counts), np.int64), counts.grain))

    @property
    def numbers(self) -> dict[str, Any]:
        """The counts as numbers of a directory."""
        return {"groups": sorted(self.counts.items()), **({"grain": self.grain} if self.grain > 1 else {})}

    @property
    def total(self) -> int:
        """How many groups there are."""
        return sum(self.counts.values())

    def with_changes(self, ends: Ints, changes: Ints) -> EndCounts:
        """The same after changes of groups with these ends.

        >>> EndCounts({7: 2, 8: 1}).with_changes(np.array([8, 9]), np.array([-1, 1])).counts
        {7: 2, 9: 1}
        >>> EndCounts({8: 1}, grain=8).with_changes(np.array([3, 17]), np.array([1, 1])).counts
        {8: 2, 24: 1}
        """
        grain = _grain_of(np.concatenate([np.array(list(self.counts), np.int64), ends]), self.grain)
        # Few, which is why they are not sorted.
        encoded = pa.array(_round_up(ends, grain)).dictionary_encode()
        sums = np.bincount(encoded.indices, changes, len(encoded.dictionary)).astype(np.int64)
        after = dict(self.coarsen(grain).counts)
        for end, change in zip(encoded.dictionary.to_pylist(), sums.tolist(), strict=True):
            after[end] = after.get(end, 0) + change
        return EndCounts({end: number for end, number in after.items() if number}, grain)

    def coarsen(self, grain: int) -> EndCounts:
        """The same with ends rounded up to multiples of another grain, no smaller than its own."""
        if grain == self.grain:
            return self
        after: dict[int, int] = {}
        ends = _round_up(np.array(list(self.counts), np.int64), grain)
        for end, number in zip(ends.tolist(), self.counts.values(), strict=True):
            after[end] = after.get(end, 0) + number
        return EndCounts(after, grain)

    def may_close(self, mark: int, before_end: int) -> bool:
        """Whether a group may end at or before a time that is so long before the end.

        >>> EndCounts({20: 1, 30: 2}).may_close(9, 10), EndCounts({20: 1}).may_close(10, 10)
        (False, True)
        """
        # Where ends are not known, the highest number stands for them.
        first = min((end - self.grain + 1 if end < HIGHEST else int(LOWEST) for end in self.counts), default=None)
        return first is not None and (mark == END_OF_INPUT or first - before_end <= mark)

    def open_after(self, watermark: int) -> EndCounts:
        """The counts of windows that end after a watermark; without any left, ends are exact again.

        A group without an end, or with one that did not fit, is open until the end of input.
        """
        never = int(HIGHEST) - 1 if watermark < END_OF_INPUT else END_OF_INPUT + 1
        remaining = {end: number for end, number in self.counts.items() if end > watermark or end >= never}
        return EndCounts(remaining, self.grain if remaining else 1)


def ends_after(times: Ints, length: int) -> Ints:
    """The ends that are so long after some times; the highest number is left to what has no end.

    >>> ends_after(np.array([5, 2**63 - 1]), 10).tolist() == [15, 2**63 - 2]
    True
    """
    return np.minimum(times, HIGHEST - 1 - length) + length


def _grain_of(ends: Ints, grain: int) -> int:
    """The smallest grain from this one on with which few enough different ends are left."""
    ends = np.sort(ends)
    # With the largest grain there are six at most, the ends of 64 bits among them.
    while grain < 2**62 and np.count_nonzero(np.diff(_round_up(ends, grain))) >= MOST_ENDS:
        grain *= 2
    return grain


def _round_up(ends: Ints, grain: int) -> Ints:
    """Ends as the next multiples of a power of two; where these do not fit 64 bits, the highest but one.

    The highest number is the end of groups that never end, and stays.
    """
    if grain == 1:
        return ends
    less = grain - 1
    above = np.where(ends > HIGHEST - 1 - less, HIGHEST - 1, (ends + less) & ~np.int64(less))
    return np.where(ends == HIGHEST, ends, above)


def _match_groups(rows: KeyedRows, keys: pa.RecordBatch, codes: Ints, queried: Ints, ends: Ints | None) -> Pairs:
    """The pairs of queried groups and rows with equal keys."""
    if ends is None or END not in rows.times:
        candidates = _match_codes(rows.codes, codes[queried])
    else:
        places = _match_codes(rows.codes, np.unique(codes[queried])).build
        places = places[sort_order(rows.codes[places], rows.times[END][places])]
        lasts = ends[queried]
        candidates = match(rows.codes[places], rows.times[END][places], codes[queried], lasts, lasts)
        candidates = Pairs(candidates.probe, places[candidates.build])
    pairs = Pairs(queried[candidates.probe], candidates.build)
    for name in keys.schema.names:
        values = keys.column(name).take(pa.array(pairs.probe))
        pairs = pairs.where(
            null_safe_equal(values, rows.table.column(name).take(pa.array(pairs.build)).cast(values.type))
        )
    return pairs


def _match_codes(codes: Ints, queried: Ints) -> Pairs:
    return match(codes, np.zeros(len(codes), np.int64), queried, *np.zeros((2, queried.size), np.int64))


def is_newest(rows: KeyedRows, keys: Sequence[str]) -> Bools:
    """A mask of the rows, ordered by code and older first among equals, that are the last of their groups."""
    is_repeat = rows.codes[1:] == rows.codes[:-1]
    several = np.flatnonzero(np.append(is_repeat, False) | np.append(False, is_repeat))[::-1]
    newest = np.ones(len(rows), np.bool_)
    if several.size:
        # Equal codes need not be equal keys.
        first = first_positions(key_ids(rows.table.take(pa.array(several)), keys))
        newest[several] = False
        newest[several[first]] = True
    return newest
