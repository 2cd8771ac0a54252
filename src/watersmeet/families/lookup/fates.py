"""What becomes of the rows of a lookup join: a row of the stream asks the table once, or waits for its row."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.joins.core.rowwise import Gone, Row
from watersmeet.joins.lookup.operator import LookupJoin


class _LookupFates(FamilyFates):
    def left(self, scene: Scene, gone: Gone) -> tuple[str, str | None]:
        if gone.why == "evicted":
            waited = scene.words.duration(scene.operator.retention or 0)
            return f"It had waited for its row of the table for {waited}, and waits no longer.", None
        return f"More rows waited for their row of the table than may ({scene.operator.waiting}).", None

    def alone(self, scene: Scene, port: int, row: Row) -> str:
        return f"It came out alone: {scene.names[scene.operator.table]} had no row for it."

    def nothing(self, scene: Scene, port: int, row: Row) -> tuple[What, str]:
        return (
            "unmatched",
            f"No row of {scene.names[scene.operator.table]} was there for it, and the join shows only pairs.",
        )

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        join: LookupJoin = scene.operator
        if port == join.table:
            return "It is in the table."
        return f"It waits for its row of {scene.names[join.table]}."


FATES = _LookupFates()
