"""What becomes of the rows of a grouping: they are counted, or their window had ended."""

from __future__ import annotations

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.fates.words import value_in_words
from watersmeet.joins.core.rowwise import Row


class _GroupFates(FamilyFates):
    by_key = False

    def cannot(self, scene: Scene, port: int, row: Row) -> tuple[What, str] | None:
        # NULL is a group like any other.
        return None

    def late(self, scene: Scene, port: int, row: Row) -> tuple[str, str | None]:
        end = value_in_words(row[scene.operator.window_end or scene.operator.settled])
        return f"It was late: the watermark had passed the end of its window, {end}", scene.operator.ending


FATES = _GroupFates()
