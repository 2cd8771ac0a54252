"""What becomes of the rows of ORDER BY ... LIMIT: they are among the first ones, or not."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.joins.core.rowwise import Row


class _TopFates(FamilyFates):
    by_key = False

    def shown(self, scene: Scene, sign: int) -> tuple[What, str] | None:
        first = f"the first {scene.operator.limit} rows"
        return ("passed", f"It is among {first}.") if sign > 0 else ("taken back", f"It is no longer among {first}.")

    def nothing(self, scene: Scene, port: int, row: Row) -> tuple[What, str]:
        return "unmatched", f"It is not among the first {scene.operator.limit} rows."


FATES = _TopFates()
