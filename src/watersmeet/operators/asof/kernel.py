"""The as-of join: each left row, a question, gets the version of the right side that is in force at its time.

Definition. A question and a version fit when their keys are equal (NULL never is), the version's time lies on the side
of the question's time that the direction names (equal times count unless the join is strict), and it is no further away
than the tolerance. Of the versions that fit, the question chooses the nearest in time; of two that are equally far, the
earlier. Only keys and times decide. The chosen version is the question's answer unless it is *void*: the delete of its
key, or a row for which the condition of its side is not true. A question that chose a void version, or one with which
the rest of the condition is not true, has no answer, and gets no other one.

A key has one version per time: in a stream the first delivered; in a table (``upserts``) the last, since each change
replaces the one before.

A question is *final* when no version that may still arrive could change its answer. Such versions have times at or
after the watermark of the right side. So a question waits until that watermark has passed every time at which a version
would be preferred to the best known one, and is final at once where there is no such time:

- ``backward``: the times after the best known version, up to the question's own
- ``forward``: the times from the question's own to before the best known version, or to the end of the tolerance
- ``nearest``: the times that are nearer than the best known version, or as near and earlier
- for a table also the time of the best known version, whose row may still be replaced

A batch is one instant of a shard:

1. A new row is late if one of its times is below its column's watermark before the batch. It is dropped and counted.
2. A new question that can have no answer (NULL key, NULL time, own predicate not true) is emitted padded at once if the
   join is ``left``. A version with a NULL key or time is ignored; a change of a table without them is dropped and
   counted.
3. A new version that no question could choose any more (see below, as of before the batch) is ignored. Of two versions
   of a key and time the one that does not count is dropped and counted.
4. The watermarks of the batch are applied. Every question that is now final is emitted: with its answer, or without one
   padded if the join is ``left``.

The state holds the questions that are not final, and the versions that a question may still choose, void ones too: a
question must not choose the version before a void one. Questions have times at or after the *horizon*, the earlier of
the left watermark and the first open question. A version is obsolete when another of its key is later and still before
the horizon (or, if not strict, at it), or when all times within its tolerance are before the horizon; for ``forward``,
when its own time is. Obsolete versions may remain in large runs until these are merged: no question chooses them.

The result's watermarks are those of the left side, held back by open questions. The end of the right side makes all of
them final. See `definition` for the same, one row at a time. Only rows with equal keys are joined, so rows may be
sharded by key.

`STATE_SCHEMA` describes what a state holds: questions that wait, and versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.asof.versions import VOID, VersionMatches, Versions, Which
from watersmeet.operators.core.changes import OP, POSITION
from watersmeet.operators.core.condition import Condition, holds
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, as_int64, reach, stable_order
from watersmeet.operators.core.operator import END_OF_INPUT, LEFT, RIGHT, Emission, Port, StateStore, Watermarks
from watersmeet.operators.core.watermarks import Bound, WatermarkState
from watersmeet.operators.state.layout import KeyedRows, RowLayout
from watersmeet.operators.state.shard import Shard, TwoSided
from watersmeet.operators.state.spine import ShardState
from watersmeet.operators.state.state_schema import ExpiryTimes, SpineSchema, StateSchema
from watersmeet.operators.state.table import Timeline

AsofKind = Literal["inner", "left"]
"""The treatment of a question without an answer. ``inner``: it is dropped. ``left``: it is emitted padded."""

Direction = Literal["backward", "forward", "nearest"]
"""The place of a version. ``backward``: at or before the question. ``forward``: at or after it. ``nearest``: both."""


@dataclass(frozen=True)
class AsofJoinOperator(TwoSided):
    """An as-of join, ready to run.

    ``tolerance`` is how far away a version may be, in the unit of the times (microseconds for TIMESTAMP and DATE);
    None: any distance. ``padded_column`` names an int8 column of the emission: -1 for a pair, 1 where the right side
    is missing; None: no such column. A right port with an ``upsert_key`` is a table: its arrivals are changes.
    ``condition`` tests a question with the version it chose.

    >>> from watersmeet.tools.testing import MemoryStore
    >>> join = AsofJoinOperator("left", Port(("q",), ("q",)), Port(("t", "v"), ("t",)))
    >>> arrivals = {0: pa.table({"q": [1, 7, 9]}), 1: pa.table({"t": [5, 8], "v": ["a", "b"]})}
    >>> for table in join.step(MemoryStore(), arrivals, {"q": 9, "t": 8}).rows:
    ...     print(table.to_pylist())
    [{'q': 7, 't': 5, 'v': 'a'}]
    [{'q': 1, 't': None, 'v': None}]
    """

    name: ClassVar[str] = "as-of"

    kind: AsofKind
    direction: Direction = "backward"
    strict: bool = False
    tolerance: int | None = None
    padded_column: str | None = None
    condition: Condition | None = None

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Continue with the state of a join with another tolerance: versions beyond the old one are gone for good."""
        take_over(self, store, was)

    @property
    def extra(self) -> tuple[str, ...]:
        """The column that names the missing side, if there is one."""
        return () if self.padded_column is None else (self.padded_column,)

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The number of a port."""
        return (pa.int8(),) * len(self.extra)

    @property
    def identity(self) -> Identity:
        """The part of the join that determines the meaning of its state."""
        condition = {} if self.condition is None else {"condition": self.canonical_names.condition(self.condition)}
        return self.make_identity(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            direction=self.direction,
            strict=self.strict,
            tolerance=self.tolerance,
            **condition,
        )

    @property
    def upserts(self) -> bool:
        """Whether versions are changes of a table: upserts and deletes; the last one for a key and time wins."""
        return bool(self.right.upsert_key)

    @property
    def has_void(self) -> bool:
        """Whether a version may be void."""
        return self.upserts or self.right.dead is not None

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result: the left side's."""
        return self.left.times

    @property
    def waits(self) -> tuple[Bound, ...]:
        """Questions wait for the right watermark, versions for the left one. An idle side follows the other."""
        return (Bound(self.left.time, self.right.time, 0), Bound(self.right.time, self.left.time, 0))

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The versions' port: among versions of equal time the first counts, or the last for a table."""
        return frozenset({RIGHT})

    @property
    def watermark_dependencies(self) -> tuple[str, ...]:
        """The times of questions and of versions."""
        return (self.left.time, self.right.time)

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """The layout of each side's state: questions ordered by time, versions by key and time."""
        void = (VOID,) if self.has_void else ()
        stored = (*self._state_columns(self.right, (self.right.time,)), *void)
        return (
            RowLayout(self._state_columns(self.left, self.left.times), self.left.times, self.left.time),
            RowLayout(stored, (self.right.time,), self.right.time, self.right.code, absent=void),
        )

    @property
    def is_exact(self) -> bool:
        """Whether equal codes imply equal keys."""
        return self.left.exact and self.right.exact

    def _state_columns(self, side: Port, times: tuple[str, ...]) -> tuple[str, ...]:
        code = () if side.code is None else (side.code,)
        keys = () if self.is_exact else side.keys
        operands = () if self.condition is None else side.operands
        return tuple(dict.fromkeys((*side.columns, *times, *keys, *code, *operands)))


# One batch of an as-of join in one shard: admit questions and versions, emit final questions, store the open ones.


def step(
    join: AsofJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """Process one batch of one shard."""
    shard = Shard(join, store, watermarks, waits=join.waits)
    questions = Timeline.of(shard.state, "questions", join.layouts[LEFT])
    versions = Versions.of(join, shard.state, lambda: _horizon(join, shard.watermarks_after, questions))
    before = _horizon(join, shard.watermarks_before, questions)
    arrived, dead = _admit_questions(join, shard, arrivals)
    new, again = versions.admit(_admit_versions(join, shard, arrivals), before)
    shard.counters.dropped[RIGHT] += again
    versions.spine.add(new)
    answers = Answers(join, versions, shard.watermarks_after.received.get(join.right.time, int(LOWEST)))
    # By key, so that neighbours look for their versions in the same place.
    arrived = arrived.take(stable_order(question_codes(join, arrived)))
    is_final, answered = _answer_final(join, shard, answers, arrived)
    out = [*_pad_questions(join, shard, dead), *answered, *_release_final(join, shard, answers, questions, new)]
    questions.add(arrived.where(~is_final))
    versions.prune(before, _horizon(join, shard.watermarks_after, questions))
    out += _drop_overflow(join, shard, questions, versions)
    return shard.close(shard.hold_back_watermarks(join.times, questions.spine), out)


def take_over(join: AsofJoinOperator, store: StateStore, was: Identity) -> None:
    """Drop versions that were out of reach by the old tolerance, even if a longer one would reach them.

    Where no version could be void before, add the flag to all stored versions, unset.
    """
    state = ShardState(store, join.canonical_names)
    questions = Timeline.of(state, "questions", join.layouts[LEFT])
    horizon = _horizon(join, WatermarkState.of(state.directory.received, ()), questions)
    versions = Versions.of(replace(join, tolerance=was["tolerance"]), state, lambda: horizon)
    for block in versions.spine.blocks:
        rows = versions.spine.index(block)
        versions.spine.remove(block, versions.is_expired(versions.times(rows), horizon))
    if join.has_void and VOID not in was["ports"][RIGHT]["stored"]:
        versions.spine.compact()
    state.save()


def _admit_questions(
    join: AsofJoinOperator, shard: Shard, arrivals: Mapping[int, pa.Table]
) -> tuple[KeyedRows, KeyedRows]:
    """The new questions that are not late: those that may have an answer, and those that never can."""
    layout = join.layouts[LEFT]
    return (
        shard.admit_rows(LEFT, arrivals[LEFT], layout) if LEFT in arrivals else (layout.empty_rows, layout.empty_rows)
    )


def _admit_versions(join: AsofJoinOperator, shard: Shard, arrivals: Mapping[int, pa.Table]) -> KeyedRows:
    """The new versions that are in time and have a key and a time, in the order of delivery."""
    layout, side = join.layouts[RIGHT], join.right
    if RIGHT not in arrivals:
        return layout.empty_rows
    table = arrivals[RIGHT]
    if POSITION in table.column_names:
        table = table.take(pa.array(stable_order(as_int64(table.column(POSITION).combine_chunks()))))
    if join.has_void:
        void = np.zeros(table.num_rows, np.bool_)
        if join.upserts:
            void |= table.column(OP).to_numpy() < 0
        if side.dead is not None:
            void |= pc.fill_null(table.column(side.dead), True).to_numpy()
        table = table.append_column(VOID, pa.array(void))
    in_time, unusable = shard.admit_rows(RIGHT, table, layout, replace(side, dead=None))
    if join.upserts:
        shard.counters.dropped[RIGHT] += len(unusable)
    return in_time


def _answer_final(
    join: AsofJoinOperator, shard: Shard, answers: Answers, rows: KeyedRows
) -> tuple[Bools, list[pa.Table]]:
    """A mask of the questions that are final, and the rows emitted for them."""
    matches, is_final = answers.find(rows)
    has_answer = is_final & matches.is_found & ~answers.versions.is_void(matches, is_final)
    out: list[pa.Table] = []
    for which, versions in answers.versions.take_columns(matches, has_answer):
        fits = _fits(join, rows, which, versions)
        has_answer[which[~fits]] = False
        shard.counters.matched += int(np.count_nonzero(fits))
        if fits.any():
            theirs = versions.filter(pa.array(fits)).columns[: len(join.right.columns)]
            out.append(_result_table(join, rows.take(which[fits]), theirs, -1))
    answered = np.flatnonzero(has_answer)
    shard.counters.record_delays(rows.times[join.left.time], answered, matches.times, answered)
    return is_final, [*out, *_pad_questions(join, shard, rows.where(is_final & ~has_answer))]


def _fits(join: AsofJoinOperator, rows: KeyedRows, which: Ints, versions: pa.RecordBatch) -> Bools:
    """A mask of the versions with which the condition is true; ``which``: the questions that chose them."""
    if join.condition is None:
        return np.ones(which.size, np.bool_)
    own = frozenset(rows.table.schema.names)

    def column(name: str) -> pa.Array:
        return rows.table.column(name).take(pa.array(which)) if name in own else versions.column(name)

    return holds(join.condition, column, which.size)


def _release_final(
    join: AsofJoinOperator, shard: Shard, answers: Answers, questions: Timeline, new: KeyedRows
) -> Iterator[pa.Table]:
    """Remove the open questions that are now final; yields the rows emitted for them."""
    ranges = [(int(LOWEST), answers.watermark)]
    if len(new):
        # A version at the question's own time, or next to it, may make it final before the watermark gets there.
        times = answers.versions.times(new)
        ranges.append((max(answers.watermark + 1, int(times.min()) - 1), min(int(times.max()) + 1, int(HIGHEST))))
    for low, high in ranges:
        for block, rows in questions.blocks_within(low, high):
            times = rows.times[join.left.time]
            first, beyond = int(np.searchsorted(times, low, "left")), int(np.searchsorted(times, high, "right"))
            is_final = np.zeros(len(rows), np.bool_)
            is_final[first:beyond], out = _answer_final(join, shard, answers, rows.slice(first, beyond))
            questions.spine.remove(block, is_final)
            yield from out


def _drop_overflow(join: AsofJoinOperator, shard: Shard, questions: Timeline, versions: Versions) -> Iterator[pa.Table]:
    """Drop the rows with the earliest times if ``max_rows`` is exceeded; yields dropped questions, padded."""
    spines = (questions.spine, versions.spine)
    if join.max_rows is None or sum(map(len, spines)) <= join.max_rows:
        return
    versions.spine.compact()
    parts = [(port, block, spines[port].read(block)) for port in (LEFT, RIGHT) for block in spines[port].blocks]
    times = [rows.times[join.ports[port].time] for port, _, rows in parts]
    for (port, block, rows), evicted in zip(parts, shard.choose_overflow(times, shard.spine_sizes), strict=True):
        shard.counters.dropped[port] += int(evicted.sum())
        spines[port].remove(block, evicted)
        if port == LEFT:
            yield from _pad_questions(join, shard, rows.where(evicted))


def _horizon(join: AsofJoinOperator, watermarks: WatermarkState, questions: Timeline) -> int:
    """The earliest time of any question, open or still to arrive."""
    earliest = questions.spine.earliest(join.left.time)
    watermark = watermarks.received.get(join.left.time, int(LOWEST))
    return watermark if earliest is None else min(watermark, earliest)


def _pad_questions(join: AsofJoinOperator, shard: Shard, rows: KeyedRows) -> list[pa.Table]:
    """Questions without an answer, if the join is ``left``; no rows, no table."""
    if not len(rows) or join.kind != "left":
        return []
    shard.counters.padded[LEFT] += len(rows)
    return [_result_table(join, rows, [pa.nulls(len(rows))] * len(join.right.columns), RIGHT)]


def _result_table(join: AsofJoinOperator, rows: KeyedRows, right: list[pa.Array], missing: int) -> pa.Table:
    """Rows of the result; ``missing`` is the port without a row, or -1."""
    left = rows.table.select(list(join.left.columns)).columns
    extra = [pa.array(np.full(len(rows), missing, np.int8))] * len(join.extra)
    return pa.Table.from_arrays([*left, *right, *extra], names=[*join.left.columns, *join.right.columns, *join.extra])


# The answers of an as-of join: the best known version for a question, and whether a better one may still arrive.


@dataclass(frozen=True)
class Answers:
    """Finds versions for questions; versions still to arrive have times at or after the ``watermark``."""

    join: AsofJoinOperator
    versions: Versions
    watermark: int

    def find(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The best known version for each question, and whether the question is final."""
        match self.join.direction:
            case "backward":
                matches, is_final = self._backward(rows)
            case "forward":
                matches, is_final = self._forward(rows)
            case "nearest":
                matches, is_final = self._nearest(rows)
        return matches, is_final | (self.watermark == END_OF_INPUT)

    def _backward(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The last version before each question, and whether no later one can arrive."""
        low, high = self._reach_back(rows)
        matches = self._find(rows, low, high, "last")
        is_final = (self.watermark > high) | (low > high)
        return matches, is_final if self.join.upserts else is_final | (matches.is_found & (matches.times == high))

    def _forward(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The first version after each question, and whether no earlier one can arrive."""
        low, high = self._reach_forward(rows)
        matches = self._find(rows, low, high, "first")
        is_first = (matches.times == low) | (self.watermark >= matches.times)
        if self.join.upserts:
            is_first = self.watermark > matches.times
        return matches, np.where(matches.is_found, is_first, (self.watermark > high) | (low > high))

    def _nearest(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The nearest version to each question, and whether no nearer one can arrive."""
        times = rows.times[self.join.left.time]
        back, on = (
            self._find(rows, *self._reach_back(rows), "last"),
            self._find(rows, *self._reach_forward(rows), "first"),
        )
        # Unsigned, because the distance of two times may overflow a signed number.
        behind, ahead = (times - back.times).view(np.uint64), (on.times - times).view(np.uint64)
        earlier = back.is_found & (~on.is_found | (behind <= ahead))
        matches = VersionMatches(
            np.where(earlier, back.times, on.times),
            np.where(earlier, back.source, on.source),
            np.where(earlier, back.place, on.place),
        )
        distance = np.where(earlier, behind, ahead)
        room = (np.int64(HIGHEST) - times).view(np.uint64)
        # None is nearer than a version at the question's own time, which may be the lowest there is.
        nearer = times + np.maximum(np.minimum(distance, room).view(np.int64), 1) - 1
        # A version of a table may be replaced as long as another of the same time may arrive.
        nearer = np.maximum(nearer, matches.times) if self.join.upserts else nearer
        last = np.where(matches.is_found, nearer, np.maximum(self._reach_back(rows)[1], self._reach_forward(rows)[1]))
        none = matches.is_found & ((distance == 0) | (self.join.strict & earlier & (distance == 1)))
        none &= not self.join.upserts
        if self.join.strict:
            # No version can arrive at the question's own time, nor before the lowest time.
            none |= (last == times) & (times == LOWEST)
            last = np.where(last == times, times - 1, last)
        return matches, none | (self.watermark > last) | (self.join.strict and self.join.tolerance == 0)

    def _reach_back(self, rows: KeyedRows) -> tuple[Ints, Ints]:
        """The first and last time of a version at or before each question."""
        times, tolerance = rows.times[self.join.left.time], self.join.tolerance
        return reach(times, None if tolerance is None else -tolerance, -int(self.join.strict))

    def _reach_forward(self, rows: KeyedRows) -> tuple[Ints, Ints]:
        """The first and last time of a version at or after each question."""
        times, tolerance = rows.times[self.join.left.time], self.join.tolerance
        return reach(times, int(self.join.strict), tolerance)

    def _find(self, rows: KeyedRows, low: Ints, high: Ints, which: Which) -> VersionMatches:
        """For each question the first or last version of its key between two times."""
        keys = self.versions.keys(rows, self.join.left.keys)
        return self.versions.find(question_codes(self.join, rows), keys, low, high, which)


def question_codes(join: AsofJoinOperator, rows: KeyedRows) -> Ints:
    """The codes of questions, which are not sorted by them."""
    code = join.left.code
    return np.zeros(len(rows), np.int64) if code is None else as_int64(rows.table.column(code))


def spine(identity: Identity, name: str) -> SpineSchema:
    """The questions, or the versions."""
    if name == "versions":
        return SpineSchema(RIGHT, "until no left row can need it; a replaced version may stay a little longer")
    if identity["direction"] != "backward":
        return SpineSchema(LEFT, "until no better version can arrive")
    left, right = (port["time"] for port in identity["ports"])
    return SpineSchema(LEFT, "until no better version can arrive", expiry=partial(_expiry_times, left, right))


def _expiry_times(own: str, other: str, rows: pa.RecordBatch) -> ExpiryTimes:
    return {other: as_int64(rows.column(own))}


STATE_SCHEMA = StateSchema(("as-of",), spine)
