"""Cases: values, executors, comparison and assertions. Programs import them from `watersmeet.testing`."""

from __future__ import annotations

from watersmeet.local.cells import arrow_table, cell
from watersmeet.local.query import MemoryStore
from watersmeet.tools.testing.any_order import check_any_order
from watersmeet.tools.testing.case import Case, CaseBatch, Outcome, compare, parse_case, read_case
from watersmeet.tools.testing.execute import Executor, Result, run_case, table_of, trace_case

__all__ = [
    "Case", "CaseBatch", "Executor", "MemoryStore", "Outcome", "Result", "arrow_table", "cell", "check_any_order",
    "compare", "parse_case", "read_case", "run_case", "table_of", "trace_case",
]  # fmt: skip
