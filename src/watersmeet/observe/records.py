"""A batch as a line of a history: short, for what is nothing is left out, and several of them as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from watersmeet.observe.metrics import OperatorNumbers, SideNumbers
from watersmeet.observe.progress import Progress, mark_in_words

N = TypeVar("N", Progress, OperatorNumbers, SideNumbers)

_COUNTED = frozenset({
    "rows_in", "rows_out", "matched", "padded", "late", "dropped", "written", "malformed", "seconds", "batches",
    "events", "events_processed", "rows",
})  # fmt: skip
"""What adds up over batches; of the rest the latest counts."""
_COUNTED_BY_NAME = ("sources", "malformed_of", "parts")
"""The same, where there is a number per name."""
_SETS = ("temporal", "silent")
_UNWRITTEN = frozenset({"query", "watermarks"})
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


def progress_from_json(values: Mapping[str, Any]) -> Progress:
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
    known |= {"query": "", "watermarks": words}
    return Progress(**known)


def _operator_from_json(values: Mapping[str, Any]) -> OperatorNumbers:
    known = _known(OperatorNumbers, values)
    sides: Mapping[str, Mapping[str, Any]] = known.get("sides", {})
    known["sides"] = {side: SideNumbers(**_known(SideNumbers, one)) for side, one in sides.items()}
    return OperatorNumbers(**known)


def _known(kind: type[Progress | OperatorNumbers | SideNumbers], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def merged(earlier: Progress, later: Progress) -> Progress:
    """Two batches as one.

    >>> one = merged(Progress("q", 1, rows_in=2, sources={"o": 2}), Progress("q", 2, 3, sources={"o": 1, "d": 2}))
    >>> one.batch, one.batches, one.rows_in, one.sources
    (2, 2, 5, {'o': 3, 'd': 2})
    """
    added: dict[str, Any] = {name: _summed(getattr(earlier, name), getattr(later, name)) for name in _COUNTED_BY_NAME}
    operators = {**earlier.operators}
    for name, one in later.operators.items():
        operators[name] = _operators(earlier.operators[name], one) if name in earlier.operators else one
    return replace(_together(earlier, later), operators=operators, **added)


def _operators(earlier: OperatorNumbers, later: OperatorNumbers) -> OperatorNumbers:
    sides = {
        side: _together(earlier.sides[side], one) if side in earlier.sides else one for side, one in later.sides.items()
    }
    return replace(_together(earlier, later), sides=sides)


def _together(earlier: N, later: N) -> N:
    names = [field.name for field in fields(later) if field.name in _COUNTED]
    return replace(later, **{name: getattr(earlier, name) + getattr(later, name) for name in names})


def _summed(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    counts = Counter[str]()
    for name, number in (*earlier.items(), *later.items()):
        counts[name] += cast("int", number)
    return dict(counts)
