"""One side of a join: the names of the columns with which its rows arrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.core.matching import Bools, Ints


@dataclass(frozen=True)
class PortWindow:
    """The windows of a port whose rows come once for each window that their ``time`` lies in; ``end`` is its end.

    A row is late for a window when the mark of the time has reached its end. A row is late when all its windows are
    over, and only the last of them tells: the others come to other shards.

    - ``size``, ``step``: lengths in microseconds; of TUMBLE both are the same
    - ``is_cumulative``: windows begin together every ``size``, and grow by ``step``
    """

    time: str
    end: str
    size: int
    step: int
    is_cumulative: bool = False

    def is_last(self, times: Ints, ends: Ints) -> Bools:
        """Which rows are those of the last window of their time.

        >>> hop = PortWindow("t", "e", 10, 5)
        >>> hop.is_last(np.array([7, 7]), np.array([10, 15])).tolist()
        [False, True]
        """
        return ends % self.size == 0 if self.is_cumulative else ends - times > self.size - self.step


@dataclass(frozen=True)
class Port:
    """How one side's rows arrive. A family asks for what matters to it, and leaves the rest empty.

    - ``columns``: what the result shows of a row, in order
    - ``times``: the watermarked columns (TIMESTAMP, DATE or integers), which are also the names of their marks
    - ``keys``: the key columns; a NULL in one of them never matches. Empty: every row has the same key
    - ``code``: an int64 column that is equal wherever the keys are equal; None without keys
    - ``exact``: equal codes imply equal keys, so that candidates need no second look
    - ``dead``: a boolean column, true where the row's own predicate is not true, so that it can never match; None:
      all may
    - ``operands``: further columns that the condition reads
    - ``late``: what a late row shows; nothing: late rows are only counted
    - ``ends``: columns that say until when a row may match, in the unit of the other side's times; they have no marks,
      and a row with a NULL in one never matches
    - ``compared``: the one of the times by which rows of both sides are compared; None: the first
    - ``order``: an integer, TIMESTAMP or DATE column that orders the arrivals of a batch, equal values and NULLs (which
      come last) as delivered; None: as delivered
    - ``upsert_key``: the primary key of a table, from which ``keys`` follow: arrivals carry ``#op`` and ``#position``
      and replace the row with their key. Empty: arrivals carry ``#weight``; without it each is an insert
    - ``unmatched``: the columns of a row that dies alone, if such rows of this side have an output of their own
    - ``window``: the windows that its rows are in, if these say when a row is late; None: its times do
    """

    columns: tuple[str, ...]
    times: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    code: str | None = None
    exact: bool = False
    dead: str | None = None
    operands: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    compared: str | None = None
    order: str | None = None
    upsert_key: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    window: PortWindow | None = None

    @property
    def time(self) -> str:
        """The time by which rows of both sides are compared."""
        return self.times[0] if self.compared is None else self.compared

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of a row that the result, the match and the condition need, each once."""
        code = () if self.code is None else (self.code,)
        keys = () if self.exact else self.keys
        return tuple(dict.fromkeys((*self.columns, *keys, *code, *self.operands)))

    def can_match(self, table: pa.Table | pa.RecordBatch, *required: str) -> Bools:
        """Which rows may match: no key is NULL, no ``required`` column is, and the row's own predicate is true.

        Columns that are not there say nothing.

        >>> rows = pa.table({"k": [1, None, 1], "d": [False, False, None]})
        >>> Port(("v",), keys=("k",), dead="d").can_match(rows).tolist()
        [True, False, False]
        """
        names = frozenset(table.schema.names)
        alive = np.ones(table.num_rows, np.bool_)
        for name in (*self.keys, *required):
            if name in names and table.column(name).null_count:
                alive &= table.column(name).is_valid().to_numpy(zero_copy_only=False)
        if self.dead is not None and self.dead in names and table.num_rows:
            alive &= ~pc.fill_null(table.column(self.dead), True).to_numpy(zero_copy_only=False)
        return alive

    def identity(self, names: CanonicalNames, stored: Iterable[str]) -> dict[str, Any]:
        """What of the port decides what a state with these ``stored`` columns means; what is not there is left out."""
        fields = {
            "stored": names.canonical_sorted(stored),
            "keys": names.canonical_list(self.keys),
            "code": names.canonical_or_none(self.code),
            "exact": self.exact,
            "times": names.canonical_sorted(self.times),
            "time": names.canonical_or_none(self.time) if self.times else None,
            "dead": names.canonical_or_none(self.dead),
            "order": names.canonical_or_none(self.order),
            "upsert_key": names.canonical_sorted(self.upsert_key),
        }
        return {name: value for name, value in fields.items() if value}
