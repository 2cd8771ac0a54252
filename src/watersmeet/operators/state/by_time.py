"""Stages of one port whose rows come out once, by event time: what deduplication and window functions share.

Rows whose time the watermark had passed before the batch are late: they are counted, and go to a side output if there
is one. Rows without a time are counted as dropped. The others may wait, in the order of time, until the watermark has
passed them; rows of one time are in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import row_codes
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import END_OF_INPUT, Port, StreamOperator, Watermarks
from watersmeet.operators.core.watermarks import delay_watermark
from watersmeet.operators.state.layout import NO_WATERMARK, KeyedRows, RowLayout, concat_rows, to_record_batch
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.spine import Spine
from watersmeet.operators.state.state_schema import ShardInspector
from watersmeet.operators.state.table import CODE, NUMBER, TIMELINE_BUDGET


@dataclass(frozen=True)
class EventTimeStage(StreamOperator):
    """A stage whose rows come out once, by their event time.

    - ``columns``: what the emission shows of a row; ``by``: the group columns, NULL equal to NULL
    - ``time``: the event time, which is also the name of its watermark; ``time_name``: what users call it
    - ``code``: an int64 column that is equal wherever the group columns are; None: it is computed
    - ``position``: the column with the delivery order of a batch's rows; None: they are in that order
    - ``outputs``: the names under which the watermark is emitted
    - ``late``: what late rows show in a side output
    """

    columns: tuple[str, ...]
    by: tuple[str, ...]
    time: str
    _: KW_ONLY
    time_name: str | None = None
    code: str | None = None
    position: str | None = None
    outputs: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Further columns that it stores of rows that wait."""
        return ()

    @property
    def duplicate_columns(self) -> tuple[str, ...]:
        """The columns of rows that it leaves out, if these have a side output."""
        return ()

    @cached_property
    def row_layout(self) -> RowLayout:
        """The layout of rows that wait."""
        columns = tuple(dict.fromkeys((*self.columns, *self.inputs, *self.by, self.time, CODE)))
        return RowLayout(columns, (self.time,), sort_time=self.time, code=CODE, numbers=(NUMBER,))

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port: rows of one time are in the order of their arrival."""
        return frozenset({0})

    @property
    def ports(self) -> tuple[Port]:
        """The only port."""
        return (
            Port(
                self.columns, (self.time,), self.by, self.code, late=self.late, time_name=self.time_name,
                unmatched=self.duplicate_columns,
            ),
        )  # fmt: skip

    def admit(self, shard: Shard, table: pa.Table | None) -> tuple[KeyedRows, dict[str, int]]:
        """The arrivals that are in time and have one, numbered as they arrive; and the next number, to be stored."""
        number = int(shard.state.directory.numbers.get("number", 0))
        if table is None or not table.num_rows:
            return self.row_layout.empty_rows, {"number": number}
        arrived = table
        if self.position is not None:
            arrived = table.take(pa.array(np.argsort(table.column(self.position).to_numpy(), kind="stable")))
        times = arrived.column(self.time).combine_chunks()
        is_late = shard.detect_late_rows(0, arrived, {self.time: as_int64(times)})
        has_time = times.is_valid().to_numpy(zero_copy_only=False)
        shard.counters.dropped[0] += int((~has_time & ~is_late).sum())
        read = to_record_batch(arrived)
        codes = np.zeros(len(read), np.int64)
        if self.by:
            codes = row_codes(read, self.by) if self.code is None else as_int64(read.column(self.code))
        made = {CODE: pa.array(codes), NUMBER: pa.array(number + np.arange(len(read)))}
        names = list(self.row_layout.run_columns)
        rows = self.row_layout.rows(pa.table([made[n] if n in made else read.column(n) for n in names], names=names))
        return rows.where(has_time & ~is_late), {"number": number + len(read)}

    def open_waiting(self, shard: Shard) -> Spine:
        """The rows that wait."""
        return shard.state.spine("waiting", self.row_layout, TIMELINE_BUDGET)

    def watermark(self, shard: Shard) -> int:
        """The watermark after the batch."""
        return shard.watermarks_after.received.get(self.time, NO_WATERMARK)

    def output_watermarks(self, shard: Shard, wait: int = 0) -> Watermarks:
        """The watermarks of the result, which is so much behind. They never fall: a changed query may wait longer."""
        watermark, emitted = self.watermark(shard), shard.state.directory.emitted
        if watermark == NO_WATERMARK:
            return {}
        delayed = delay_watermark(watermark, wait)
        return {name: max(delayed, emitted.get(name, delayed)) for name in self.outputs}


def next_number(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The next arrival number of all shards."""
    return {"number": max(int(part.get("number", 0)) for part in parts)}


def last_passed(watermark: int, length: int) -> int:
    """The last time that a watermark has passed, and that is further behind it than a length.

    >>> last_passed(10, 0), last_passed(10, 4)
    (9, 5)
    """
    if watermark in (NO_WATERMARK, END_OF_INPUT):
        return watermark
    return max(watermark - length - 1, NO_WATERMARK)


def release_rows(waiting: Spine, new: KeyedRows, mark: int) -> KeyedRows:
    """Let the rows up to a time leave those that wait, which ``new`` ones join, in the order of time and arrival."""
    parts, time = list[KeyedRows](), waiting.layout.sort_time
    for block in waiting.blocks:
        if block.lowest[time] <= mark:
            rows = waiting.read(block)
            is_due = rows.times[time] <= mark
            parts.append(rows.where(is_due & waiting.live_mask(block)))
            waiting.remove(block, is_due)
    is_due = new.times[time] <= mark
    waiting.add(new.where(~is_due))
    return _sort_by_arrival([*parts, new.where(is_due)], time)


def rows_up_to(waiting: Spine, mark: int) -> KeyedRows:
    """The waiting rows up to a time, in the order of time and arrival; they go on waiting."""
    parts, time = list[KeyedRows](), waiting.layout.sort_time
    for block in waiting.blocks:
        if block.lowest[time] <= mark:
            rows = waiting.read(block)
            parts.append(rows.where(waiting.live_mask(block) & (rows.times[time] <= mark)))
    return _sort_by_arrival(parts, time) if parts else waiting.layout.empty_rows


def _sort_by_arrival(parts: Sequence[KeyedRows], time: str) -> KeyedRows:
    """Rows in the order of a time, and of their arrival where that is the same."""
    rows = concat_rows(parts)
    return rows.take(np.lexsort((rows.attributes[NUMBER], rows.times[time])))
