"""GROUP BY: rows or changes in, the changes of a table with one row per group out.

Definition. A group is made of the rows whose key columns are equal, where NULL equals NULL, NaN equals NaN and -0.0
equals 0.0. The table shows each group that has rows: its keys, then an aggregate per column. Without key columns there
is one group, which is shown from the first batch on, also without rows: then its counts are 0, its lists and sets are
empty, and every other aggregate is NULL.

Input with weights is a changelog: a row counts as often as its weight says, and a negative weight retracts rows. For
aggregates that cannot be retracted (`Function.retractable`), the state holds the rows of the groups (`members`), with
the columns that the aggregates read. Where order matters, a row has the position of its last arrival, and equal rows
share one position. A group without rows disappears.

A batch emits the changes of the table: ``-`` the old row of a group, ``+`` its new one, and no change where they are
the same.

With a window, each row belongs to a window of event time, which is part of the key. A batch is one instant of a shard:
rows whose window ends at or before the watermark known before the batch are late, dropped and counted; the others are
folded in; then the watermarks of the batch are applied. Groups whose window ends at or before the watermark are dropped
from the state; their last row remains valid.

A stream can also be grouped by the start of a window of known length, or by its end: the groups then close by that key,
and the state needs no further column.

The bounds of windows have watermarks behind a grouping: no row of the table changes any more in which one of them is at
or before its watermark. A grouping over such a table whose keys have such a column closes groups by it, as by windows.

Where the consumer only needs the top-N, the row of a group that closes with a batch is left out if at least N rows of
other groups that close with it in this shard rank before it: none of these is ever retracted, so the row can never be
in the top-N.

Where the result is a stream (``emit`` is ``"final"``), a group is emitted once, without a weight, by the batch whose
watermark closes it, and never retracted; a group whose event time is NULL closes at the end of input. The watermark of
the result is just behind the last group that has closed.

A session window grows: each row brings its own window, and windows of one key that overlap or touch merge into one,
from the first start to the last end, whose row replaces theirs. Closed sessions do not merge.

Values are Spark's: ``sum`` of integers is a BIGINT, that of decimals exact, ``avg`` of decimals rounded half up; a
value that does not fit its type is an `ArithmeticError`. Sums, averages, variances and deviations are computed exactly
over the current rows and rounded once: they do not depend on order, batches, or rows that were retracted. In ``min_by``
and ``max_by``, the last row to arrive wins among equals. See `definition`, one row at a time.

`STATE_SCHEMA` describes what a state holds: a row per group with its accumulators and, where an aggregate needs them,
the rows of the groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.aggregates import Aggregate, arrow_result, function_of, needs_all_rows
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, as_int64
from watersmeet.operators.core.operator import Emission, Emit, Port, StateStore, StreamOperator, Watermarks
from watersmeet.operators.core.order import TopN
from watersmeet.operators.group.groups import END, KEEPS_ZERO_SIGN, TYPES
from watersmeet.operators.group.step import step
from watersmeet.operators.state.shard import EndCounts
from watersmeet.operators.state.state_schema import (
    UNTIL_REPLACED,
    ExpiryTimes,
    ShardInspector,
    SpineSchema,
    StateSchema,
)


@dataclass(frozen=True)
class GroupByOperator(StreamOperator):
    """A GROUP BY, ready to run: one port.

    The emission has the ``keys``, then the output of each aggregate, then ``#weight``: 1 for an inserted row, -1 for a
    retracted one.

    - ``keys``: the key columns, of any type; -0.0 is emitted as 0.0 in their floats, at every depth
    - ``aggregates``: the aggregates, in the order of their columns
    - ``code``: an int64 column that is equal wherever the keys are equal, NULLs included; None: it is computed
    - ``changes``: arrivals carry ``#weight``
    - ``position``: the column with the delivery order of a batch's rows, if ``first`` or ``last`` needs it; None: the
      rows are in that order
    - ``window_end``: a TIMESTAMP column with the end of the row's window, which follows from the keys; None: no windows
    - ``time``: the name of the watermark that closes windows; with it there is a ``window_end``, or a ``final_key``
    - ``session``: the key column of session windows, a start and an end: windows of equal other keys merge where they
      touch; arrivals then carry no weights, and the state stores the rows themselves
    - ``final_key``: a time column among the keys by which groups become final. Of a changelog it is also the name of
      its watermark; of a stream it is ``before_end`` the end of a window that the watermark of ``time`` closes
    - ``before_end``: a length in the unit of the key, 0 for the end itself
    - ``finality_outputs``: the watermarks that are emitted, each with its delay behind the one that closes windows; for
      a changelog, the watermarks of all such keys, as received
    - ``requested_top_n``: the top-N that the consumer needs, by columns of the emission; None: all rows
    - ``emit``: the changes of the table, or each group once, when it closes; the emission then has no ``#weight``
    - ``max_rows``: the maximum number of groups; one more fails the batch, since a group cannot be dropped

    >>> from watersmeet.tools.testing import MemoryStore
    >>> grouping = GroupByOperator(("k",), (Aggregate("count", (), "n"), Aggregate("sum", ("v",), "total")))
    >>> store = MemoryStore()
    >>> for values in ([3, 4], [5]):
    ...     arrivals = {0: pa.table({"k": ["a"] * len(values), "v": values})}
    ...     for table in grouping.step(store, arrivals, {}).rows:
    ...         print(table.to_pylist())
    [{'k': 'a', 'n': 2, 'total': 7, '#weight': 1}]
    [{'k': 'a', 'n': 2, 'total': 7, '#weight': -1}]
    [{'k': 'a', 'n': 3, 'total': 12, '#weight': 1}]
    """

    name: ClassVar[str] = "group"

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    code: str | None = None
    changes: bool = False
    position: str | None = None
    window_end: str | None = None
    time: str | None = None
    session: str | None = None
    final_key: str | None = None
    finality_outputs: tuple[tuple[str, int], ...] = ()
    before_end: int = 0
    requested_top_n: TopN | None = None
    emit: Emit = "changes"

    def __post_init__(self) -> None:
        is_bound = self.final_key is not None and not self.changes
        if self.final_key is not None and (
            is_bound != (self.time is not None) or self.window_end is not None or self.final_key not in self.keys
        ):
            raise ValueError("what is settled is a key of a table without windows of its own, or a bound of a window")
        if (self.window_end is None) != (self.time is None) and not is_bound:
            raise ValueError("a window has an end and a mark that ends it")
        if self.session is not None and (self.changes or self.time is None or self.session not in self.keys):
            raise ValueError("sessions are those of a stream, in a key that is a window")
        if self.emit == "final" and self.time is None:
            raise ValueError("groups that are emitted once are closed by the watermark of an event time")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    @cached_property
    def all_rows_aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates that must see all rows of a group to know their value."""
        return tuple(part for part in self.aggregates if needs_all_rows(part.function, changes=self.is_weighted))

    @property
    def can_precombine(self) -> bool:
        """Whether one arrival may represent several equal ones: no aggregate depends on arrival order or stores rows.

        Such an arrival carries its count in `MULTIPLICITY`.
        """
        folds = {function_of(part.function).fold for part in self.aggregates}
        is_plain = self.position is None and not self.is_weighted and not self.all_rows_aggregates
        return is_plain and folds <= {"count", "sum", "moments", "least", "greatest"}

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """The watermark names of its final keys, where the input is a changelog."""
        return tuple(name for name, _ in self.finality_outputs) if self.time is None else ()

    @property
    def end_watermark(self) -> str | None:
        """The watermark that closes groups; None: groups never close."""
        return self.final_key if self.time is None else self.time

    def with_top_n(self, top_n: TopN) -> Self:
        """The same, if its groups end."""
        return self if self.end_watermark is None else replace(self, requested_top_n=top_n)

    @property
    def is_weighted(self) -> bool:
        """Whether rows can be retracted: those of a changelog, and those that move from one session to another."""
        return self.changes or self.session is not None

    @property
    def other_keys(self) -> tuple[str, ...]:
        """The keys within which sessions merge."""
        return tuple(name for name in self.keys if name != self.session)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port, if an aggregate depends on arrival order."""
        return frozenset() if self.position is None else frozenset({0})

    @property
    def ports(self) -> tuple[Port]:
        """The one there is; late rows are only counted."""
        return (Port(self.keys, () if self.time is None else (self.time,), self.keys, self.code),)

    @property
    def extra(self) -> tuple[str, ...]:
        """The outputs of the aggregates, and the weight, if groups are retracted."""
        return (*(part.output for part in self.aggregates), *((WEIGHT,) if self.emit == "changes" else ()))

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the aggregates, and of a weight."""
        types = (
            arrow_result(part.function, tuple(schemas[0].field(name).type for name in part.columns))
            for part in self.aggregates
        )
        return (*types, *((pa.int64(),) if self.emit == "changes" else ()))

    @property
    def identity(self) -> Identity:
        """The part of the grouping that determines the meaning of its state; names and order of its outputs do not."""
        names = self.canonical_names
        return self.make_identity(
            [self.keys],
            aggregates=sorted(part.describe(names.canonical_list) for part in self.aggregates),
            changes=self.changes,
            window_end=names.canonical_or_none(self.window_end),
            # Omitted without sessions, so that identities from before sessions existed stay equal.
            **({} if self.session is None else {"session": names.canonical_or_none(self.session)}),
            **({} if self.emit == "changes" else {"emit": self.emit}),
        )


def spine(identity: Identity, name: str) -> SpineSchema:
    """The groups, or the rows of groups."""
    (port,) = identity["ports"]
    keys = tuple(port.get("keys", ()))
    times = port.get("times", ())
    if not times:
        ends = "forever" if not identity["changes"] else "until the last row of the group is deleted"
        return SpineSchema(
            0, ends if name == "groups" else UNTIL_REPLACED, "newest" if name == "groups" else "weights", keys=keys
        )
    ends, rule = "until the watermark reaches the end of the window", "newest" if name == "groups" else "weights"
    return SpineSchema(0, ends, rule, partial(_until, times[0]), keys)


def _until(time: str, rows: pa.RecordBatch) -> ExpiryTimes:
    # A window closes when the watermark reaches its end, not when it passes it.
    return {time: as_int64(rows.column(END)) - 1} if END in rows.schema.names else {}


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The number of groups by end time, and the next arrival number of all shards."""
    rows = look.rows("groups", spine(identity, "groups"))
    ends = np.zeros(0, np.int64)
    if rows is not None:
        is_windowed = END in rows.table.schema.names
        ends = as_int64(rows.table.column(END)) if is_windowed else np.full(len(rows), HIGHEST)
    counted = EndCounts().with_changes(ends, np.ones(ends.size, np.int64))
    arrivals = [int(part["number"]) for part in parts if "number" in part]
    types = [part[TYPES] for part in parts if TYPES in part]
    all_keep = all(part.get(KEEPS_ZERO_SIGN) for part in parts if part)
    return {
        **counted.numbers,
        **({"number": max(arrivals)} if arrivals else {}),
        **({KEEPS_ZERO_SIGN: 1} if all_keep else {}),
        **({TYPES: types[0]} if types else {}),
    }


STATE_SCHEMA = StateSchema(("group",), spine, numbers=numbers)
