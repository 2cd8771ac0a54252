"""What becomes of the upserts of a table: the latest of a key is in it."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.joins.core.rowwise import Row


class _LatestFates(FamilyFates):
    def shown(self, scene: Scene, sign: int) -> tuple[What, str] | None:
        if not scene.operator.append:
            # A table tells its changes itself.
            return ("passed", "It came into the table.") if sign > 0 else ("taken back", "It left the table.")
        return ("alive", "It is the latest of its key.") if sign > 0 else ("replaced", "A later row has its key.")

    def nothing(self, scene: Scene, port: int, row: Row) -> tuple[What, str]:
        return "replaced", "A later row of the same batch has its key."


FATES = _LatestFates()
