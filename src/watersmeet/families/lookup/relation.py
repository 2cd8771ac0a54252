"""The lookup join: each row of a stream with what a table has for it at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from watersmeet.plan.bounds import rows_of_table
from watersmeet.plan.relation import BY_TIME, AnalyzedRelation, AnalyzedScan, ConditionalJoin, StateBound

LateTable = Literal["reemit", "ignore"]
"""What a table row does that comes after a stream row which had been shown without one: shows it again, or nothing."""


@dataclass(frozen=True)
class AnalyzedLookupJoin(ConditionalJoin):
    """Each row of a stream with the rows that a table has for it at that moment (LN-11..LN-14).

    One side is a stream, the other a table; ``kind`` is inner, or the one that preserves the stream. The condition is
    taken apart as that of an `ConditionalJoin`.

    - ``late_table``: with ``reemit``, a stream row that was shown padded is shown once more when its table row comes
    - ``retention``: for how many microseconds of wall clock such rows wait; None: as long as ``waiting`` allows
    - ``waiting``: how many of them wait at most, the oldest being forgotten first; None: any number
    - ``load_first``: stream rows are held back until the table is caught up
    """

    family: ClassVar[str] = "lookup"

    table: Literal["left", "right"] = "right"
    late_table: LateTable = "reemit"
    retention: int | None = None
    waiting: int | None = None
    load_first: bool = False

    @property
    def stream(self) -> AnalyzedRelation:
        """The side whose rows look up."""
        return self.left if self.table == "right" else self.right

    @property
    def table_side(self) -> AnalyzedRelation:
        return self.right if self.table == "right" else self.left

    @property
    def passthrough_input(self) -> AnalyzedRelation | None:
        """The stream where the table never changes, so that Spark looks rows up by itself."""
        is_static = isinstance(self.table_side, AnalyzedScan) and self.table_side.source.is_static
        return self.stream if is_static else None

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        """The table, and the rows that wait for one of its rows; nothing where Spark looks rows up."""
        if self.passthrough_input is not None:
            return ()
        waits = self.kind != "inner" and self.late_table == "reemit"
        time = (BY_TIME,) if waits and self.retention is not None else ()
        most = (StateBound("limit", f"{self.waiting} rows that wait"),) if waits and self.waiting is not None else ()
        return (rows_of_table(self.table_side), *time, *most)

    @property
    def has_late_rows(self) -> bool:
        """Never: a table is taken as it is when a row comes."""
        return False

    @property
    def optional_time_sides(self) -> tuple[AnalyzedRelation, ...]:
        return (self.stream,)

    def can_be_static(self, port: int) -> bool:
        """The table may be one."""
        return self.inputs[port] is self.table_side

    def shows_times(self, port: int) -> bool:
        """Those of the stream; a table's rows have none."""
        return self.inputs[port] is self.stream
