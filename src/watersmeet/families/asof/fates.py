"""What becomes of the rows of an as-of join: questions wait for certainty, versions until a newer one is in force."""

from __future__ import annotations

from watersmeet.fates.family import Distance, FamilyFates, Scene
from watersmeet.fates.model import What
from watersmeet.joins.asof.operator import AsofJoin
from watersmeet.joins.core.changes import OP
from watersmeet.joins.core.operator import LEFT, RIGHT
from watersmeet.joins.core.rowwise import Gone, Row


class _AsofFates(FamilyFates):
    def required(self, operator: AsofJoin, port: int) -> tuple[str, ...]:
        return (operator.sides[port].time,)

    def cannot(self, scene: Scene, port: int, row: Row) -> tuple[What, str] | None:
        found = super().cannot(scene, port, row)
        if found is None and port == RIGHT and row.get(OP, 1) < 0:
            return "unfit", "It deletes the row of its key: from its time on there is none."
        return found

    def until(self, scene: Scene, port: int, row: Row, flight: int) -> int | None:
        time, join = scene.time(port, row), scene.operator
        if port == RIGHT or time is None:
            return None
        return time if join.direction == "backward" else time + (join.tolerance or 0)

    def left(self, scene: Scene, gone: Gone) -> tuple[str, str | None]:
        if gone.why == "expired":
            told = "It is in force for no question that may still come"
            return (f"{told}: it was followed" if gone.by is not None else told), scene.operator.left.time
        if gone.port == RIGHT and gone.row[scene.operator.right.time] is None:
            return "It has no time, so that it has no place among the versions.", None
        if gone.port == RIGHT and gone.by is not None:
            return "A later change of its key has the same time, and takes its place.", None
        if gone.port == RIGHT and scene.operator.max_rows is None:
            return "Its key already had a version of that time, and the first one counts.", None
        return f"More rows were kept than may be ({scene.operator.max_rows}), and its time was the earliest.", None

    def alone(self, scene: Scene, port: int, row: Row) -> str:
        mark, name = scene.received.get(scene.operator.right.time), scene.operator.right.time
        if mark is None:
            return "It came out alone: it can match nothing."
        known = "has ended" if scene.words.is_end(mark) else f"is {scene.words.moment(name, mark)}"
        return f"It came out alone: the watermark of {scene.words.called(name)} {known}, and no version fits it."

    def nothing(self, scene: Scene, port: int, row: Row) -> tuple[What, str]:
        return "unmatched", "No version fits it, and the join shows only rows that have one."

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        if port == RIGHT and self.cannot(scene, port, row) is not None:
            return "It stays, since it ends the version before it."
        if port == RIGHT:
            return f"It is a version that rows of {scene.names[LEFT]} may still get."
        end, name = self.until(scene, port, row, flight), scene.operator.right.time
        mark = scene.received.get(name)
        now = "has none yet" if mark is None else f"is {scene.words.moment(name, mark)} now"
        passed = "" if end is None else f" has passed {scene.words.moment(name, end)}"
        return f"It is open until the watermark of {scene.words.called(name)}{passed}; that {now}."

    def distance(self, scene: Scene, port: int, row: Row, other: Row) -> Distance | None:
        question, version = (row, other) if port == LEFT else (other, row)
        join, name = scene.operator, scene.operator.right.time
        times = scene.time(LEFT, question), scene.time(RIGHT, version)
        if times[0] is None or times[1] is None:
            return None
        apart = times[1] - times[0]
        own = scene.words.bare(scene.operator.sides[1 - port].time)
        told = f"its {own} is {scene.words.distance(name, abs(apart))}"
        after = apart > 0 if port == LEFT else apart < 0
        if (join.direction == "backward" and apart > 0) or (join.direction == "forward" and apart < 0):
            return Distance(apart, f"{told} too {'late' if after else 'early'}.")
        if join.strict and apart == 0:
            return Distance(0, f"its {own} is the same, which does not count.")
        if join.tolerance is not None and abs(apart) > join.tolerance:
            return Distance(apart, f"{told} away, more than {scene.words.distance(name, join.tolerance)}.")
        return None


FATES = _AsofFates()
