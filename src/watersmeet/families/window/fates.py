"""What becomes of the rows of a window join: later rows of their own side evict them, or the clock does."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import Axis
from watersmeet.joins.core.rowwise import Gone, Row
from watersmeet.joins.window.operator import WindowJoin, WindowSpec


class _WindowFates(FamilyFates):
    by_key = False

    def axis(self, operator: WindowJoin) -> Axis:
        return "clock" if all(window.kind == "time" for window in operator.windows) else "arrivals"

    def until(self, scene: Scene, port: int, row: Row, flight: int) -> int | None:
        window, clock = scene.operator.windows[port], scene.numbers.get(flight, (0, None))[1]
        if self.axis(scene.operator) == "clock" and clock is not None:
            return clock + window.size
        return None

    def left(self, scene: Scene, gone: Gone) -> tuple[str, str | None]:
        window, name = scene.operator.windows[gone.port], scene.names[gone.port]
        if gone.why == "dropped":
            return f"More rows were kept than may be ({scene.operator.max_rows}), and it was the oldest.", None
        if gone.why == "discarded":
            return f"Its partition was discarded whole: the window of {name} has a limit on partitions.", None
        if gone.by is gone.row:
            return f"The window of {name} does not store it, so that it left when it came.", None
        if gone.by is None:
            return f"The window of {name} keeps rows for {_size(scene, window)} of wall clock, and that was over.", None
        return f"The window of {name} holds {_size(scene, window)}, and it was evicted", None

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        return f"It is in the window of {scene.names[port]}, which holds {_size(scene, scene.operator.windows[port])}."


def _size(scene: Scene, window: WindowSpec) -> str:
    each = " of each partition" if window.partition else ""
    if window.kind == "count":
        return f"{window.size} rows{each}" if window.size != 1 else f"one row{each}"
    if window.column is not None:
        distance = scene.words.distance(window.column, window.size)
        return f"rows{each} whose {scene.words.called(window.column)} differ by {distance} at most"
    return scene.words.duration(window.size)


FATES = _WindowFates()
