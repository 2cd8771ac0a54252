"""Sizes and numbers: from text, and as people read them."""

from __future__ import annotations

import re

from watersmeet.errors import refuse

_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]?)i?[bB]?\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def parse_size(text: str) -> float:
    """Bytes, from a text such as ``200B`` or ``1.5kB``; a thousand of one unit is one of the next.

    >>> parse_size("200B"), parse_size("1.5 kB")
    (200.0, 1500.0)
    """
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise refuse("WRONG_SIZE", size=text)
    return float(match[1]) * 1000 ** _POWERS[match[2].upper()]


def format_quantity(value: float, unit: str = "") -> str:
    """A number with its unit, in three digits.

    >>> format_quantity(7_200_000_000, "rows"), format_quantity(1.5e12, "B")
    ('7.2 G rows', '1.5 TB')
    >>> format_quantity(0.123, "s"), format_quantity(96)
    ('0.123 s', '96')
    """
    for size, prefix in _STEPS:
        if abs(value) >= size and unit:
            gap = "" if unit.startswith("B") else " "
            return f"{value / size:.3g} {prefix}{gap}{unit}"
    return f"{value:,.3g} {unit}".strip() if unit else f"{value:,.0f}"
