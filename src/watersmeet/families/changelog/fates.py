"""What becomes of the rows of a join of two tables: they meet as long as both are there."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.joins.core.rowwise import Row


class _ChangelogFates(FamilyFates):
    def alone(self, scene: Scene, port: int, row: Row) -> str:
        return f"It stands alone: {scene.names[1 - port]} has no row for it."

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        return "It is in the table."


FATES = _ChangelogFates()
