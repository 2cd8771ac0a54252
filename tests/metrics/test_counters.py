"""The counters of a batch are listed once: by the fields of `StepReport`, and of the metrics that report them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import watersmeet
from watersmeet.metrics.metrics import COUNTED, OperatorMetrics, SideMetrics, operator_metrics, sum_reported
from watersmeet.metrics.progress import Progress
from watersmeet.operators.core.operator import StepReport, merge_step_reports

ROOT = Path(watersmeet.__file__).parent
COUNTERS = {field.name for field in fields(StepReport)} & {field.name for field in fields(OperatorMetrics)}
ON_THE_WAY = ("operators/core", "operators/state", "spark", "metrics")
"""Where numbers travel. A table or a chart chooses which of them it shows, and in which order."""
SERIES = {"metrics/prometheus.py"}
"""Each series of Prometheus has a name, a type and a help text of its own."""


def counters_in(tree: ast.AST) -> Iterator[frozenset[str]]:
    """The counters that each list of names in a module has: in a tuple, list, set or dict, or as keywords of a call."""
    for node in ast.walk(tree):
        match node:
            case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Set(elts=values):
                names = [value.value for value in values if isinstance(value, ast.Constant)]
            case ast.Dict(keys=keys):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
            case ast.Call(keywords=keywords):
                names = [keyword.arg for keyword in keywords]
            case _:
                continue
        yield frozenset(str(name) for name in names) & COUNTERS


def test_lists_of_counters_are_found() -> None:
    for text in (
        "('late', 'padded', 'dropped')",
        "f(late=1, padded=2, dropped=3)",
        "{'late': 1, 'padded': 2, 'dropped': 3}",
    ):
        assert {"late", "padded", "dropped"} in list(counters_in(ast.parse(text)))


def test_no_module_lists_the_counters_by_hand() -> None:
    assert {"matched", "padded", "late", "dropped", "written", "delays", "lateness"} <= COUNTERS
    paths = [path for folder in ON_THE_WAY for path in (ROOT / folder).rglob("*.py")]
    listing = {
        str(path.relative_to(ROOT))
        for path in paths
        if any(len(counters) > 2 for counters in counters_in(ast.parse(path.read_text("utf-8"))))
    }
    assert listing - SERIES == set(), "derive the names from the fields of StepReport, OperatorMetrics or Progress"


def test_steps_add_up_counters_and_histograms_and_show_the_last_state() -> None:
    first = StepReport(
        (1, 2), (0, 1), 3, (1, 0), (5, 5), (0, 1), {"l.t": 1}, (2,), 4, {"left": (1, 9)}, delays=np.ones(2)
    )
    last = StepReport((4, 0), (1, 1), 1, (0, 2), (6, 7), (1, 0), {"l.t": 8}, (3,), 1, {"left": (2, 9), "right": (1, 5)})
    merged = merge_step_reports([first, last])
    assert (merged.rows, merged.late, merged.padded, merged.dropped) == ((5, 2), (1, 2), (1, 2), (1, 1))
    assert (merged.matched, merged.written, merged.stored) == (4, 5, {"left": (3, 18), "right": (1, 5)})
    assert (merged.state, merged.partitions, merged.watermarks) == ((6, 7), (3,), {"l.t": 8})
    assert merged.lateness is None and merged.delays is not None and merged.delays.tolist() == [1, 1]


def test_metrics_sum_what_shards_report() -> None:
    observed = {
        "rows_left": 3,
        "rows_right": 2,
        "matched": 4,
        "emitted": 6,
        "state_left": 7,
        "fullest": 5,
        "delays": {"1": 2.0},
    }
    metrics = operator_metrics(observed, 1.0, 0.0)
    assert (metrics.events, metrics.events_processed, metrics.matched, metrics.state_rows) == (6, 5, 4, 7)
    assert (metrics.fullest, metrics.delays, metrics.late) == (5, {"1": 2}, 0)
    two = [observed, {"matched": 1, "late_1": 2, "written": None}]
    assert sum_reported(Progress, two) == {
        "matched": 5, "padded": 0, "late": 2, "dropped": 0, "written": 0, "state_rows": 7,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [Progress, OperatorMetrics, SideMetrics])
def test_sizes_are_not_added_up_over_batches(kind: type) -> None:
    counted = {field.name for field in fields(kind) if COUNTED.items() <= field.metadata.items()}
    assert {"late", "padded", "dropped"} <= counted
    assert counted.isdisjoint({"state_rows", "fullest", "shards", "busy", "backpressure", "state_bytes"})
