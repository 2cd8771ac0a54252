"""The public test kit: cases as values, their comparison, and what runs them without a JVM."""

from __future__ import annotations

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
