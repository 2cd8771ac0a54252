"""What becomes of the rows of an interval join: they live until a watermark proves that nothing in bounds can come."""

from __future__ import annotations

from watersmeet.fates.family import Distance, FamilyFates, Scene
from watersmeet.joins.core.marks import Bound
from watersmeet.joins.core.rowwise import Gone, Row, event_time
from watersmeet.joins.interval.operator import IntervalJoin


class _IntervalFates(FamilyFates):
    def required(self, operator: IntervalJoin, port: int) -> tuple[str, ...]:
        side = operator.sides[port]
        return (side.time, *side.ends)

    def until(self, scene: Scene, port: int, row: Row, flight: int) -> int | None:
        return min((_end(bound, row) for bound in _own(scene, port) if row[bound.column] is not None), default=None)

    def left(self, scene: Scene, gone: Gone) -> tuple[str, str | None]:
        if gone.why == "dropped":
            return f"More rows were kept than may be ({scene.operator.max_rows}), and its time was the earliest.", None
        bounds = [bound for bound in _own(scene, gone.port) if bound.column == gone.column]
        bound = max(bounds, key=lambda one: scene.received.get(one.other, 0) - one.constant)
        mark, end = scene.received[bound.other], _end(bound, gone.row)
        if scene.words.is_end(mark):
            return f"The input of {bound.other.split('.')[0]} has ended: nothing more can meet it.", bound.other
        other, ended = scene.words.called(bound.other), scene.words.moment(bound.other, end)
        now = scene.words.moment(bound.other, mark)
        return f"It lived until the watermark of {other} had passed {ended}, and that is {now}", bound.other

    def alone(self, scene: Scene, port: int, row: Row) -> str:
        return "It came out alone at once, since it can match nothing."

    def waits(self, scene: Scene, port: int, row: Row, flight: int) -> str:
        bounds = [bound for bound in _own(scene, port) if row[bound.column] is not None]
        if not bounds:
            return "It is kept until the end."
        bound = min(bounds, key=lambda one: _end(one, row))
        mark, other = scene.received.get(bound.other), scene.words.called(bound.other)
        now = "has none yet" if mark is None else f"is {scene.words.moment(bound.other, mark)} now"
        end = scene.words.moment(bound.other, _end(bound, row))
        return f"It is alive until the watermark of {other} has passed {end}; that {now}."

    def distance(self, scene: Scene, port: int, row: Row, other: Row) -> Distance | None:
        left, right = (row, other) if port == 0 else (other, row)
        join: IntervalJoin = scene.operator
        times = (event_time(left[join.left.time]), event_time(right[join.right.time]))
        if times[0] is None or times[1] is None:
            return None
        apart, name = times[1] - times[0], join.right.time
        off = apart - join.upper if apart > join.upper else apart - join.lower if apart < join.lower else 0
        if not off:
            return None
        told = f"its {scene.words.bare((join.left, join.right)[1 - port].time)} is"
        by = off if port == 0 else -off
        how = "too late" if by > 0 else "too early"
        return Distance(off, f"{told} {scene.words.distance(name, abs(off))} {how}.")


def _own(scene: Scene, port: int) -> list[Bound]:
    """The bounds that end the lives of a port's rows."""
    side = scene.operator.sides[port]
    return [b for b in (*scene.operator.bounds, *scene.operator.lives) if b.column in (*side.times, *side.ends)]


def _end(bound: Bound, row: Row) -> int:
    """The last mark of the other side at which a row is alive."""
    return (event_time(row[bound.column]) or 0) + bound.constant - (1 if bound.strict else 0)


FATES = _IntervalFates()
