"""One batch of an as-of join in one shard: new questions and versions, what is settled, what waits on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.asof.answers import Answers, codes
from watersmeet.joins.asof.versions import VOID, Versions
from watersmeet.joins.core.changes import OP, POSITION
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.marks import Watermarks
from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools, stable_order
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Store
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.state.layout import Rows, as_int64
from watersmeet.joins.state.spine import State
from watersmeet.joins.state.timeline import Timeline

if TYPE_CHECKING:
    from watersmeet.joins.asof.operator import AsofJoin


def step(join: AsofJoin, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Emission:
    """Process one batch of one shard."""
    shard = Shard(join, store, marks, waits=join.waits)
    questions = Timeline.of(shard.state, "questions", join.layouts[LEFT])
    versions = Versions.of(join, shard.state, lambda: _horizon(join, shard.after, questions))
    before = _horizon(join, shard.before, questions)
    asked, dead = _questions(join, shard, arrivals)
    new, again = versions.admitted(_new_versions(join, shard, arrivals), before)
    shard.tally.dropped[RIGHT] += again
    versions.spine.add(new)
    answers = Answers(join, versions, shard.after.received.get(join.right.time, int(LOWEST)))
    # By key, so that neighbours look for their versions in the same place.
    asked = asked.take(stable_order(codes(join, asked)))
    settled, answered = _settled(join, shard, answers, asked)
    out = [*_padded(join, shard, dead), *answered, *_released(join, shard, answers, questions, new)]
    questions.add(asked.where(~settled))
    versions.review(before, _horizon(join, shard.after, questions))
    out += _dropped(join, shard, questions, versions)
    return shard.close(shard.held_back(join.times, questions.spine), out)


def take_over(join: AsofJoin, store: Store, was: Identity) -> None:
    """Let versions go that were out of reach by the tolerance of before, though a longer one might reach them.

    Where no version could be void before, all get the flag that says that they are not.
    """
    state = State(store, join.canonical)
    questions = Timeline.of(state, "questions", join.layouts[LEFT])
    horizon = _horizon(join, Watermarks.of(state.directory.received, ()), questions)
    versions = Versions.of(replace(join, tolerance=was["tolerance"]), state, lambda: horizon)
    for block in versions.spine.blocks:
        rows = versions.spine.read(block)
        versions.spine.remove(block, versions.is_expired(versions.times(rows), horizon))
    if join.has_void and VOID not in was["ports"][RIGHT]["stored"]:
        versions.spine.compact()
    state.save()


def _questions(join: AsofJoin, shard: Shard, arrivals: Mapping[int, pa.Table]) -> tuple[Rows, Rows]:
    """The new questions that are in time: those that something may fit, and those that nothing can."""
    layout = join.layouts[LEFT]
    return shard.admitted(LEFT, arrivals[LEFT], layout) if LEFT in arrivals else (layout.nothing, layout.nothing)


def _new_versions(join: AsofJoin, shard: Shard, arrivals: Mapping[int, pa.Table]) -> Rows:
    """The new versions that are in time and have a key and a time, in the order of delivery."""
    layout, side = join.layouts[RIGHT], join.right
    if RIGHT not in arrivals:
        return layout.nothing
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
    placed, astray = shard.admitted(RIGHT, table, layout, replace(side, dead=None))
    if join.upserts:
        shard.tally.dropped[RIGHT] += len(astray)
    return placed


def _settled(join: AsofJoin, shard: Shard, answers: Answers, rows: Rows) -> tuple[Bools, list[pa.Table]]:
    """Which questions are settled, and what comes out of them."""
    found, settled = answers.to(rows)
    has_answer = settled & found.any & ~answers.versions.is_void(found, settled)
    answered = np.flatnonzero(has_answer)
    shard.tally.met(rows.times[join.left.time], answered, found.times, answered)
    out: list[pa.Table] = []
    for which, theirs in answers.versions.shown(found, has_answer):
        shard.tally.matched += which.size
        out.append(_table(join, rows.take(which), theirs, -1))
    return settled, [*out, *_padded(join, shard, rows.where(settled & ~has_answer))]


def _released(join: AsofJoin, shard: Shard, answers: Answers, questions: Timeline, new: Rows) -> Iterator[pa.Table]:
    """Let the open questions leave that are now settled; gives what comes out of them."""
    ranges = [(int(LOWEST), answers.mark)]
    if len(new):
        # A version at the very time of a question, or next to it, may settle it before the mark gets there.
        times = answers.versions.times(new)
        ranges.append((max(answers.mark + 1, int(times.min()) - 1), min(int(times.max()) + 1, int(HIGHEST))))
    for low, high in ranges:
        for block, rows in questions.within(low, high):
            times = rows.times[join.left.time]
            first, beyond = int(np.searchsorted(times, low, "left")), int(np.searchsorted(times, high, "right"))
            leaving = np.zeros(len(rows), np.bool_)
            leaving[first:beyond], out = _settled(join, shard, answers, rows.slice(first, beyond))
            questions.spine.remove(block, leaving)
            yield from out


def _dropped(join: AsofJoin, shard: Shard, questions: Timeline, versions: Versions) -> Iterator[pa.Table]:
    """Drop the rows with the earliest times if more would be kept than may be; gives questions without an answer."""
    spines = (questions.spine, versions.spine)
    if join.max_rows is None or sum(map(len, spines)) <= join.max_rows:
        return
    versions.spine.compact()
    parts = [(port, block, spines[port].read(block)) for port in (LEFT, RIGHT) for block in spines[port].blocks]
    times = [rows.times[join.sides[port].time] for port, _, rows in parts]
    for (port, block, rows), leaving in zip(parts, shard.earliest(times, shard.kept), strict=True):
        shard.tally.dropped[port] += int(leaving.sum())
        spines[port].remove(block, leaving)
        if port == LEFT:
            yield from _padded(join, shard, rows.where(leaving))


def _horizon(join: AsofJoin, marks: Watermarks, questions: Timeline) -> int:
    """The earliest time that a question may have, of those that are open and of those that may come."""
    earliest = questions.spine.earliest(join.left.time)
    mark = marks.received.get(join.left.time, int(LOWEST))
    return mark if earliest is None else min(mark, earliest)


def _padded(join: AsofJoin, shard: Shard, rows: Rows) -> list[pa.Table]:
    """Questions without an answer, if the join is ``left``; no rows, no table."""
    if not len(rows) or join.kind != "left":
        return []
    shard.tally.padded[LEFT] += len(rows)
    return [_table(join, rows, [pa.nulls(len(rows))] * len(join.right.columns), RIGHT)]


def _table(join: AsofJoin, rows: Rows, right: list[pa.Array], missing: int) -> pa.Table:
    """Rows of the result; ``missing`` is the port without a row, or -1."""
    left = rows.table.select(list(join.left.columns)).columns
    extra = [pa.array(np.full(len(rows), missing, np.int8))] * len(join.extra)
    return pa.Table.from_arrays([*left, *right, *extra], names=[*join.left.columns, *join.right.columns, *join.extra])
