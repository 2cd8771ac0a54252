"""How large rows are: as Arrow has them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watersmeet.errors import WatersmeetError
from watersmeet.schema import arrow_type

TEXT = 24.0
"""Bytes of a value of no fixed length, if nothing is known of it; its place among the others is counted in."""
VALID = 1 / 8
"""Whether a value is there at all takes a bit."""


def row_bytes(columns: Iterable[tuple[str, str | None]], widths: Mapping[str, float]) -> float:
    """The bytes of a row with columns of those names and types; ``known``: what values of a column have on average.

    >>> row_bytes([("id", "BIGINT"), ("name", "STRING"), ("note", "STRING")], {"note": 100.0})
    132.125
    """
    return sum(widths.get(name.lower(), widths.get(name, width_of(type_))) for name, type_ in columns)


def width_of(type_: str | None) -> float:
    """The bytes of a value of that type; of an unknown one, those of a number."""
    if type_ is None:
        return 8 + VALID
    try:
        return arrow_type(type_).bit_width / 8 + VALID
    except (ValueError, WatersmeetError):
        return TEXT
