"""GROUP BY: rows or changes in, the changes of a table with one row per group out.

Definition. A group is made of the rows whose key columns are equal, where NULL equals NULL, NaN equals NaN and -0.0
equals 0.0. The table shows each group that has rows: its keys, then an aggregate per column. Without key columns there
is one group, which is shown from the first batch on for good, also without rows: then its counts are 0, its lists and
sets are empty, and whatever can be NULL is.

Input that has weights is a changelog: a row counts as often as its weight says, and a negative weight takes rows away.
Of aggregates that cannot be undone by themselves (`Function.retractable`) all rows of the groups are kept (`members`),
as far as they are read. Where order matters, a row stands where it last arrived, and equal rows stand together. A group
without rows disappears.

What comes out of a batch is how the table has changed with it: ``-`` the old row of a group, ``+`` its new one, and
nothing where they are the same.

With a window each row belongs to a window of event time that ends at a time of its own, and the window is part of the
key. A batch is one instant of a shard: rows whose window ends at or before the mark known before the batch are late,
dropped and counted; the others are folded in; then the marks of the batch are. Groups whose window ends at or before
the mark are forgotten; the row that they had stands.

The bounds of windows have marks behind a grouping: no row of the table changes any more in which one of them is at or
before its mark. A grouping over such a table whose keys have such a column forgets groups by it, as by windows.

Where only the first of its rows in an order are asked for, a row of a group that ends with a batch is left out if as
many are before it among the rows of other groups that end with it in this shard: none of these is ever taken back, so
that it will never be among the first.

With a session the window is one that grows: each row brings its own, and those of one key that overlap or touch are one
window, from the first start to the last end. Its row then takes the place of theirs. What is forgotten meets nobody.

Values are Spark's: ``sum`` of integers is a BIGINT, that of decimals exact, ``avg`` of decimals rounded half up; what
does not fit its type is an `ArithmeticError`. Sums, averages, variances and deviations are those of the rows that are
there, computed exactly and rounded once: neither order, nor batches, nor rows that have come and gone matter. Of
``min_by`` and ``max_by``, the last row to arrive wins among equals. See `definition`, one row at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.operator import Emission, StateStore, StreamOperator, Watermarks
from watersmeet.joins.core.order import TopN
from watersmeet.joins.core.port import Port
from watersmeet.joins.group.aggregates import canonical_name, function_of, is_aggregate, needs_all_rows
from watersmeet.joins.group.batch import step
from watersmeet.joins.group.types import arrow_result


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of a group: the function by its SQL name, the columns it is applied to, and the result's name.

    ``count`` of no columns is ``count(*)``. ``min_by`` and ``max_by`` have two: the value, then what is ordered.
    """

    function: str
    columns: tuple[str, ...]
    output: str

    def __post_init__(self) -> None:
        if not is_aggregate(self.function):
            raise ValueError(f"{self.function} is no aggregate of a grouping")

    @property
    def kind(self) -> str:
        """The function's name among its synonyms."""
        return canonical_name(self.function)


@dataclass(frozen=True)
class GroupByOperator(StreamOperator):
    """A grouping, ready to run: one port.

    The emission has the ``keys``, then the output of each aggregate, then ``#weight``: 1 for a row that the table has
    now, -1 for one that it no longer has.

    - ``keys``: the key columns, of any type; their floats come out with -0.0 as 0.0, at every depth
    - ``aggregates``: what is shown of a group
    - ``code``: an int64 column that is equal wherever the keys are equal, NULLs included; None: it is computed
    - ``changes``: arrivals carry ``#weight``
    - ``position``: the column that says in which order the rows of a batch were delivered, if ``first`` or ``last``
      asks for it; None: they are in that order
    - ``window_end``: a TIMESTAMP column with the end of the row's window, which follows from the keys; None: none
    - ``time``: the name of the watermark that ends a window
    - ``session``: the key column, a start and an end, that windows of one key are put together in where they touch;
      arrivals then carry no weights, and what is stored are their rows
    - ``final_key``: a key column, a time, by which the rows of a table are settled, which is also the name of its
      watermark
    - ``finality_outputs``: the watermarks that are handed on, each with how far it is behind the one that ends windows;
      of a table's rows, those of all such keys as they came
    - ``requested_top_n``: what is asked for of its table, by columns of the emission; None: all rows
    - ``max_rows``: how many groups are kept at most; more of them fail the batch, since a group cannot be dropped

    >>> from watersmeet.testing import MemoryStore
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
    requested_top_n: TopN | None = None

    def __post_init__(self) -> None:
        if (self.window_end is None) != (self.time is None):
            raise ValueError("a window has an end and a mark that ends it")
        if self.session is not None and (self.changes or self.time is None or self.session not in self.keys):
            raise ValueError("sessions are those of a stream, in a key that is a window")
        if self.final_key is not None and (
            not self.changes or self.time is not None or self.final_key not in self.keys
        ):
            raise ValueError("what is settled is a key of a table without windows of its own")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    @cached_property
    def all_rows_aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates that must see all rows of a group to know their value."""
        return tuple(part for part in self.aggregates if needs_all_rows(part.function, changes=self.is_weighted))

    @property
    def can_precombine(self) -> bool:
        """Whether one row may stand for others like it: nothing asks in which order they came, or keeps each.

        Such rows tell in `MULTIPLICITY` how many they are.
        """
        folds = {function_of(part.function).fold for part in self.aggregates}
        is_plain = self.position is None and not self.is_weighted and not self.all_rows_aggregates
        return is_plain and folds <= {"count", "sum", "moments", "least", "greatest"}

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """Those of its keys, of a table."""
        return tuple(name for name, _ in self.finality_outputs) if self.time is None else ()

    @property
    def end_watermark(self) -> str | None:
        """The mark that ends groups; None: nothing does."""
        return self.final_key if self.time is None else self.time

    def with_top_n(self, top_n: TopN) -> Self:
        """The same, if its groups end."""
        return self if self.end_watermark is None else replace(self, requested_top_n=top_n)

    @property
    def is_weighted(self) -> bool:
        """Whether rows are taken back: those of a table, and those that move from one session to another."""
        return self.changes or self.session is not None

    @property
    def other_keys(self) -> tuple[str, ...]:
        """The keys within which sessions are put together."""
        return tuple(name for name in self.keys if name != self.session)

    @property
    def sides(self) -> tuple[Port]:
        """The one there is; late rows are only counted."""
        return (Port(self.keys, () if self.time is None else (self.time,), self.keys, self.code),)

    @property
    def extra(self) -> tuple[str, ...]:
        """The aggregates, and how often a row comes or goes."""
        return (*(part.output for part in self.aggregates), WEIGHT)

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the aggregates, and of a weight."""
        types = (
            arrow_result(part.function, tuple(schemas[0].field(name).type for name in part.columns))
            for part in self.aggregates
        )
        return (*types, pa.int64())

    @property
    def identity(self) -> Identity:
        """What of the grouping decides what its state means; how its outputs are called and ordered does not."""
        names = self.canonical_names
        return self.make_identity(
            [self.keys],
            aggregates=sorted([part.kind, *names.canonical_list(part.columns)] for part in self.aggregates),
            changes=self.changes,
            window_end=names.canonical_or_none(self.window_end),
            # Left out where there is none, as in identities from before there were sessions.
            **({} if self.session is None else {"session": names.canonical_or_none(self.session)}),
        )
