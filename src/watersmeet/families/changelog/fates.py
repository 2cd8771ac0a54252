"""What becomes of the rows of a join of two tables: they meet as long as both are there."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.joins.changelog.table_join import TableJoin
from watersmeet.joins.core.rowwise import Row


class _ChangelogFates(FamilyFates):
    def alone_is(self, operator: TableJoin) -> What:
        return "matched" if operator.kind == "semi" else "padded"

    def alone(self, scene: Scene, port: int, row: Row) -> str:
        if scene.operator.kind == "semi":
            return f"There is a row of {scene.names[1 - port]} for it."
        return f"It stands alone: {scene.names[1 - port]} has no row for it."

    def shown(self, scene: Scene, sign: int) -> tuple[What, str] | None:
        if scene.operator.kind == "semi" and sign < 0:
            return "taken back", f"There is no row of {scene.names[1]} for it any more."
        return None

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        return "It is in the table."


FATES = _ChangelogFates()
