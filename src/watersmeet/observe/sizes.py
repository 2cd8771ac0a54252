"""How large folders are, for those who ask often."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

PAUSE = 30.0
"""Seconds for which an answer stays: to look through a large checkpoint takes a moment."""


def size_of(folder: Path, pause: float = PAUSE) -> Callable[[], int | None]:
    """What tells the bytes of all files below a folder; None where it is not there."""
    known: tuple[float, int | None] | None = None

    def measured() -> int | None:
        nonlocal known
        if known is None or monotonic() - known[0] > pause:
            known = monotonic(), _size(folder)
        return known[1]

    return measured


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
