"""The outcome of every row of a case; `watersmeet.testing` has the same call."""

from __future__ import annotations

from typing import Any

from watersmeet.deprecation import warn_renamed
from watersmeet.tools.testing.execute import trace_case

__all__ = ["trace_case"]


def __getattr__(name: str) -> Any:
    if name != "told":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'", name=name)
    warn_renamed("watersmeet.testing.telling.told", "watersmeet.testing.trace_case")
    return trace_case
