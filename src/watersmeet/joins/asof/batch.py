"""One batch of an as-of join in one shard: new questions and versions, what is settled, what waits on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.asof.answers import Answers, question_codes
from watersmeet.joins.asof.versions import VOID, Versions
from watersmeet.joins.core.changes import OP, POSITION
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.marks import WatermarkState
from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools, stable_order
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, StateStore, Watermarks
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.state.layout import KeyedRows, as_int64
from watersmeet.joins.state.spine import ShardState
from watersmeet.joins.state.timeline import Timeline

if TYPE_CHECKING:
    from watersmeet.joins.asof.operator import AsofJoinOperator


def step(
    join: AsofJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """Process one batch of one shard."""
    shard = Shard(join, store, watermarks, waits=join.waits)
    questions = Timeline.of(shard.state, "questions", join.layouts[LEFT])
    versions = Versions.of(join, shard.state, lambda: _horizon(join, shard.after, questions))
    before = _horizon(join, shard.before, questions)
    arrived, dead = _admit_questions(join, shard, arrivals)
    new, again = versions.admit(_admit_versions(join, shard, arrivals), before)
    shard.counters.dropped[RIGHT] += again
    versions.spine.add(new)
    answers = Answers(join, versions, shard.after.received.get(join.right.time, int(LOWEST)))
    # By key, so that neighbours look for their versions in the same place.
    arrived = arrived.take(stable_order(question_codes(join, arrived)))
    is_final, answered = _answer_final(join, shard, answers, arrived)
    out = [*_pad_questions(join, shard, dead), *answered, *_release_final(join, shard, answers, questions, new)]
    questions.add(arrived.where(~is_final))
    versions.prune(before, _horizon(join, shard.after, questions))
    out += _drop_overflow(join, shard, questions, versions)
    return shard.close(shard.hold_back_watermarks(join.times, questions.spine), out)


def take_over(join: AsofJoinOperator, store: StateStore, was: Identity) -> None:
    """Let versions go that were out of reach by the tolerance of before, though a longer one might reach them.

    Where no version could be void before, all get the flag that says that they are not.
    """
    state = ShardState(store, join.canonical_names)
    questions = Timeline.of(state, "questions", join.layouts[LEFT])
    horizon = _horizon(join, WatermarkState.of(state.directory.received, ()), questions)
    versions = Versions.of(replace(join, tolerance=was["tolerance"]), state, lambda: horizon)
    for block in versions.spine.blocks:
        rows = versions.spine.read(block)
        versions.spine.remove(block, versions.is_expired(versions.times(rows), horizon))
    if join.has_void and VOID not in was["ports"][RIGHT]["stored"]:
        versions.spine.compact()
    state.save()


def _admit_questions(
    join: AsofJoinOperator, shard: Shard, arrivals: Mapping[int, pa.Table]
) -> tuple[KeyedRows, KeyedRows]:
    """The new questions that are in time: those that something may fit, and those that nothing can."""
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
    """Which questions are settled, and what comes out of them."""
    matches, is_final = answers.find(rows)
    has_answer = is_final & matches.is_found & ~answers.versions.is_void(matches, is_final)
    answered = np.flatnonzero(has_answer)
    shard.counters.record_delays(rows.times[join.left.time], answered, matches.times, answered)
    out: list[pa.Table] = []
    for which, theirs in answers.versions.take_columns(matches, has_answer):
        shard.counters.matched += which.size
        out.append(_result_table(join, rows.take(which), theirs, -1))
    return is_final, [*out, *_pad_questions(join, shard, rows.where(is_final & ~has_answer))]


def _release_final(
    join: AsofJoinOperator, shard: Shard, answers: Answers, questions: Timeline, new: KeyedRows
) -> Iterator[pa.Table]:
    """Let the open questions leave that are now settled; gives what comes out of them."""
    ranges = [(int(LOWEST), answers.watermark)]
    if len(new):
        # A version at the very time of a question, or next to it, may settle it before the mark gets there.
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
    """Drop the rows with the earliest times if more would be kept than may be; gives questions without an answer."""
    spines = (questions.spine, versions.spine)
    if join.max_rows is None or sum(map(len, spines)) <= join.max_rows:
        return
    versions.spine.compact()
    parts = [(port, block, spines[port].read(block)) for port in (LEFT, RIGHT) for block in spines[port].blocks]
    times = [rows.times[join.sides[port].time] for port, _, rows in parts]
    for (port, block, rows), evicted in zip(parts, shard.choose_overflow(times, shard.spine_sizes), strict=True):
        shard.counters.dropped[port] += int(evicted.sum())
        spines[port].remove(block, evicted)
        if port == LEFT:
            yield from _pad_questions(join, shard, rows.where(evicted))


def _horizon(join: AsofJoinOperator, watermarks: WatermarkState, questions: Timeline) -> int:
    """The earliest time that a question may have, of those that are open and of those that may come."""
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
