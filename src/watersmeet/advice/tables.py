"""Tables of which no row was ever replaced."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.advice.arrivals import NO_CODE, SampledRows, codes_of

DELETES = ("-", "d", "delete", "D")
CHANGE = "_change"


@dataclass(frozen=True)
class TableAdvice:
    """A table: its rows, its keys, how many rows replace an earlier one, how many delete one."""

    arrivals: SampledRows
    rows: int
    keys: int
    replaced: int
    deleted: int

    @property
    def is_static(self) -> bool:
        """Whether nothing of it changed in what is there."""
        return self.rows > 0 and not self.replaced and not self.deleted


def advise_table(arrivals: SampledRows) -> TableAdvice | None:
    """Whether a table with a primary key ever changes; None if it has no key, or is read once as it is."""
    source = arrivals.source
    if source.kind != "table" or not source.primary_key or source.lowercase_options.get("static", "").lower() == "true":
        return None
    columns = [arrivals.column(name) for name in source.primary_key]
    codes, _ = codes_of(columns, columns)
    present = codes[codes != NO_CODE]
    keys = len(set(present.tolist()))
    deleted = 0
    names = {name.lower(): name for name in arrivals.rows.column_names}
    if CHANGE in names:
        change = arrivals.column(CHANGE)
        deleted = int(pc.sum(pc.is_in(change, value_set=pa.array(DELETES))).as_py() or 0)
    return TableAdvice(arrivals, len(codes), keys, len(present) - keys, deleted)
