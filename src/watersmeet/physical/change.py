"""Effects of an edited query on its state: nothing, something to accept, a new state, or a refusal.

What of an operator may change is for its family to say (`ChangeRule`); what may change of any is here: lags, since
watermarks never go back.

Also here: joins that several queries of a script compute, each on its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from watersmeet.operators.core.identity import Identity, canonical_json
from watersmeet.physical.difference import IdentityChange, NamedIdentity, changes_of, describe_first
from watersmeet.physical.identity import identity_of
from watersmeet.physical.nodes import QueryPlan, read_sources

EditKind = Literal["free", "continued", "rebuilt", "refused"]
"""``free``: the state means the same. ``continued``: it continues, with consequences that must be accepted.
``rebuilt``: it would be read wrongly, and can be rebuilt from the sources. ``refused``: it cannot."""

IDLE = "a side that is silent for that long no longer holds the others back: its later rows may be late"
NEVER_IDLE = "a silent side now holds the others back without limit: their rows wait and are kept"
CLOCK = ("clock",)
"""The path of a change of an operator that begins, or ceases, to follow the clock. Where its family says nothing of it,
a side may be idle, or could be."""

WatermarkValues = Mapping[str, int]
"""The watermarks that an operator has received, by canonical name."""


@dataclass(frozen=True)
class ChangeEffect:
    """One thing that changed, and what follows from it; sentences without their full stops."""

    change: str
    consequence: str


@dataclass(frozen=True)
class Edit:
    """An edit of a query, by its class; ``effects`` of one that is continued, ``difference`` of one that cannot be."""

    kind: EditKind
    effects: tuple[ChangeEffect, ...] = ()
    difference: str = ""


@dataclass(frozen=True)
class StageEdit:
    """A stage before and after an edit, and the watermarks that it has received; None: they were not read."""

    number: int
    was: NamedIdentity
    now: NamedIdentity
    watermarks: WatermarkValues | None

    @property
    def operators(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The identities of the operator's state before and after the edit."""
        before, after = (query.identity["stages"][self.number]["operator"] for query in (self.was, self.now))
        return before, after


ChangeRule = Callable[[StageEdit, Sequence[IdentityChange]], Sequence[ChangeEffect] | None]
"""The effects of changes of an operator, whose paths begin inside it; None: its state cannot become the new one."""


def classify_edit(
    was: NamedIdentity,
    now: NamedIdentity,
    families: Mapping[str, ChangeRule],
    watermarks: Sequence[WatermarkValues] | None = None,
    tables: Collection[str] = (),
) -> Edit:
    """Classify an edit; ``families`` by their names in identities, ``watermarks`` by stage, if they were read.

    ``tables``: the operators whose results are tables.
    """
    changes = changes_of(was, now)
    effects: list[ChangeEffect] = []
    refused: list[IdentityChange] = []
    inside: dict[int, list[IdentityChange]] = {}
    dropped: list[IdentityChange] = []
    gained: dict[int, list[IdentityChange]] = {}
    for change in filter(_is_new_lag, changes):
        gained.setdefault(int(change.path[1]), []).append(change)
    for change in (change for change in changes if not _is_new_lag(change)):
        match change.path:
            case ("stages", int() as number, "operator", *inner):
                inside.setdefault(number, []).append(IdentityChange(tuple(inner), change.was, change.now))
            case ("stages", int() as number, "ports", int(), "lags", str() as column) if None not in (
                change.was, change.now,
            ):  # fmt: skip
                stage = StageEdit(number, was, now, None if watermarks is None else watermarks[number])
                effects.append(_lag_effect(stage, column, change.was, change.now, describe_first([change], was, now)))
            case ("clocks",) if len(change.was) == len(change.now):
                stages = [n for n, pair in enumerate(zip(change.was, change.now, strict=True)) if pair[0] != pair[1]]
                for number in stages:
                    stage = StageEdit(number, was, now, None if watermarks is None else watermarks[number])
                    effects += _clock_effects(stage, change.was[number], change.now[number], families)
            case ("sources", int(), "columns", str()) if change.now is None:
                dropped.append(change)
            case _:
                refused.append(change)
    for number in {**inside, **gained}:
        own, lags = inside.get(number, []), gained.get(number, [])
        stage = StageEdit(number, was, now, None if watermarks is None else watermarks[number])
        new_lags = [IdentityChange(lag.path[-2:], lag.was, lag.now) for lag in lags]
        operator_effects = _operator_effects(stage, [*own, *new_lags], families)
        effects += operator_effects or ()
        refused += _whole_changes(number, own, lags) if operator_effects is None else ()
    if dropped and not inside:
        refused += dropped
    if refused:
        kind: EditKind = "rebuilt" if _can_be_rebuilt(was, now, tables) else "refused"
        return Edit(kind, difference=describe_first(refused, was, now))
    return Edit("continued", tuple(dict.fromkeys(effects))) if changes else Edit("free")


def _whole_changes(number: int, own: list[IdentityChange], lags: list[IdentityChange]) -> list[IdentityChange]:
    """The changes inside the operator of a stage with whole paths, and those of its lags."""
    return [*lags, *(IdentityChange(("stages", number, "operator", *part.path), part.was, part.now) for part in own)]


def _is_new_lag(change: IdentityChange) -> bool:
    """Whether a time has a lag that did not matter to the stage before."""
    return len(change.path) == len(_LAG) and change.path[:-1:2] == _LAG[:-1:2] and change.was is None


_LAG = ("stages", 0, "ports", 0, "lags", "column")


def _can_be_rebuilt(was: NamedIdentity, now: NamedIdentity, tables: Collection[str]) -> bool:
    """Whether the rows that the query has read are those that the new one would have read.

    Sources are as they were, or some were added, or some were removed. A result that is a table does not qualify: the
    new query would retract rows that the old one never wrote.
    """
    before, after = (
        Counter(canonical_json(part) for source in query.identity["sources"] for part in source["reads"])
        for query in (was, now)
    )
    is_same = before <= after or after <= before
    stages = now.identity["stages"]
    is_table = bool(stages) and stages[-1]["operator"]["family"] in tables
    is_rescaled = {**was.identity, "shards": 0} == {**now.identity, "shards": 0}
    return is_same and not is_table and not is_rescaled


def _clock_effects(
    stage: StageEdit, was: bool, now: bool, families: Mapping[str, ChangeRule]
) -> Sequence[ChangeEffect]:
    """Effects of a stage that begins, or ceases, to follow the clock."""
    effects = _operator_effects(stage, [IdentityChange(CLOCK, was, now)], families)
    if effects is not None:
        return effects
    sides = stage.now.sides(stage.number)
    if now:
        return [ChangeEffect(f"no side of {sides} could be idle, now one may", IDLE)]
    return [ChangeEffect(f"a side of {sides} could be idle, now none may", NEVER_IDLE)]


def _operator_effects(
    stage: StageEdit, changes: Sequence[IdentityChange], families: Mapping[str, ChangeRule]
) -> Sequence[ChangeEffect] | None:
    before, after = stage.operators
    rule = families.get(after["family"]) if before["family"] == after["family"] else None
    return None if rule is None else rule(stage, changes)


def window_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """Effects of groups that were kept forever and now end with their windows; None: another part has changed, too."""
    paths = {change.path for change in changes if change.was is None}
    is_timed = {("ports", 0, "time"), ("ports", 0, "times")} <= paths and any(path[0] == "lags" for path in paths)
    if not is_timed or any(change.path not in paths or change.path[0] not in _OF_WINDOWS for change in changes):
        return None
    sides = stage.now.sides(stage.number)
    change = f"groups of windows of {sides} were kept forever, now each is removed once its window has ended"
    return [ChangeEffect(change, "rows that arrive after the end of their window are late; emitted rows stay")]


_OF_WINDOWS = ("ports", "lags", "window")
"""The field in which an identity differs if groups end with their windows."""


def _lag_effect(stage: StageEdit, column: str, was: int, now: int, change: str) -> ChangeEffect:
    name = stage.now.name(column)
    watermark = None if stage.watermarks is None else stage.watermarks.get(column)
    if now < was:
        sooner = stage.now.amount(was - now, column)
        return ChangeEffect(change, f"the watermark of {name} advances by {sooner} at once: more rows may be late")
    if stage.watermarks is not None and watermark is None:
        return ChangeEffect(change, f"none, because {name} has no watermark yet")
    stands = "where it is" if watermark is None else f"at {stage.now.moment(watermark, column)}"
    later = "that lag after it" if watermark is None else stage.now.moment(watermark + now, column)
    return ChangeEffect(
        change, f"the watermark of {name} stays {stands} until a row later than {later} arrives; older rows are late"
    )


def same_join_notes(plans: Mapping[str, QueryPlan]) -> Iterator[tuple[str, str]]:
    """The queries whose joins an earlier one computes too, each with a note that says so."""
    first: dict[str, str] = {}
    for name, plan in plans.items():
        joins = _joins_of(identity_of(plan, 1))
        if joins is None:
            continue
        other = first.setdefault(joins, name)
        if other != name:
            sources = " and ".join(dict.fromkeys(source.name for source in read_sources(plan.relation)))
            cost = "each query reads, joins and keeps the rows separately, and may count different rows as late"
            yield name, f"{other} and {name} compute the same join of {sources}: {cost}."


def _joins_of(identity: Identity) -> str | None:
    """The sources and joins of a query without its filters and outputs, as text; None: it has no join.

    Groups and first rows before the last join are compared as they are, since the join reads their results.
    """
    stages = [_plain(stage) if len(stage["ports"]) > 1 else stage for stage in identity["stages"]]
    last = max((number for number, stage in enumerate(stages) if len(stage["ports"]) > 1), default=None)
    if last is None:
        return None
    return canonical_json([[source["reads"] for source in identity["sources"]], stages[: last + 1]])


def _plain(stage: Identity) -> dict[str, Any]:
    """A join without which columns it keeps, and which rows are left out before it."""
    operator = stage["operator"]
    ports = [{name: value for name, value in port.items() if name != "stored"} for port in operator["ports"]]
    sides = [{name: value for name, value in port.items() if name != "filters"} for port in stage["ports"]]
    return {"operator": {**operator, "ports": ports}, "ports": sides}
