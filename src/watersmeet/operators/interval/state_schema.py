"""What a state of an interval join holds: rows of each side, until a mark of the other has passed all they can meet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Ints, as_int64, shift_times
from watersmeet.operators.state.state_schema import ExpiryTimes, SpineSchema, StateSchema

SIDES = ("left", "right")
"""The spines, by port."""


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    port = SIDES.index(name)
    ends = [*limits_of(identity, port), *(limit for limit in end_limits_of(identity, port))]
    return SpineSchema(
        port,
        "until the watermark of the other side passes every time that can match",
        expiry=partial(_expiry_times, ends),
    )


def limits_of(identity: Identity, port: int) -> list[tuple[str, str, int]]:
    """By which columns of a side rows live, which marks end them, and how far those may go beyond the column.

    Between the compared times the range says it, which knows whether bounds are strict.
    """
    times = [port_identity.get("time") for port_identity in identity["ports"]]
    low, high = identity["range"]
    exact = {(times[0], times[1]): high, (times[1], times[0]): -low}
    own = frozenset(identity["ports"][port]["times"])
    return [
        (column, other, exact.get((column, other), constant))
        for column, other, constant in identity["bounds"]
        if column in own
    ]


def end_limits_of(identity: Identity, port: int) -> Iterator[tuple[str, str, int]]:
    """The same of the ends that rows carry: what the condition compares with a time of the other side."""
    others = frozenset(identity["ports"][1 - port].get("times", ()))
    stored = frozenset(identity["ports"][port]["stored"])
    condition = identity["condition"]
    parts = condition[1:] if condition and condition[0] == "and" else [condition]
    for part in parts:
        match part:
            case [("<" | "<=") as operator, low, {"column": end}] if end in stored:
                time, constant = _parse_shifted_time(low)
                if time in others and constant is not None:
                    yield end, time, -constant - (operator == "<")
            case _:
                pass


def _parse_shifted_time(part: Any) -> tuple[str, int | None]:
    """A time and what is added to it."""
    match part:
        case {"column": str(time)}:
            return time, 0
        case [("+" | "-") as operator, {"column": str(time)}, {"microseconds": value} | {"int": value}]:
            return time, int(value) * (1 if operator == "+" else -1)
        case _:
            return "", None


def _expiry_times(ends: list[tuple[str, str, int]], rows: pa.RecordBatch) -> ExpiryTimes:
    limits: dict[str, Ints] = {}
    for column, watermark, constant in ends:
        if column in rows.schema.names:
            until = shift_times(as_int64(rows.column(column)), constant)
            limits[watermark] = np.minimum(until, limits[watermark]) if watermark in limits else until
    return limits


STATE_SCHEMA = StateSchema(("interval",), spine, limits_of)
