"""What becomes of the rows of ORDER BY ... LIMIT: they are among the first ones, or not."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.joins.core.rowwise import Row


class _TopFates(FamilyFates):
    by_key = False

    def shown(self, scene: Scene, sign: int) -> tuple[What, str] | None:
        first = _first(scene)
        return ("passed", f"It is {first}.") if sign > 0 else ("taken back", f"It is no longer {first}.")

    def nothing(self, scene: Scene, port: int, row: Row) -> tuple[What, str]:
        return "unmatched", f"It is not {_first(scene)}."


def _first(scene: Scene) -> str:
    limit, ties = scene.operator.limit, scene.operator.ties
    if ties:
        return f"among the first {limit} rows, or equal to the last of them"
    return "the first row" if limit == 1 else f"among the first {limit} rows"


FATES = _TopFates()
