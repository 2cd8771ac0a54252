"""What became of rows, without a word about why: enough to count them, and several times as quick."""

from __future__ import annotations

from typing import Any, cast

from watersmeet.fates.family import Scene
from watersmeet.fates.model import What
from watersmeet.fates.notes import Event, Notes
from watersmeet.fates.stage import Stage, row_column
from watersmeet.joins.core.rowwise import Gone


class BriefNotes(Notes):
    """Notes whose events of most rows have no reason and name no other row."""

    def late(self, stage: Stage, step: Any, scene: Scene) -> None:
        """Note who came too late."""
        for port, row in getattr(step, "late", ()):
            flight = row[row_column(port)]
            stage.late[flight] = self.batch
            self.events.append(Event(flight, "late", self.batch, ""))

    def _alive(self, stage: Stage) -> None:
        self.events += [Event(flight, "alive", self.batch, "") for _, flight, _ in stage.kept]

    def _shown(self, stage: Stage, port: int, flight: int, others: list[int], sign: int) -> None:
        if not others:
            super()._shown(stage, port, flight, others, sign)
            return
        self.events.append(Event(flight, cast("What", "matched" if sign > 0 else "taken back"), self.batch, ""))

    def _gone(self, stage: Stage, gone: Gone, alone: dict[int, int]) -> None:
        flight = gone.row[row_column(gone.port)]
        self.events += [Event(flight, what, self.batch, "") for what in self._left(gone, alone)]
