"""Watersmeet joins streams on Spark, in SQL or Python, with bounded state.

>>> import watersmeet as ws
>>> ws.__version__.count(".")
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.version import __version__

if TYPE_CHECKING:
    from watersmeet.api import (
        advise,
        asof_join,
        deduplicate,
        explain,
        finish,
        group,
        input_end,
        jars,
        join,
        progress,
        sql,
        state,
        substrait,
        sync_join,
        top,
        why,
        window_join,
    )
    from watersmeet.tools.testing.execute import test

__all__ = [
    "Refusal", "WatersmeetError", "__version__", "advise", "asof_join", "deduplicate", "explain", "finish", "group",
    "input_end", "jars", "join", "progress", "sql", "state", "substrait", "sync_join", "test", "top", "why",
    "window_join",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The calls that need more than errors are imported when first used, so that ``import watersmeet`` stays quick."""
    if name == "test":
        from watersmeet.tools.testing import execute

        return execute.test
    if name in __all__:
        from watersmeet import api

        return getattr(api, name)
    raise AttributeError(f"module 'watersmeet' has no attribute {name!r}")
