"""What becomes of the rows of a sync join: they wait until all ports have a row of their time, or one has passed it."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.joins.core.rowwise import Gone, Row, event_time, is_below
from watersmeet.joins.sync.operator import SyncJoin


class _SyncFates(FamilyFates):
    by_key = False
    lacking = "no such time"

    def equal(self, operator: SyncJoin, port: int) -> tuple[str, ...]:
        return (operator.ports[port].time,)

    def late(self, scene: Scene, port: int, row: Row) -> tuple[str, str | None]:
        name = scene.operator.ports[port].time
        time = event_time(row[name])
        if time is None:
            return "It has no time, so that it stands beside no row of another port.", None
        if is_below(time, scene.received.get(name)):
            return super().late(scene, port, row)
        return f"Its port already had a row of the time {scene.words.moment(name, time)}.", None

    def until(self, scene: Scene, port: int, row: Row, flight: int) -> int | None:
        return scene.time(port, row)

    def left(self, scene: Scene, gone: Gone) -> tuple[str, str | None]:
        if gone.why == "dropped":
            return f"More rows were kept than may be ({scene.operator.max_rows}), and its time was the earliest.", None
        mark, other = scene.received[gone.column], gone.column.split(".")[0]
        if scene.words.is_end(mark):
            return f"The input of {other} has ended without a row of its time.", gone.column
        passed = f"the watermark of {scene.words.called(gone.column)} is {scene.words.moment(gone.column, mark)}"
        return f"No row of its time has come from {other}, and none can: {passed}", gone.column

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        others = [scene.words.called(name) for n, name in enumerate(scene.operator.times) if n != port]
        return f"It waits for rows of its time from {' and '.join(name.split('.')[0] for name in others)}."


FATES = _SyncFates()
