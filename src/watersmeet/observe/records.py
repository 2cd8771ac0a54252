"""A batch as a line of a history: short, for what is nothing is left out, and several of them as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from watersmeet.observe.metrics import OperatorMetrics, SideMetrics
from watersmeet.observe.progress import Progress, watermark_text

N = TypeVar("N", Progress, OperatorMetrics, SideMetrics)

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
    values = {"batch": progress.batch, **_non_default_fields(progress)}
    for name in _SETS:
        if name in values:
            values[name] = sorted(cast("frozenset[str]", values[name]))
    if progress.operators:
        values["operators"] = {name: _operator_as_json(metrics) for name, metrics in progress.operators.items()}
    return values


def _operator_as_json(numbers: OperatorMetrics) -> dict[str, object]:
    values = _non_default_fields(numbers)
    if numbers.sides:
        values["sides"] = {side: _non_default_fields(side_metrics) for side, side_metrics in numbers.sides.items()}
    return values


def _non_default_fields(value: Progress | OperatorMetrics | SideMetrics) -> dict[str, object]:
    """What is not as it is by itself."""
    field_values = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _UNWRITTEN}
    return {
        name: field_value
        for name, field_value in field_values.items()
        if field_value and field_value != _DEFAULTS.get(name)
    }


_DEFAULTS = {"batches": 1, "health": 1}


def progress_from_json(values: Mapping[str, Any], query: str = "") -> Progress:
    """The batch of a line; what a later version may have added to it is passed over.

    >>> progress_from_json({"batch": 3, "marks": {"o.t": 17}, "hue": "blue"}).watermarks
    {'o.t': '17'}
    """
    attributes = _select_fields(Progress, values)
    for name in _SETS:
        attributes[name] = frozenset(attributes.get(name, ()))
    operators: Mapping[str, Mapping[str, Any]] = attributes.get("operators", {})
    attributes["operators"] = {name: _operator_from_json(operator) for name, operator in operators.items()}
    watermarks: Mapping[str, int] = attributes.get("marks", {})
    words = {
        column: watermark_text(watermark, is_temporal=column in attributes["temporal"])
        for column, watermark in watermarks.items()
    }
    attributes |= {"query": query, "watermarks": words}
    return Progress(**attributes)


def _operator_from_json(values: Mapping[str, Any]) -> OperatorMetrics:
    attributes = _select_fields(OperatorMetrics, values)
    sides: Mapping[str, Mapping[str, Any]] = attributes.get("sides", {})
    attributes["sides"] = {
        side: SideMetrics(**_select_fields(SideMetrics, side_values)) for side, side_values in sides.items()
    }
    return OperatorMetrics(**attributes)


_NAMES = {kind: frozenset(field.name for field in fields(kind)) for kind in (Progress, OperatorMetrics, SideMetrics)}
_ADDED = {kind: tuple(names & _COUNTED) for kind, names in _NAMES.items()}


def _select_fields(kind: type[Progress | OperatorMetrics | SideMetrics], values: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {name: value for name, value in values.items() if name in names}


def merge_batches(*batches: Progress) -> Progress:
    """Several batches as one, earlier ones first.

    >>> first, second = Progress("q", 1, rows_in=2, sources={"o": 2}), Progress("q", 2, 3, sources={"o": 1, "d": 2})
    >>> one = merge_batches(first, second)
    >>> one.batch, one.batches, one.rows_in, one.sources
    (2, 2, 5, {'o': 3, 'd': 2})
    """
    added: dict[str, Any] = {
        name: _sum_by_name([getattr(batch, name) for batch in batches]) for name in _COUNTED_BY_NAME
    }
    return replace(_sum_counts(batches), operators=merge_operators(batches), **added)


def merge_operators(batches: Iterable[Progress]) -> dict[str, OperatorMetrics]:
    """What each operator did in several batches, as one."""
    by_name: dict[str, list[OperatorMetrics]] = {}
    for batch in batches:
        for name, metrics in batch.operators.items():
            by_name.setdefault(name, []).append(metrics)
    return {name: merge_metrics(numbers) for name, numbers in by_name.items()}


def merge_metrics(numbers: Sequence[OperatorMetrics]) -> OperatorMetrics:
    """What an operator did in several batches, as one."""
    sides: dict[str, list[SideMetrics]] = {}
    for metrics in numbers:
        for side, of_side in metrics.sides.items():
            sides.setdefault(side, []).append(of_side)
    spreads: dict[str, Any] = {
        name: _sum_by_name(getattr(metrics, name) for metrics in numbers) for name in ("delays", "lateness")
    }
    return replace(
        _sum_counts(numbers), **spreads, sides={side: _sum_counts(of_one_side) for side, of_one_side in sides.items()}
    )


def _sum_counts(values: Sequence[N]) -> N:
    last = values[-1]
    return replace(last, **{name: sum(getattr(value, name) for value in values) for name in _ADDED[type(last)]})


def _sum_by_name(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for counts in values:
        for name, number in counts.items():
            totals[name] = totals.get(name, 0) + number
    return totals
