"""What follows from an edit of a query for its state: nothing, something to accept, a new state, or a refusal.

What of an operator may change is for its family to say (`Changing`); what may change of any is here: lags, since marks
never go back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from watersmeet.physical.difference import Change, Told, changes_of, first_told
from watersmeet.physical.identity import canonical_json

Class = Literal["free", "continued", "rebuilt", "refused"]
"""``free``: the state means the same. ``continued``: it goes on, and something follows, which must be accepted.
``rebuilt``: it would be read wrongly, and can be made anew from what the sources still have. ``refused``: it cannot."""

IDLE = "a side that is silent for so long holds nothing back from then on: rows of it that come later may be late"
NEVER_IDLE = "a side that is silent holds the others back from now on, however long: their rows wait and are kept"
CLOCK = ("clock",)
"""The path of a change of an operator that begins, or ceases, to follow the clock. Where its family says nothing of it,
a side may be idle, or could be."""

Marks = Mapping[str, int]
"""The marks that an operator has received, by canonical name."""


@dataclass(frozen=True)
class Follows:
    """One thing that changed, and what follows from it; sentences without their full stops."""

    change: str
    consequence: str


@dataclass(frozen=True)
class Edit:
    """An edit of a query, by its class; ``follows`` of one that is continued, ``difference`` of one that cannot be."""

    kind: Class
    follows: tuple[Follows, ...] = ()
    difference: str = ""


@dataclass(frozen=True)
class Stage:
    """A stage before and after an edit, and the marks that it has received; None: nobody has looked."""

    number: int
    was: Told
    now: Told
    marks: Marks | None

    @property
    def operators(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What the state of the operator meant, and what it would mean."""
        before, after = (told.identity["stages"][self.number]["operator"] for told in (self.was, self.now))
        return before, after


Changing = Callable[[Stage, Sequence[Change]], Sequence[Follows] | None]
"""What follows from changes of an operator, whose paths begin inside it; None: its state cannot become the new one."""


def edit_of(
    was: Told,
    now: Told,
    families: Mapping[str, Changing],
    marks: Sequence[Marks] | None = None,
    tables: Collection[str] = (),
) -> Edit:
    """The class of an edit; ``families`` by their names in identities, ``marks`` by stage, if somebody has looked.

    ``tables``: the operators whose results are tables.
    """
    changes = changes_of(was, now)
    follows: list[Follows] = []
    refused: list[Change] = []
    inside: dict[int, list[Change]] = {}
    dropped: list[Change] = []
    for change in changes:
        match change.path:
            case ("stages", int() as number, "operator", *inner):
                inside.setdefault(number, []).append(Change(tuple(inner), change.was, change.now))
            case ("stages", int() as number, "ports", int(), "lags", str() as column) if None not in (
                change.was, change.now,
            ):  # fmt: skip
                stage = Stage(number, was, now, None if marks is None else marks[number])
                follows.append(_lag(stage, column, change.was, change.now, first_told([change], was, now)))
            case ("clocks",) if len(change.was) == len(change.now):
                stages = [n for n, pair in enumerate(zip(change.was, change.now, strict=True)) if pair[0] != pair[1]]
                for number in stages:
                    stage = Stage(number, was, now, None if marks is None else marks[number])
                    follows += _clock(stage, change.was[number], change.now[number], families)
            case ("sources", int(), "columns", str()) if change.now is None:
                dropped.append(change)
            case _:
                refused.append(change)
    for number, own in inside.items():
        stage = Stage(number, was, now, None if marks is None else marks[number])
        found = _inside(stage, own, families)
        if found is None:
            refused += [Change(("stages", number, "operator", *one.path), one.was, one.now) for one in own]
        else:
            follows += found
    if dropped and not inside:
        refused += dropped
    if refused:
        kind: Class = "rebuilt" if _can_be_rebuilt(was, now, tables) else "refused"
        return Edit(kind, difference=first_told(refused, was, now))
    return Edit("continued", tuple(dict.fromkeys(follows))) if changes else Edit("free")


def _can_be_rebuilt(was: Told, now: Told, tables: Collection[str]) -> bool:
    """Whether the rows that the query has read are those that the new one would have read.

    Sources are as they were, and some may have come or gone, not both. A result that is a table is none of these: what
    the new query would take back, the old one never wrote.
    """
    before, after = (
        Counter(canonical_json(part) for source in told.identity["sources"] for part in source["reads"])
        for told in (was, now)
    )
    is_same = before <= after or after <= before
    stages = now.identity["stages"]
    is_table = bool(stages) and stages[-1]["operator"]["family"] in tables
    is_rescaled = {**was.identity, "shards": 0} == {**now.identity, "shards": 0}
    return is_same and not is_table and not is_rescaled


def _clock(stage: Stage, was: bool, now: bool, families: Mapping[str, Changing]) -> Sequence[Follows]:
    """What follows where a stage begins, or ceases, to follow the clock."""
    found = _inside(stage, [Change(CLOCK, was, now)], families)
    if found is not None:
        return found
    sides = stage.now.sides(stage.number)
    if now:
        return [Follows(f"a side of {sides} may be idle now, and none could be", IDLE)]
    return [Follows(f"a side of {sides} could be idle, and none may now", NEVER_IDLE)]


def _inside(stage: Stage, changes: Sequence[Change], families: Mapping[str, Changing]) -> Sequence[Follows] | None:
    before, after = stage.operators
    changing = families.get(after["family"]) if before["family"] == after["family"] else None
    return None if changing is None else changing(stage, changes)


def _lag(stage: Stage, column: str, was: int, now: int, change: str) -> Follows:
    name = stage.now.name(column)
    mark = None if stage.marks is None else stage.marks.get(column)
    if now < was:
        sooner = stage.now.amount(was - now, column)
        return Follows(change, f"the watermark of {name} goes on by {sooner} at once: rows may be late that were not")
    if stage.marks is not None and mark is None:
        return Follows(change, f"nothing, for no watermark of {name} has come yet")
    stands = "where it is" if mark is None else f"at {stage.now.moment(mark, column)}"
    later = "that lag after it" if mark is None else stage.now.moment(mark + now, column)
    return Follows(
        change, f"the watermark of {name} stays {stands} until a row later than {later} has come; what is older is late"
    )
