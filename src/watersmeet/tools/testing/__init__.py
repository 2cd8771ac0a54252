"""The public test kit: cases as values, their comparison, and what runs them without a JVM."""

from __future__ import annotations

from watersmeet.local.cells import arrow_table, cell
from watersmeet.local.shards import MemoryStore
from watersmeet.tools.testing.case import Case, CaseBatch, parse_case, read_case
from watersmeet.tools.testing.execute import Executor, Result, run_case
from watersmeet.tools.testing.outcome import Outcome, compare

__all__ = [
    "Case", "CaseBatch", "Executor", "MemoryStore", "Outcome", "Result", "arrow_table", "cell", "compare",
    "parse_case", "read_case", "run_case",
]  # fmt: skip
