"""How large folders are, for those who ask often."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

PAUSE = 30.0
"""Seconds for which an answer stays: to look through a large checkpoint takes a moment."""


def make_size_probe(folder: Path, pause: float = PAUSE) -> Callable[[], int | None]:
    """What tells the bytes of all files below a folder; None where it is not there."""
    cached: tuple[float, int | None] | None = None

    def measure() -> int | None:
        nonlocal cached
        if cached is None or monotonic() - cached[0] > pause:
            cached = monotonic(), _size(folder)
        return cached[1]

    return measure


def _size(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except OSError:
                # Spark removes old files meanwhile.
                continue
    return total
