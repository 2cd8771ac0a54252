"""Every refusal as data: the condition, its parameters and its place in the text.

The texts live in ``errors.toml``, one entry per condition. A pass returns `Refusal` values; the
caller of the passes raises them together as one `WatersmeetError`, so a script with ten errors reports ten.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from watersmeet.deprecation import accept_old_names
from watersmeet.locations import mask_line, mask_secrets

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
"""All of C0 and C1 except for tabs and line ends."""


def escape_controls(text: str) -> str:
    r"""Return a text in which each control character is written as in JSON; line ends and tabs stay.

    >>> escape_controls("red: \x1b[31m\n") == "red: \\u001b[31m\n"
    True
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def replace_controls(line: str) -> str:
    r"""Return a line in which a sign of the same width stands for each control character.

    >>> replace_controls("a\x1bb")
    'a\ufffdb'
    """
    return _CONTROLS.sub("\ufffd", line)


REFUSAL_PREFIX = "watersmeet refusal: "
"""The beginning of the line in which a refusal crosses from one process to another, as JSON."""


@dataclass(frozen=True)
class Place:
    """A stretch of a script: offsets ``start`` to ``end`` (exclusive) in ``text``, which came from ``name``."""

    name: str
    text: str
    start: int
    end: int

    @property
    def line(self) -> int:
        """The line of the start, counted from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """The column of the start, counted from 1."""
        return self.start - (self.text.rfind("\n", 0, self.start) + 1) + 1


@dataclass(frozen=True)
class Condition:
    """One entry of the catalogue. ``retry``: the same may succeed later, with nothing changed."""

    sqlstate: str
    message: str
    label: str = ""
    hint: str = ""
    retry: bool = False


@accept_old_names(shown="safe_parameters", travelling="to_message")
@dataclass(frozen=True)
class Refusal:
    """One error, with its place and a hint that says how to fix it.

    >>> refusal = Refusal("UNKNOWN_SOURCE", {"source": "ordres", "suggestion": "did you mean `orders`?"})
    >>> refusal.message
    'There is no stream or table named `ordres`.'
    """

    condition: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    place: Place | None = None

    @property
    def sqlstate(self) -> str:
        """The SQLSTATE of the condition."""
        return catalogue()[self.condition].sqlstate

    @property
    def message(self) -> str:
        """The consequence for the user."""
        return mask_secrets(catalogue()[self.condition].message.format_map(self.parameters))

    @property
    def label(self) -> str:
        """The cause, to be written under its place in the text."""
        return mask_secrets(catalogue()[self.condition].label.format_map(self.parameters))

    @property
    def hint(self) -> str:
        """One thing to type."""
        return mask_secrets(catalogue()[self.condition].hint.format_map(self.parameters))

    @property
    def safe_parameters(self) -> dict[str, str]:
        """The parameters, with no secret in them."""
        return {name: mask_secrets(value) for name, value in self.parameters.items()}

    @property
    def may_be_retried(self) -> bool:
        """Whether the same may succeed later, with nothing changed."""
        return catalogue()[self.condition].retry

    def render(self) -> str:
        """The refusal as people read it, with the line of the script it speaks of, and no command to a terminal."""
        lines = [f"[{self.condition}] {self.message} SQLSTATE: {self.sqlstate}"]
        if self.place is not None:
            lines += _excerpt(self.place, self.label)
        elif self.label:
            lines.append(f"  {self.label}")
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        return escape_controls("\n".join(lines))

    def to_message(self) -> str:
        """The refusal as the message of an error that is raised in another process: text, and a line of data."""
        data = {"condition": self.condition, "parameters": self.safe_parameters}
        return f"{self.render()}\n{REFUSAL_PREFIX}{json.dumps(data)}"

    def as_json(self) -> dict[str, object]:
        """The refusal for machines."""
        place = self.place
        return {
            "condition": self.condition,
            "sqlstate": self.sqlstate,
            "message": self.message,
            "label": self.label,
            "hint": self.hint,
            "parameters": self.safe_parameters,
            "place": place and {"file": place.name, "line": place.line, "column": place.column},
        }


MOST_SHOWN, LONGEST_LINE, MOST_NAMES = 100, 1000, 100
"""The refusals that an error shows, the length of a line that is shown whole, and the names in a hint."""


def unique_refusals(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Refusals in their order, each once.

    >>> wrong = Refusal("UNKNOWN_SOURCE", {"source": "a", "suggestion": ""})
    >>> len(unique_refusals([wrong, wrong]))
    1
    """
    keyed = {
        (refusal.condition, tuple(sorted(refusal.parameters.items())), refusal.place): refusal
        for refusal in reversed([*refusals])
    }
    return list(reversed(keyed.values()))


class WatersmeetError(Exception):
    """Raised with all refusals of a script or call together, before anything has started."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        more = len(self.refusals) - MOST_SHOWN
        rendered = [refusal.render() for refusal in self.refusals[:MOST_SHOWN]]
        super().__init__("\n\n".join([*rendered, *([f"And {more} more."] if more > 0 else [])]))

    def __reduce__(self) -> tuple[type[WatersmeetError], tuple[tuple[Refusal, ...]]]:
        return (WatersmeetError, (self.refusals,))

    def getCondition(self) -> str:  # noqa: N802 - the names of Spark's own errors
        """The condition of the first refusal."""
        return self.refusals[0].condition

    def getSqlState(self) -> str:  # noqa: N802 - the names of Spark's own errors
        """The SQLSTATE of the first refusal."""
        return self.refusals[0].sqlstate

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - the names of Spark's own errors
        """The parameters of the first refusal."""
        return self.refusals[0].safe_parameters


class WorkerRefusalError(Exception):
    """A refusal that is raised in a worker; the driver finds it again with `refusal_in`."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.to_message())

    def __reduce__(self) -> tuple[type[WorkerRefusalError], tuple[Refusal]]:
        return (WorkerRefusalError, (self.refusal,))


def refusal_in(message: str) -> Refusal | None:
    """The refusal in the message of an error of Spark's, if another process raised one.

    >>> refusal = Refusal("UNKNOWN_SOURCE", {"source": "a", "suggestion": ""})
    >>> refusal_in(f"[FOREACH] Failed: {refusal.to_message()} SQLSTATE: 39000") == refusal
    True
    >>> refusal_in("[STATE_LIMIT] is only text.")
    """
    # The plan of a query, which Spark shows too, has the same words where it makes such a message.
    for data in message.split(REFUSAL_PREFIX)[1:]:
        with suppress(ValueError):
            read: dict[str, Any] = json.JSONDecoder().raw_decode(data)[0]
            return Refusal(read["condition"], read["parameters"])
    return None


def refuse(condition: str, place: Place | None = None, /, **parameters: object) -> WatersmeetError:
    """The error of a single refusal, to be raised by its caller."""
    return WatersmeetError([Refusal(condition, {k: str(v) for k, v in parameters.items()}, place)])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, or lists what there is.

    >>> did_you_mean("ordres", ["orders", "deliveries"])
    'did you mean `orders`?'
    >>> did_you_mean("x", ["orders", "deliveries"])
    'known names: `deliveries`, `orders`.'
    """
    names = sorted(set(known))
    if len(names) > MOST_NAMES:
        return _near_of_many(name, names)
    near = get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    for candidate in names:
        if near and candidate.lower() == near[0]:
            return f"did you mean `{candidate}`?"
    return f"known names: {', '.join(f'`{n}`' for n in names)}." if names else "none are declared."


def _near_of_many(name: str, names: list[str]) -> str:
    """The hint where there are too many names to list them: the nearest of those that begin alike."""
    candidates = {candidate.lower(): candidate for candidate in names if candidate[:2].lower() == name[:2].lower()}
    near = get_close_matches(name.lower(), [*candidates][:MOST_NAMES], n=1, cutoff=0.6)
    return (
        f"did you mean `{candidates[near[0]]}`?" if near else f"{len(names)} names are known, for example `{names[0]}`."
    )


@cache
def catalogue() -> Mapping[str, Condition]:
    """All conditions by name, read once from ``errors.toml``."""
    entries = tomllib.loads(files("watersmeet").joinpath("errors.toml").read_text("utf-8"))
    return {name: Condition(**entry) for name, entry in entries.items()}


def _mask_line_at(place: Place) -> str:
    start = place.text.rfind("\n", 0, place.start) + 1
    end = place.text.find("\n", place.start)
    return mask_line(place.text[start : len(place.text) if end < 0 else end])


def _excerpt(place: Place, label: str) -> list[str]:
    line, number = replace_controls(_mask_line_at(place).removesuffix("\r")), str(place.line)
    gutter = " " * (len(number) + 2)
    width = max(1, min(place.end - place.start, len(line) - place.column + 1))
    first = 0
    if len(line) > LONGEST_LINE:
        # Of a line that no screen holds, what is around the place.
        first = max(0, place.column - 1 - LONGEST_LINE // 4)
        line, width = line[first : first + LONGEST_LINE // 2], min(width, LONGEST_LINE // 4)
    return [
        f"  --> {place.name}:{place.line}:{place.column}",
        f"{gutter}|",
        f" {number} | {line}",
        f"{gutter}| {' ' * (place.column - 1 - first)}{'^' * width}{' ' + label if label else ''}",
        f"{gutter}|",
    ]
