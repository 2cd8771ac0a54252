"""What may change of a window join while its state goes on: how large its windows are, and how many partitions stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from watersmeet.joins.core.two_sided import PRESERVED
from watersmeet.physical.change import ChangeEffect, StageEdit
from watersmeet.physical.difference import IdentityChange, describe_first

AGE = "age"


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """What follows from windows of other sizes; None: something else has changed, too."""
    effects: list[ChangeEffect] = []
    for change in changes:
        match change.path:
            case ("windows", int() as port, "size"):
                consequence = _size_effect(stage, port, is_less=change.now < change.was)
            case ("windows", int() as port, "limit") if _by_age(change.was) == _by_age(change.now):
                consequence = _limit_effect(stage, port, change.was, change.now)
            case _:
                return None
        whole = IdentityChange(("stages", stage.number, "operator", *change.path), change.was, change.now)
        effects.append(ChangeEffect(describe_first([whole], stage.was, stage.now), consequence))
    return effects


def _by_age(limit: Sequence[Any] | None) -> bool | None:
    """Whether a limit asks when rows came, which is kept for that alone; None: there is no limit.

    With one, all partitions are in one shard.
    """
    return None if limit is None else limit[0] == AGE


def _size_effect(stage: StageEdit, port: int, *, is_less: bool) -> str:
    side = f"`{stage.now.side(stage.number, port)}`"
    if not is_less:
        return f"rows of {side} that have left its window do not come back; pairs that came out stay"
    after = stage.operators[1]
    alone = ", alone if they have not matched" if PRESERVED[after["kind"]][port] else ""
    leave = "come out" if alone else "leave"
    when = "with the next batch"
    if after["windows"][port]["kind"] == "time":
        when = "with the batch after the one that brings its next row"
    return f"rows of {side} beyond the new size {leave} {when}{alone}; pairs that came out stay"


def _limit_effect(stage: StageEdit, port: int, was: Sequence[Any], now: Sequence[Any]) -> str:
    side = f"`{stage.now.side(stage.number, port)}`"
    if was[0] == now[0] and was[1] < now[1]:
        return f"partitions of {side} that were discarded do not come back"
    when = "with its next row" if now[0] == AGE else "with the next batch"
    return f"partitions of {side} beyond the new limit are discarded {when}"


CHANGE = change_effects
