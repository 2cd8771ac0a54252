"""Effects of an edited query on its state: nothing, something to accept, a new state, or a refusal.

What of an operator may change is for its family to say (`ChangeRule`); what may change of any is here: lags, since
watermarks never go back. Differences between two identities are described in the words of those who wrote the queries.

Also here: joins that several queries of a script compute, each on its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from watersmeet.duration import format_duration
from watersmeet.operators.core.identity import Identity, canonical_json
from watersmeet.physical.identity import Data, changes_retractions, identity_of
from watersmeet.physical.nodes import QueryPlan, read_sources

Words = Mapping[str, Mapping[str, str]]
"""The display names of each scan by its number; see `watersmeet.physical.identity.scan_words`."""

_UNITS = {"d": "day", "h": "hour", "min": "minute", "s": "second", "ms": "millisecond", "µs": "microsecond"}


@dataclass(frozen=True)
class NamedIdentity:
    """An identity with the words of its query.

    ``outcomes``: a digest of what else decides what becomes of a row; empty: an earlier version wrote the identity.
    """

    identity: Data
    words: Words
    outcomes: str = ""

    def name(self, text: str) -> str:
        """A canonical name, or SQL over such names, as people write it.

        >>> NamedIdentity({}, {"0": {"alias": "o", "source": "orders"}}).name("(`0.id`>5)")
        '`o.id>5`'
        """
        named = re.sub(r"`(\d+)\.([^`]*)`", lambda m: f"{self.alias(m[1])}.{m[2]}", text)
        if named == text:
            named = re.sub(r"^(\d+)\.(?=\D)", lambda m: f"{self.alias(m[1])}.", text)
        bare = named[1:-1] if re.fullmatch(r"\([^()]*\)", named) else named
        return f"`{bare}`"

    def names(self, texts: Sequence[str]) -> str:
        """Several names."""
        return ", ".join(map(self.name, texts)) or "nothing"

    def alias(self, number: str) -> str:
        """The alias of a scan in the query."""
        return self.words.get(number, {}).get("alias", number)

    def source(self, number: int) -> str:
        """The source that a scan reads."""
        return self.words.get(str(number), {}).get("source", str(number))

    def sides(self, stage: int) -> str:
        """The scans that a stage reads."""
        reads = [read for port in self.identity["stages"][stage]["ports"] for read in port["reads"]]
        names = [f"`{self.alias(read)}`" for read in reads if read in self.words]
        return " and ".join(names) or f"stage {stage + 1}"

    def side(self, stage: int, port: int) -> str:
        """The name of a stage's side in the query: its alias, or those of all scans that are joined there."""
        return "+".join(self.alias(scan) for scan in dict.fromkeys(self._scans(stage, port)))

    def _scans(self, stage: int, port: int) -> Iterator[str]:
        for read in self.identity["stages"][stage]["ports"][port]["reads"]:
            if read.startswith("stage "):
                inner = int(read.removeprefix("stage "))
                for below in range(len(self.identity["stages"][inner]["ports"])):
                    yield from self._scans(inner, below)
            else:
                yield read

    def moment(self, value: int, column: str) -> str:
        """A point in time, or a number where the event time is one."""
        if self._is_number(column):
            return str(value)
        try:
            time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        except OverflowError:
            return str(value)
        return time.replace(tzinfo=None).isoformat(" ")

    def amount(self, value: int | None, column: str) -> str:
        """A length of time, or a number where the event time is one."""
        if value is None:
            return "none"
        return str(value) if self._is_number(column) else _in_words(value)

    def _is_number(self, column: str) -> bool:
        number, _, name = column.partition("#")[0].partition(".")
        sources = self.identity["sources"]
        columns: Mapping[str, str] = sources[int(number)]["columns"] if number.isdecimal() else {}
        return columns.get(name, "TIMESTAMP").endswith("INT")


@dataclass(frozen=True)
class IdentityChange:
    """One thing that differs: where it is in the data, and what it was and is."""

    path: tuple[str | int, ...]
    was: Any
    now: Any

    @property
    def key(self) -> str:
        """The field that names this difference: the innermost, or the one whose entries are named by users."""
        inner = [str(part) for part in self.path[-2:]]
        if inner[0] in ("columns", "options", "lags"):
            return inner[0]
        if "windows" in self.path:
            return "windows"
        return next((part for part in (*inner[-1:], *inner[:1]) if part in PHRASES), "")

    def after(self, field: str) -> Any:
        """The element of the path that follows a field."""
        return self.path[self.path.index(field) + 1]


def difference(was: NamedIdentity, now: NamedIdentity) -> str | None:
    """The first thing that differs, as a sentence without its full stop; None if nothing does."""
    changes = changes_of(was, now)
    return describe_first(changes, was, now) if changes else None


def changes_of(was: NamedIdentity, now: NamedIdentity) -> list[IdentityChange]:
    """All that differs."""
    return [*_changes((), was.identity, now.identity)]


def describe_first(changes: Sequence[IdentityChange], was: NamedIdentity, now: NamedIdentity) -> str:
    """The first of several changes, as a sentence without its full stop."""
    order = {name: place for place, name in enumerate(PHRASES)}
    first = min(changes, key=lambda change: order[change.key])
    return PHRASES[first.key](first, was, now)


def _changes(path: tuple[str | int, ...], was: Any, now: Any) -> Iterator[IdentityChange]:
    if was == now:
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        before, after = cast("Data", was), cast("Data", now)
        for key in sorted({*before, *after}):
            yield from _changes((*path, key), before.get(key), after.get(key))
    elif _are_records(was, now):
        for place, record in enumerate(cast("list[Data]", was)):
            yield from _changes((*path, place), record, now[place])
    else:
        yield IdentityChange(path, was, now)


def _are_records(was: Any, now: Any) -> bool:
    """Whether both are lists of as many records."""
    if not isinstance(was, list) or not isinstance(now, list):
        return False
    values = [*cast("list[Any]", was), *cast("list[Any]", now)]
    return 2 * len(cast("list[Any]", was)) == len(values) and all(isinstance(value, Mapping) for value in values)


Phrase = Callable[[IdentityChange, NamedIdentity, NamedIdentity], str]


def _count(noun: str) -> Phrase:
    def phrase(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
        return f"it had {len(change.was)} {noun}, now it has {len(change.now)}"

    return phrase


def _was(noun: str, of_source: str = "") -> Phrase:
    """A phrase for a changed property of a join, or of a source: its value before and now."""

    def phrase(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
        if "sources" in change.path:
            whose, name = f"the source `{now.source(int(change.after('sources')))}`", of_source or noun
        else:
            whose, name = now.sides(int(change.after("stages"))), noun
        return f"{name} of {whose} was {_value(change.was)}, now it is {_value(change.now)}"

    return phrase


def _read(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    number = str(change.after("sources"))
    return f"`{was.alias(number)}` read the source `{change.was}`, now `{now.alias(number)}` reads `{change.now}`"


def _option(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    name, source = str(change.path[-1]), now.source(int(change.after("sources")))
    if change.was is None:
        return f"the option `{name}` of the source `{source}` is new ({_value(change.now)})"
    if change.now is None:
        return f"the option `{name}` of the source `{source}` was removed ({_value(change.was)})"
    return f"the source `{source}` read `{name}` {_value(change.was)}, now it reads {_value(change.now)}"


def _columns(noun: str) -> Phrase:
    def phrase(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
        before, after = ([value] if isinstance(value, str) else value or [] for value in (change.was, change.now))
        return f"the {noun} was {was.names(before)}, now it is {now.names(after)}"

    return phrase


def _bounds(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    before, after = ({(b[0], b[1]): b[2] for b in bounds} for bounds in (change.was, change.now))
    column, other = next(pair for pair in sorted({*before, *after}) if before.get(pair) != after.get(pair))
    # `column >= other - constant`: a lower bound of the later side's column, or an upper one of the other's.
    is_lower = _number(column) > _number(other)
    name = now.name(column if is_lower else other)
    constants = was.amount(before.get((column, other)), column), now.amount(after.get((column, other)), column)
    return f"the {'lower' if is_lower else 'upper'} bound of {name} was {constants[0]}, now it is {constants[1]}"


def _lag(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    column = str(change.path[-1])
    before, after = was.amount(change.was, column), now.amount(change.now, column)
    noun = "tolerance" if column == "tolerance" else f"lag of the watermark of {now.name(column)}"
    return f"the {noun} was {before}, now it is {after}"


def _split_change(change: IdentityChange) -> tuple[list[Any], list[Any]]:
    before, after = list[Any](change.was or ()), list[Any](change.now or ())
    return [part for part in before if part not in after], [part for part in after if part not in before]


def _parts(noun: str) -> Phrase:
    def phrase(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
        gone, new = _split_change(change)
        if gone and new:
            return f"the {noun} {was.name(gone[0])} is now {now.name(new[0])}"
        return f"the {noun} {was.name(gone[0])} was removed" if gone else f"the {noun} {now.names(new[:1])} is new"

    return phrase


def _columns_stored(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    gone, new = _split_change(change)
    if new:
        return f"the query now needs {now.names(new)} of each row, which the state does not have"
    return f"the state has {was.names(gone)} of each row, which the query no longer needs"


def _type(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    number, name = change.after("sources"), str(change.path[-1])
    if change.was is None:
        return f"{now.name(f'{number}.{name}')} was not read, now it is"
    if change.now is None:
        return f"{was.name(f'{number}.{name}')} was read, now it is not"
    return f"{now.name(f'{number}.{name}')} was {change.was}, now it is {change.now}"


def _aggregates(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    gone, new = _split_change(change)
    query = now if new else was
    function, *columns = (new or gone)[0]
    name = f"{function}({', '.join(query.name(column)[1:-1] for column in columns)})"
    return f"`{name}` was not aggregated, now it is" if new else f"`{name}` was aggregated, now it is not"


def _functions(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    gone, new = _split_change(change)
    query, stage = (now if new else was), int(change.after("stages"))
    function = frame_function_in_words((new or gone)[0], query, query.identity["stages"][stage]["operator"])
    return f"{function} was not computed, now it is" if new else f"{function} was computed, now it is not"


def frame_function_in_words(function: Sequence[str], query: NamedIdentity, operator: Data) -> str:
    """A window function of an identity, with its frame."""
    name, *columns, frame = function
    unit, reach, _, end = (*frame.split(), "", "")[:4]
    time = "".join(operator["ports"][0].get("time", ""))

    def amount(text: str) -> str:
        if not text.lstrip("-").isdecimal():
            return text.upper()
        return query.amount(abs(int(text)), time) if unit == "range" else str(abs(int(text)))

    args = [query.name(column)[1:-1] for column in columns]
    if name.startswith(("lag", "lead")):
        return f"`{name}({', '.join([*args[:1], reach, *args[1:]])})`"
    behind = "FOLLOWING" if end == "unbounded" or end[:1].isdecimal() else "PRECEDING"
    upto = f" to {amount(end)} {behind}" if end else ""
    return f"`{name}({', '.join(args)})` in {unit.upper()} {amount(reach)} PRECEDING{upto}"


def _wait(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    time = now.identity["stages"][int(change.after("stages"))]["operator"]["ports"][0]["time"]
    before, after = was.amount(change.was or 0, time), now.amount(change.now or 0, time)
    return f"the bound of LEAD was {before}, now it is {after}"


def _window(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    stage, port = int(change.after("stages")), int(change.after("windows"))
    side = now.alias(str(now.identity["stages"][stage]["ports"][port]["reads"][0]))
    sizes: list[str] = []
    for query in (was, now):
        window = query.identity["stages"][stage]["operator"]["windows"][port]
        size = _in_words(window["size"]) if window["kind"] == "time" else window["size"]
        by = f" PARTITION BY {query.names(window['partition'])}" if window.get("partition") else ""
        limit = f" {window['limit']}" if window.get("limit") else ""
        sizes.append(f"{window['kind'].upper()} {size}{by}{limit}")
    return f"the window of `{side}` was {sizes[0]}, now it is {sizes[1]}"


def _clocks(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    return "no side could be idle, now one may" if any(change.now) else "a side could be idle, now none may"


def _shards(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    return f"its state has {change.was} shards, now it would have {change.now}"


def _chains(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    how = ["each in its own operator" if groups is None else "in one operator" for groups in (change.was, change.now)]
    return f"joins ran {how[0]}, now they would run {how[1]}" if how[0] != how[1] else "other joins run in one operator"


def _skew(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    stage, port = int(change.after("stages")), int(change.after("ports"))
    hints = [query.identity["stages"][stage]["ports"][port].get("skew") for query in (was, now)]
    values = ["none" if hint is None else ", ".join(map(repr, hint["values"])) for hint in hints]
    sides = [None if hint is None else hint["copied"] for hint in hints]
    if None not in sides and sides[0] != sides[1]:
        return f"the skewed keys of {now.sides(stage)} were those of the other side"
    return f"the skewed keys of {now.sides(stage)} were {values[0]}, now they are {values[1]}"


def _other(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    name = next((str(part) for part in reversed(change.path) if isinstance(part, str)), "it").replace("_", " ")
    return f"{name} was {_value(change.was)}, now it is {_value(change.now)}"


def _emit(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    forms = ["a table that follows each batch" if emit is None else "a stream with each group once" for emit in
             (change.was, change.now)]  # fmt: skip
    return f"the result of the groups was {forms[0]}, now it is {forms[1]}"


def _history(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    source = f"`{now.source(int(change.after('sources')))}`"
    if change.was is None or change.now is None:
        return f"the source {source} {'had no' if change.was is None else 'had a'} history, now it has " + (
            "one" if change.was is None else "none"
        )
    return f"`{change.path[-1]}` of the history of {source} was {_value(change.was)}, now it is {_value(change.now)}"


PHRASES: Mapping[str, Phrase] = {
    "sources": _count("sources"),
    "source": _read,
    "history": _history,
    "options": _option,
    "format": _was("the format"),
    "feed": _was("the change feed"),
    "key": _was("the primary key"),
    "stages": _count("joins"),
    "family": _was("the join"),
    "emit": _emit,
    "kind": _was("the join", of_source="the kind"),
    "bounds": _bounds,
    "windows": _window,
    "tolerance": _lag,
    "direction": _was("the direction of the join"),
    "keys": _columns("key"),
    "lags": _lag,
    "filters": _parts("filter"),
    "on": _parts("condition"),
    "ways": _parts("step"),
    "aggregates": _aggregates,
    "functions": _functions,
    "wait": _wait,
    "clocks": _clocks,
    "columns": _type,
    "stored": _columns_stored,
    "times": _columns("event time"),
    "skew": _skew,
    "": _other,
    "together": _chains,
    "shards": _shards,
}
"""The description of what differs, by the field it is in. Of several differences the first of these is told: what a
person wrote goes before what follows from it.
"""


def _value(value: object) -> str:
    """A value as people read it."""
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case str():
            return f"`{value}`"
        case Mapping():
            parts = [f"{key} {inner}" for key, inner in cast("Data", value).items() if inner not in (None, [], "")]
            return f"`{', '.join(parts)}`"
        case list():
            return ", ".join(map(_value, cast("list[object]", value))) or "none"
        case _:
            return str(value)


def _number(column: str) -> int:
    """The scan that a canonical name begins with; that of SQL is the first in it."""
    match = re.search(r"(\d+)\.", column)
    return int(match[1]) if match else 0


def _in_words(micros: int) -> str:
    """A length of time.

    >>> _in_words(5_400_000_000), _in_words(60_000_000)
    ('1 hour 30 minutes', '1 minute')
    """
    numbers = re.findall(r"(-?\d+) (\S+)", format_duration(micros))
    return " ".join(f"{count} {_UNITS[unit]}{'' if abs(int(count)) == 1 else 's'}" for count, unit in numbers)


EditKind = Literal["free", "continued", "rebuilt", "refused"]
"""``free``: the state means the same. ``continued``: it continues, with consequences that must be accepted.
``rebuilt``: it would be read wrongly, and can be rebuilt from the sources. ``refused``: it cannot."""

IDLE = "a side that is silent for that long no longer holds the others back: its later rows may be late"
NEVER_IDLE = "a silent side now holds the others back without limit: their rows wait and are kept"
SHOWN = "what the table shows of its rows, or which of them, is computed otherwise"
RETRACTED = (
    "rows that are in the sink stay; when one changes, the sink is told to remove the row as the changed query shows it"
)
"""A row that is taken back is computed again. A sink that has keys removes the row in any case."""
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
    gives_table: Callable[[Identity], bool] = lambda operator: False,
) -> Edit:
    """Classify an edit; ``families`` by their names in identities, ``watermarks`` by stage, if they were read.

    ``gives_table``: whether the result of an operator is a table.
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
    if changes_retractions(was.outcomes, now.outcomes):
        effects.append(ChangeEffect(SHOWN, RETRACTED))
    if dropped and not inside:
        refused += dropped
    if refused:
        kind: EditKind = "rebuilt" if _can_be_rebuilt(was, now, gives_table) else "refused"
        return Edit(kind, difference=describe_first(refused, was, now))
    return Edit("continued", tuple(dict.fromkeys(effects))) if changes or effects else Edit("free")


def _whole_changes(number: int, own: list[IdentityChange], lags: list[IdentityChange]) -> list[IdentityChange]:
    """The changes inside the operator of a stage with whole paths, and those of its lags."""
    return [*lags, *(IdentityChange(("stages", number, "operator", *part.path), part.was, part.now) for part in own)]


def _is_new_lag(change: IdentityChange) -> bool:
    """Whether a time has a lag that did not matter to the stage before."""
    return len(change.path) == len(_LAG) and change.path[:-1:2] == _LAG[:-1:2] and change.was is None


_LAG = ("stages", 0, "ports", 0, "lags", "column")


def _can_be_rebuilt(was: NamedIdentity, now: NamedIdentity, gives_table: Callable[[Identity], bool]) -> bool:
    """Whether the rows that the query has read are those that the new one would have read.

    Sources are as they were, or some were added, or some were removed. A result that is a table does not qualify: the
    new query would retract rows that the old one never wrote.
    """
    before, after = (
        Counter(canonical_json(part) for source in query.identity["sources"] for part in source["reads"])
        for query in (was, now)
    )
    is_same = before <= after or after <= before
    last = [query.identity["stages"][-1]["operator"] for query in (was, now) if query.identity["stages"]]
    is_table = any(map(gives_table, last))
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
