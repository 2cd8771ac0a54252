"""What a join of a stream with a table keeps: the table, and rows that wait for theirs."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A row per key of the table; rows of the stream wait as long, or as many of them, as is said."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedLookupJoin)
    table = 1 if join.table == "right" else 0
    table_rows = PortRetention(table, "keys", law="the rows of the table")
    if join.kind not in ("left", "right", "full") or join.late_table != "reemit":
        return (table_rows,)
    if join.retention is not None:
        return (table_rows, PortRetention(1 - table, "time", join.retention, "how long rows without a table row wait"))
    if join.waiting is not None:
        return (table_rows, PortRetention(1 - table, "number", join.waiting, "how many rows without a table row wait"))
    return (table_rows, PortRetention(1 - table, "unknown", law="rows without a table row wait for it"))


FORECAST = forecast
