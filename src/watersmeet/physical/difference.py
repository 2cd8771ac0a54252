"""The differences between two identities, in the words of the people who wrote the queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from watersmeet.duration import format_duration
from watersmeet.physical.identity import Data

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


def _other(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    name = next((str(part) for part in reversed(change.path) if isinstance(part, str)), "it").replace("_", " ")
    return f"{name} was {_value(change.was)}, now it is {_value(change.now)}"


def _emit(change: IdentityChange, was: NamedIdentity, now: NamedIdentity) -> str:
    forms = ["a table that follows each batch" if emit is None else "a stream with each group once" for emit in
             (change.was, change.now)]  # fmt: skip
    return f"the result of the groups was {forms[0]}, now it is {forms[1]}"


PHRASES: Mapping[str, Phrase] = {
    "sources": _count("sources"),
    "source": _read,
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
    "clocks": _clocks,
    "columns": _type,
    "stored": _columns_stored,
    "times": _columns("event time"),
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
