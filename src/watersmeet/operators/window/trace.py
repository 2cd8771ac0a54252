"""What becomes of the rows of a window join: later rows of their own side evict them, or the clock does."""

from __future__ import annotations

from watersmeet.fates.family import FamilyTracer, TraceContext
from watersmeet.fates.model import Axis
from watersmeet.operators.core.rowwise import RemovedRow, Row
from watersmeet.operators.window.kernel import WindowJoinOperator, WindowSpec


class _WindowTracer(FamilyTracer):
    by_key = False

    def axis(self, operator: WindowJoinOperator) -> Axis:
        return "clock" if all(window.kind == "time" for window in operator.windows) else "arrivals"

    def expiry(self, context: TraceContext, port: int, row: Row, row_id: int) -> int | None:
        window, clock = context.operator.windows[port], context.numbers.get(row_id, (0, None))[1]
        if self.axis(context.operator) == "clock" and clock is not None:
            return clock + window.size
        return None

    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        window, name = context.operator.windows[gone.port], context.names[gone.port]
        if gone.reason == "dropped":
            return f"The state was over its limit of {context.operator.max_rows} rows, and it was the oldest.", None
        if gone.reason == "discarded":
            return f"Its whole partition was discarded: the window of {name} has a limit on partitions.", None
        if gone.by is gone.row:
            return f"The window of {name} stores no rows, so it left at once.", None
        if gone.by is None:
            return (
                f"The window of {name} keeps rows for {_size(context, window)} by the wall clock, and that had passed.",
                None,
            )
        return f"The window of {name} holds {_size(context, window)}, and it was evicted", None

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        size = _size(context, context.operator.windows[port])
        return f"It is in the window of {context.names[port]}, which holds {size}."


def _size(context: TraceContext, window: WindowSpec) -> str:
    each = " of each partition" if window.partition else ""
    if window.kind == "count":
        return f"{window.size} rows{each}" if window.size != 1 else f"one row{each}"
    if window.column is not None:
        distance = context.words.distance(window.column, window.size)
        return f"rows{each} whose {context.words.column_words(window.column)} differ by {distance} at most"
    return context.words.duration(window.size)


TRACE = _WindowTracer()
