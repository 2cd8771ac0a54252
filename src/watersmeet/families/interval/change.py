"""What may change of an interval join while its state goes on: how far rows reach, and which columns are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from watersmeet.joins.core.operator import END_OF_INPUT
from watersmeet.joins.core.two_sided import PRESERVED
from watersmeet.joins.interval.kept import limits_of
from watersmeet.physical.change import ChangeEffect, StageEdit
from watersmeet.physical.difference import IdentityChange


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """What follows from other bounds, or from fewer columns; None: something else has changed, too."""
    effects: list[ChangeEffect] = []
    for change in changes:
        match change.path:
            case ("bounds",) if _pairs(change.was) == _pairs(change.now):
                pass
            case ("range",):
                pass
            case ("ports", int() as port, "stored") if set(change.now) < set(change.was):
                gone = stage.was.names(sorted(set(change.was) - set(change.now)))
                effects.append(
                    ChangeEffect(
                        f"{gone} of {stage.now.side(stage.number, port)} is not shown any more",
                        "it is not kept of rows that come from now on, so that showing it once more needs a new state",
                    )
                )
            case _:
                return None
    return [*_bound_effects(stage), *effects]


def _pairs(bounds: Sequence[Sequence[Any]]) -> list[tuple[str, str]]:
    return [(column, other) for column, other, _ in bounds]


def _bound_effects(stage: StageEdit) -> Iterator[ChangeEffect]:
    before, after = stage.operators
    for port in (0, 1):
        pairs = zip(limits_of(before, port), limits_of(after, port), strict=True)
        for (column, watermark, was), (_, _, now) in pairs:
            if was != now:
                yield _bound_effect(stage, port, (column, watermark), was, now)


def _bound_effect(stage: StageEdit, port: int, pair: tuple[str, str], was: int, now: int) -> ChangeEffect:
    """What follows from another bound: ``column >= mark - constant``."""
    column, watermark = pair
    identity, side = stage.now, f"`{stage.now.side(stage.number, port)}`"
    change = (
        f"rows of {side} were kept until {identity.name(watermark)} had passed "
        f"{identity.name(column)}{_plus(stage, was, column)}, "
        f"now until it has passed {identity.name(column)}{_plus(stage, now, column)}"
    )
    if stage.watermarks is not None and watermark not in stage.watermarks:
        return ChangeEffect(change, "no row of it has expired yet; pairs of rows that have met stay as they are")
    if stage.watermarks is not None and stage.watermarks[watermark] == END_OF_INPUT:
        return ChangeEffect(change, "nothing, for the input has ended")
    if now > was:
        limit = (
            "that have expired"
            if stage.watermarks is None
            else _before(stage, stage.watermarks[watermark] - was, column)
        )
        return ChangeEffect(
            change,
            f"rows of {side} {limit} are gone and do not come back; rows that are here have met by the old bound, "
            "and those pairs stay as they were",
        )
    limit = (
        "beyond the new bound"
        if stage.watermarks is None
        else _before(stage, stage.watermarks[watermark] - now, column)
    )
    alone = ", alone if they have not matched" if PRESERVED[stage.operators[1]["kind"]][port] else ""
    leave = "leave" if not alone else "come out"
    return ChangeEffect(change, f"rows of {side} {limit} {leave} with the next batch{alone}; pairs that came out stay")


def _before(stage: StageEdit, limit: int, column: str) -> str:
    return f"with {stage.now.name(column)} before {stage.now.moment(limit, column)}"


def _plus(stage: StageEdit, constant: int, column: str) -> str:
    if not constant:
        return ""
    return f" {'+' if constant > 0 else '-'} {stage.now.amount(abs(constant), column)}"


CHANGE = change_effects
