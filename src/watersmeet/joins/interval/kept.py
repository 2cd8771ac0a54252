"""What a state of an interval join holds: rows of each side, until a mark of the other has passed all they can meet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.matching import Ints, shifted
from watersmeet.joins.state.kept import Keeping, Kept, Until
from watersmeet.joins.state.layout import as_int64

SIDES = ("left", "right")
"""The spines, by port."""


def spine(identity: Identity, name: str) -> Kept:
    """The rows of a side."""
    port = SIDES.index(name)
    ends = [*limits_of(identity, port), *(life for life in lives_of(identity, port))]
    return Kept(port, "until the watermark of the other side has passed what it can meet", until=partial(_until, ends))


def limits_of(identity: Identity, port: int) -> list[tuple[str, str, int]]:
    """By which columns of a side rows live, which marks end them, and how far those may go beyond the column.

    Between the compared times the range says it, which knows whether bounds are strict.
    """
    times = [one.get("time") for one in identity["ports"]]
    low, high = identity["range"]
    exact = {(times[0], times[1]): high, (times[1], times[0]): -low}
    own = frozenset(identity["ports"][port]["times"])
    return [
        (column, other, exact.get((column, other), constant))
        for column, other, constant in identity["bounds"]
        if column in own
    ]


def lives_of(identity: Identity, port: int) -> Iterator[tuple[str, str, int]]:
    """The same of the ends that rows carry: what the condition compares with a time of the other side."""
    others = frozenset(identity["ports"][1 - port].get("times", ()))
    stored = frozenset(identity["ports"][port]["stored"])
    condition = identity["condition"]
    parts = condition[1:] if condition and condition[0] == "and" else [condition]
    for part in parts:
        match part:
            case [("<" | "<=") as operator, low, {"column": end}] if end in stored:
                time, constant = _shifted_time(low)
                if time in others and constant is not None:
                    yield end, time, -constant - (operator == "<")
            case _:
                pass


def _shifted_time(part: Any) -> tuple[str, int | None]:
    """A time and what is added to it."""
    match part:
        case {"column": str(time)}:
            return time, 0
        case [("+" | "-") as operator, {"column": str(time)}, {"microseconds": value} | {"int": value}]:
            return time, int(value) * (1 if operator == "+" else -1)
        case _:
            return "", None


def _until(ends: list[tuple[str, str, int]], rows: pa.RecordBatch) -> Until:
    found: dict[str, Ints] = {}
    for column, mark, constant in ends:
        if column in rows.schema.names:
            until = shifted(as_int64(rows.column(column)), constant)
            found[mark] = np.minimum(until, found[mark]) if mark in found else until
    return found


KEPT = Keeping(("interval",), spine, limits_of)
