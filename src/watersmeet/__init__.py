"""Watersmeet joins streams: in SQL or in Python, on Spark, in bounded state.

>>> import watersmeet as ws
>>> ws.__version__.count(".")
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.version import __version__

if TYPE_CHECKING:
    from watersmeet.api import asof_join, explain, jars, join, sql, substrait, sync_join, window_join

__all__ = [
    "Refusal", "WatersmeetError", "__version__", "asof_join", "explain", "jars", "join", "sql", "substrait",
    "sync_join", "window_join",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The calls that need more than errors are imported when first used, so that ``import watersmeet`` stays quick."""
    if name in {"asof_join", "explain", "jars", "join", "sql", "substrait", "sync_join", "window_join"}:
        from watersmeet import api

        return getattr(api, name)
    raise AttributeError(f"module 'watersmeet' has no attribute {name!r}")
