"""The public test kit: cases as values, their comparison, and what runs them without a JVM."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from watersmeet.deprecation import warn_renamed
from watersmeet.tools.testing import (
    Case,
    CaseBatch,
    Executor,
    MemoryStore,
    Outcome,
    Result,
    arrow_table,
    cell,
    check_any_order,
    compare,
    parse_case,
    read_case,
    run_case,
    trace_case,
)

__all__ = [
    "Case", "CaseBatch", "Executor", "MemoryStore", "Outcome", "Result", "arrow_table", "cell", "check_any_order",
    "compare", "parse_case", "read_case", "run_case", "trace_case",
]  # fmt: skip


class _Telling(ModuleType):
    """The module that had the outcomes of a case, under its old name."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("told", "trace_case"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'", name=name)
        if name == "told":
            warn_renamed(f"{self.__name__}.told", "watersmeet.testing.trace_case")
        return trace_case


telling = sys.modules[f"{__name__}.telling"] = _Telling(f"{__name__}.telling")
