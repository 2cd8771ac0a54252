"""A batch as a line of a history: short, for what is nothing is left out, and several of them as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from watersmeet.observe.metrics import OperatorNumbers, SideNumbers
from watersmeet.observe.progress import Progress, mark_in_words

N = TypeVar("N", Progress, OperatorNumbers, SideNumbers)

_COUNTED = frozenset({
    "rows_in", "rows_out", "matched", "padded", "late", "dropped", "written", "malformed", "seconds", "batches",
    "events", "events_processed", "rows", "stored", "bytes",
})  # fmt: skip
"""What adds up over batches; of the rest the latest counts."""
_COUNTED_BY_NAME = ("sources", "malformed_of", "parts")
"""The same, where there is a number per name."""
_SETS = ("temporal", "silent")
_UNWRITTEN = frozenset({"query", "watermarks", "examples"})
"""The name of the file says whose it is, and the marks say what the watermarks are in words."""


def progress_as_json(progress: Progress) -> dict[str, object]:
    """A batch as JSON has it.

    >>> progress_as_json(Progress("joined", 3, rows_in=2, marks={"o.t": 17}, at=60.0))
    {'batch': 3, 'rows_in': 2, 'marks': {'o.t': 17}, 'at': 60.0}
    """
    values = {"batch": progress.batch, **_told(progress)}
    for name in _SETS:
        if name in values:
            values[name] = sorted(cast("frozenset[str]", values[name]))
    if progress.operators:
        values["operators"] = {name: _operator_as_json(one) for name, one in progress.operators.items()}
    return values


def _operator_as_json(numbers: OperatorNumbers) -> dict[str, object]:
    values = _told(numbers)
    if numbers.sides:
        values["sides"] = {side: _told(one) for side, one in numbers.sides.items()}
    return values


def _told(value: Progress | OperatorNumbers | SideNumbers) -> dict[str, object]:
    """What is not as it is by itself."""
    found = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _UNWRITTEN}
    return {name: known for name, known in found.items() if known and known != _UNTOLD.get(name)}


_UNTOLD = {"batches": 1, "health": 1}


def progress_from_json(values: Mapping[str, Any], query: str = "") -> Progress:
    """The batch of a line; what a later version may have added to it is passed over.

    >>> progress_from_json({"batch": 3, "marks": {"o.t": 17}, "hue": "blue"}).watermarks
    {'o.t': '17'}
    """
    known = _known(Progress, values)
    for name in _SETS:
        known[name] = frozenset(known.get(name, ()))
    operators: Mapping[str, Mapping[str, Any]] = known.get("operators", {})
    known["operators"] = {name: _operator_from_json(one) for name, one in operators.items()}
    marks: Mapping[str, int] = known.get("marks", {})
    words = {column: mark_in_words(mark, is_temporal=column in known["temporal"]) for column, mark in marks.items()}
    known |= {"query": query, "watermarks": words}
    return Progress(**known)


def _operator_from_json(values: Mapping[str, Any]) -> OperatorNumbers:
    known = _known(OperatorNumbers, values)
    sides: Mapping[str, Mapping[str, Any]] = known.get("sides", {})
    known["sides"] = {side: SideNumbers(**_known(SideNumbers, one)) for side, one in sides.items()}
    return OperatorNumbers(**known)


_NAMES = {kind: frozenset(field.name for field in fields(kind)) for kind in (Progress, OperatorNumbers, SideNumbers)}
_ADDED = {kind: tuple(names & _COUNTED) for kind, names in _NAMES.items()}


def _known(kind: type[Progress | OperatorNumbers | SideNumbers], values: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {name: value for name, value in values.items() if name in names}


def merged(*batches: Progress) -> Progress:
    """Several batches as one, earlier ones first.

    >>> one = merged(Progress("q", 1, rows_in=2, sources={"o": 2}), Progress("q", 2, 3, sources={"o": 1, "d": 2}))
    >>> one.batch, one.batches, one.rows_in, one.sources
    (2, 2, 5, {'o': 3, 'd': 2})
    """
    added: dict[str, Any] = {name: _summed([getattr(one, name) for one in batches]) for name in _COUNTED_BY_NAME}
    return replace(_together(batches), operators=merged_operators(batches), **added)


def merged_operators(batches: Iterable[Progress]) -> dict[str, OperatorNumbers]:
    """What each operator did in several batches, as one."""
    found: dict[str, list[OperatorNumbers]] = {}
    for batch in batches:
        for name, one in batch.operators.items():
            found.setdefault(name, []).append(one)
    return {name: added_up(numbers) for name, numbers in found.items()}


def added_up(numbers: Sequence[OperatorNumbers]) -> OperatorNumbers:
    """What an operator did in several batches, as one."""
    sides: dict[str, list[SideNumbers]] = {}
    for one in numbers:
        for side, of_side in one.sides.items():
            sides.setdefault(side, []).append(of_side)
    spreads: dict[str, Any] = {name: _summed(getattr(one, name) for one in numbers) for name in ("delays", "lateness")}
    return replace(_together(numbers), **spreads, sides={side: _together(known) for side, known in sides.items()})


def _together(values: Sequence[N]) -> N:
    last = values[-1]
    return replace(last, **{name: sum(getattr(one, name) for one in values) for name in _ADDED[type(last)]})


def _summed(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in values:
        for name, number in one.items():
            found[name] = found.get(name, 0) + number
    return found
