"""Cases in other batches, orders, restarts and shards: totals stay, or the smallest difference is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from tests.case_files import case_file
from typer.testing import CliRunner

import watersmeet as ws
from watersmeet.cli.app import app
from watersmeet.local.query import BatchOutput, LocalQuery, MemoryStore
from watersmeet.operators.core.operator import Watermarks
from watersmeet.testing import check_any_order, parse_case, read_case

LEFT = """
name: a left join
sql: |
  CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 3);
  CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 3);
  SELECT STREAM l.id, l.t, r.t FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t - 1 AND l.t + 4;
batches:
- in: {l: [[1, 5], [2, 6], [4, 7]], r: [[1, 8], [2, 1]]}
  out: [[1, 5, 8]]
- in: {l: [[3, 9], [1, 1]], r: [[3, 12], [2, 9], [5, 20]]}
  out: [[3, 9, 12], [2, 6, 9], [4, 7, null]]
  late: [[1, 1]]
end: []
"""
LATEST = """
name: the latest price
sql: |
  CREATE STREAM prices (item STRING, price BIGINT);
  SELECT TABLE item, price, item AS _key FROM prices;
batches:
- in: {prices: [[tea, 3], [cup, 7]]}
  out: [["+", tea, 3, tea], ["+", cup, 7, cup]]
- in: {prices: [[tea, 4]]}
  out: [["-", tea, 3, tea], ["+", tea, 4, tea]]
"""
IDLE = """
name: an idle side
sql: |
  CREATE STREAM o (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
  CREATE STREAM d (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0 IDLE AFTER 1m);
  SELECT STREAM o.id, o.t, d.t FROM o LEFT JOIN d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + 5;
batches:
- {in: {o: [[1, 10]], d: [[9, 1]]}, now: 0s}
- {in: {o: [[2, 30]]}, now: 59s, out: []}
- {now: 60s, out: [[1, 10, null]]}
- {in: {d: [[2, 29], [2, 31]]}, now: 61s, out: [[2, 30, 31]], late: [[2, 29]]}
"""


@pytest.mark.parametrize("text", [LEFT, IDLE], ids=["left join", "idle side"])
def test_the_total_of_an_event_time_join_stays(text: str) -> None:
    result = check_any_order(parse_case(text))
    assert result.status == "passed", result.detail


@pytest.mark.parametrize(
    "name",
    [
        "interval/chain-left-of-left",
        "asof/tolerance",
        "group/once-by-window",
        "changelog/left-join",
        "group/of-windows",
    ],
)
def test_totals_of_each_family_stay(name: str) -> None:
    result = check_any_order(read_case(case_file(name)))
    assert result.status == "passed", result.detail


def test_a_query_that_goes_by_arrival_varies() -> None:
    result = check_any_order(parse_case(LATEST))
    assert result.status == "varies"
    assert result.detail.splitlines() == [
        "by arrival: the row of a key that arrives last replaces the others",
        "the same rows in another order give another total:",
        "  in the case:",
        '    batch 1: prices ["tea", 3]',
        '    batch 2: prices ["tea", 4]',
        "  here:",
        '    batch 1: prices ["tea", 4]; prices ["tea", 3]',
        '  out: - ["tea", 4, "tea"]',
        '  out: + ["tea", 3, "tea"]',
    ]


def test_a_state_that_is_lost_at_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "restart", lambda self: MemoryStore())
    result = check_any_order(parse_case(LEFT))
    assert result.status == "failed"
    assert "with a restart before batch" in result.detail and result.detail.count("batch 1: ") <= 4, result.detail


def test_a_row_that_is_lost_in_a_large_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LocalQuery.step

    def lose_row(query: LocalQuery, arrivals: Mapping[str, pa.Table], watermarks: Watermarks) -> BatchOutput:
        if sum(table.num_rows for table in arrivals.values()) > 6:
            arrivals = {**arrivals, "r": arrivals["r"].slice(1)}
        return step(query, arrivals, watermarks)

    monkeypatch.setattr(LocalQuery, "step", lose_row)
    result = check_any_order(parse_case(LEFT))
    assert (result.status, result.detail.count("batch")) == ("failed", 4), result.detail
    assert result.detail.startswith("the same rows in other batches give another total:")


def test_the_command_and_the_call(tmp_path: Path) -> None:
    for name, text in (("left", LEFT), ("latest", LATEST)):
        (tmp_path / f"{name}.yaml").write_text(text)
        ws.test(tmp_path / f"{name}.yaml", any_order=True)
    shown = CliRunner().invoke(app, ["test", str(tmp_path), "--any-order"])
    assert shown.exit_code == 0 and shown.output.splitlines()[-1] == "1 passed, 1 varies", shown.output
    (tmp_path / "left.yaml").write_text(LEFT.replace("[4, 7, null]", "[4, 7, 1]"))
    shown = CliRunner().invoke(app, ["test", str(tmp_path / "left.yaml"), "--any-order"])
    assert shown.exit_code == 1 and "+ [4, 7, null]" in shown.output
