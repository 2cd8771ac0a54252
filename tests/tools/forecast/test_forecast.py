"""Forecasts hold on the kernels, say what they cannot know, and are printed with their laws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import numpy as np
import pyarrow as pa
import pytest
from bench.data import Workload
from bench.forecast import forecast_of, forecast_table
from bench.sections import forecast as forecast_section
from tests.tools.studio.page import histories
from typer.testing import CliRunner, Result

from watersmeet.cli.app import app
from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.spark.exchange.store import group_labels, labels
from watersmeet.tools.forecast.cluster import (
    ClusterRequest,
    count_records,
    plan_cluster,
    simulate,
    spread_over,
    spreads,
)
from watersmeet.tools.forecast.inputs import MEASURED, Rate, parse_rates, read_sampled_rates, runs_alive, times_written
from watersmeet.tools.forecast.query import ForecastInput, QueryForecast, forecast_query, render

SECOND = 1_000_000
STREAMS = """
CREATE STREAM a (id BIGINT, t TIMESTAMP, x STRING, WATERMARK FOR t AS t - INTERVAL 20 SECONDS);
CREATE STREAM b (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
CREATE TABLE c (id BIGINT, x STRING, PRIMARY KEY (id));
"""
INTERVAL = "SELECT STREAM a.id, a.x FROM a JOIN b WITHIN 1m BEFORE AND 3m AFTER ON a.id = b.id;"
WINDOW = "SELECT STREAM a.id FROM a WINDOW (COUNT 5 PARTITION BY id) JOIN b WINDOW (TIME 8s) ON a.id = b.id;"
CHAIN = """SELECT STREAM a.id FROM a JOIN b WITHIN 1m ON a.id = b.id JOIN b AS d ON d.id = b.id
AND d.t BETWEEN b.t - INTERVAL 1 MINUTE AND b.t + INTERVAL 1 MINUTE;"""


def forecast(query: str, rates: dict[str, Rate], **more: object) -> QueryForecast:
    [found] = analyze(read_script(STREAMS + query))
    return forecast_query(plan_query(found, OPERATORS), OPERATORS, ForecastInput(rates, **more))  # pyright: ignore


def watersmeet(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("behind", [0, 60])
def test_stored_rows_are_those_that_the_kernel_keeps(behind: int) -> None:
    """Two sides of 20 and 10 rows per second, of which b may be a minute behind."""
    given = {"a": Rate(20), "b": Rate(10)}
    said = forecast(INTERVAL, given, behind={"b": behind * SECOND}).operators[0]
    [query] = analyze(read_script(STREAMS + INTERVAL))
    local = LocalQuery(plan_query(query, OPERATORS), "kernel")
    kept = np.zeros(2)
    for minute in range(10):
        rows = {}
        for name, rate, late in (("a", 20, 0), ("b", 10, behind)):
            times = (minute * 60 - late) * SECOND + np.arange(60 * rate) * SECOND // rate
            columns = {"id": np.arange(len(times)) + minute * 10_000, "t": pa.array(times, pa.timestamp("us", "UTC"))}
            rows[name] = pa.table(columns | ({"x": ["-"] * len(times)} if name == "a" else {}))
        kept = np.array(local.step(rows, {}).report.state)
    assert [one.rows for one in said.states] == pytest.approx([20 * (180 + 5 + behind), 10 * (60 + 20)], rel=0.001)
    # b is held by a, which is not behind; its own rows are of a minute ago.
    assert said.states[0].rows == pytest.approx(kept[0], rel=0.02)
    if not behind:
        assert said.states[1].rows == pytest.approx(kept[1], rel=0.02)


def test_rows_are_written_as_often_as_the_law_says() -> None:
    """Small runs that live for long are merged, large ones and short lives are not."""
    [query] = analyze(read_script(STREAMS + "SELECT STREAM a.id, a.x FROM a JOIN b WITHIN 3h ON a.id = b.id;"))
    local = LocalQuery(plan_query(query, OPERATORS), "kernel")
    written, rows, runs = 0, 0, list[int]()
    for batch in range(64):
        times = pa.array(batch * SECOND + np.arange(5000), pa.timestamp("us", "UTC"))
        ids = np.arange(5000) + batch * 5000
        tables = {
            "a": pa.table({"id": ids, "t": times, "x": ["-"] * 5000}),
            "b": pa.table({"id": ids + 10**9, "t": times}),
        }
        report = local.step(tables, {}).report
        written, rows = written + report.written, rows + sum(report.rows)
        [store] = local.stores.values()
        runs.append(len(json.loads(store.get("directory") or b"")["runs"]["left"]))
    assert times_written(5000, 64 * 5000) == pytest.approx(written / rows, rel=0.25)
    assert runs_alive(5000, 40 * 5000) == pytest.approx(np.mean(runs[16:]), rel=0.25), "about forty batches are alive"


@pytest.mark.parametrize(
    ("query", "missing"),
    [
        (INTERVAL, "the rate of b"),
        ("SELECT STREAM a.id, c.x FROM a JOIN c ON a.id = c.id;", "the number of keys of c"),
        ("SELECT TABLE a.x, count(*) AS n FROM a GROUP BY a.x;", "the number of keys of a"),
        (
            "SELECT STREAM a.id FROM a ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.id = b.id;",
            "the rate of b",
        ),
        (
            "SELECT STREAM a.id FROM a WINDOW (COUNT 5 PARTITION BY id) JOIN b WINDOW (TIME 5s) ON a.id = b.id;",
            "keys a",
        ),
        ("SELECT STREAM a.t FROM a SYNC JOIN b;", "the rate of b"),
        (CHAIN, "the rate at which the previous join sends rows"),
    ],
)
def test_unknown_numbers_are_reported_as_unknown(query: str, missing: str) -> None:
    found = forecast(query, {"a": Rate(10)})
    assert any(missing in said for said in found.unknown_inputs), found.unknown_inputs
    assert found.memory is None and any(kept.rows is None for one in found.operators for kept in one.states)


def test_every_family_has_a_forecast() -> None:
    assert all(callable(family.forecast) for family in OPERATORS.values())


def test_numbers_windows_and_keys_are_counted() -> None:
    rates, keys = {"": Rate(100)}, {"a": 50, "c": 60}
    assert [kept.rows for kept in forecast(WINDOW, rates, keys=keys).operators[0].states] == [250, 800]
    top = "SELECT TABLE a.id FROM a ORDER BY a.id LIMIT 7;"
    assert [kept.rows for kept in forecast(top, rates).operators[0].states] == [7]
    looked_up = "SELECT STREAM a.id, c.x FROM a JOIN c ON a.id = c.id;"
    assert [kept.rows for kept in forecast(looked_up, rates, keys=keys).operators[0].states] == [60]


def test_more_rows_than_cores_can_join_are_reported() -> None:
    slow, quick = (forecast(INTERVAL, {"": Rate(rate)}) for rate in (1e7, 1e3))
    assert slow.is_too_slow and slow.seconds is None and not quick.is_too_slow
    heavy = forecast(INTERVAL, {"": Rate(1e3, heaviest=0.9)}, cores=8, shards=8)
    even = forecast(INTERVAL, {"": Rate(1e3)}, cores=8, shards=8)
    assert heavy.busy is not None and even.busy is not None and heavy.busy > 5 * even.busy
    assert heavy.operators[0].states[0].fullest == pytest.approx(0.9 * (heavy.operators[0].states[0].rows or 0))


def test_a_state_that_is_not_at_hand_is_read_by_every_batch() -> None:
    costs = replace(MEASURED, cached=2e8)
    small, large = (forecast(INTERVAL, {"": Rate(rate)}, cores=8, shards=8, costs=costs) for rate in (1e4, 3e5))
    assert not small.operators[0].read and large.operators[0].read > costs.cached
    assert large.seconds is not None and small.seconds is not None and large.seconds > 2 * small.seconds
    assert "by every batch" in render(large) and "by every batch" not in render(small)


def test_texts_take_what_they_were_counted_to_take() -> None:
    plain, known = (
        forecast(INTERVAL, {"": Rate(10, widths=widths)}).operators[0].states[0].bytes for widths in ({}, {"x": 500.0})
    )
    assert plain is not None and known is not None and known > 8 * plain


def test_a_project_is_forecast_from_rates(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    assert watersmeet("init", shop).exit_code == 0
    none = watersmeet("explain", shop, "--forecast")
    assert (none.exit_code, "[NO_RATES]" in none.stderr) == (1, True)
    assert "add `--rate orders=1000/s" in none.stderr and " or " not in none.stderr.partition("Hint:")[2]
    assert "are not known: it has not run yet." in none.stderr
    unknown = watersmeet("explain", shop, "--forecast", "--rate", "order=5/s")
    assert (unknown.exit_code, "did you mean `orders`?" in unknown.stderr) == (1, True)
    wrong = watersmeet("explain", shop, "--forecast", "--rate", "orders=fast")
    assert (wrong.exit_code, "[WRONG_RATE]" in wrong.stderr) == (1, True)
    assert watersmeet("explain", shop, "--rate", "5/s").exit_code == 2
    assert watersmeet("explain", shop, "--forecast", "--rate", "5/s", "--keys", "orders=many").exit_code == 2
    assert watersmeet("explain", shop, "--forecast", "--rate", "5/s", "--behind", "orders=long").exit_code == 2
    result = watersmeet("explain", shop, "--forecast", "--rate", "orders=100/s", "--format", "json")
    [found] = json.loads(result.stdout)
    assert found["operators"][0]["kept"][0]["rows"] == 100 * 3900
    assert found["seconds"] is None and "--rate deliveries=1000/s" in found["missing"][0]
    # One batch does not say how fast event time moves.
    histories.write(shop / "storage", histories.batch(0, 60.0))
    ran = watersmeet("explain", shop, "--forecast")
    assert "not known: its runs had 1 batch, and a rate needs batches between which event time advances." in ran.stderr
    rmtree(shop / "storage")
    sample = {
        "source": "deliveries",
        "rows_per_unit": 5e-6,
        "column_bytes": {},
        "keys": 3,
        "heaviest_keys": [["a", 0.5]],
    }
    (shop / "storage").mkdir()
    kept = {"pairs": [{"unit": "time", "left": sample, "right": sample}]}
    (shop / "storage" / "advice.json").write_text(json.dumps(kept))
    text = watersmeet("explain", shop, "--forecast", "--rate", "orders=60/min", "--behind", "deliveries=5m")
    assert text.exit_code == 0 and "deliveries 5 rows/s (sampled)" in text.stdout and "1.5 k rows" in text.stdout
    assert "4.2 k rows" in text.stdout, "an hour, a lag of five minutes, and five minutes behind"


def test_rates_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    (tmp_path / "advice.json").write_text("{}")
    assert read_sampled_rates(tmp_path / "advice.json") == read_sampled_rates(tmp_path / "nowhere") == {}
    assert parse_rates(["a=1/h"])["a"].per_second == pytest.approx(1 / 3600)


def test_a_plan_grows_as_its_laws_say() -> None:
    one, ten = (plan_cluster(ClusterRequest(rate, 3600, 200, columns=True)) for rate in (1e5, 1e6))
    value = {name: [next(line.value for line in plan.lines if line.name == name) for plan in (one, ten)]
             for name in ("rows kept", "state on disk", "written to disk")}  # fmt: skip
    assert all(large == pytest.approx(10 * small, rel=0.01) or name == "written to disk"
               for name, (small, large) in value.items())  # fmt: skip
    assert one.cores < ten.cores
    # Ten times the state is no longer cached, unless the machines are many; longer batches read it less often.
    assert ten.read and plan_cluster(ClusterRequest(1e6, 3600, 200, batch=300)).cores < ten.cores
    assert (
        not plan_cluster(ClusterRequest(1e4, 60, 200)).read and plan_cluster(ClusterRequest(1e4, 60, 200)).is_possible
    )
    assert not plan_cluster(ClusterRequest(1e9, 86400, 2000, batch=1)).is_possible
    assert plan_cluster(ClusterRequest(1e6, 3600, 200, heaviest=0.5)).too_heavy
    assert (
        spread_over(ClusterRequest(1e5, 60, 50), 2048, 2048).dominates
        != "rows"
        == spreads(ClusterRequest(1e6, 60, 50))[0].dominates
    )
    assert sum(line.value for line in one.per_shard if line.name == "rows") * one.shards == pytest.approx(1e5)


def test_a_batch_reads_the_parts_with_matches_of_what_is_not_cached() -> None:
    costs = replace(MEASURED, cached=100, part=10)
    assert costs.bytes_read(100, 5) == 0
    assert costs.bytes_read(200, 5) == 25, "half of the matches are in the half that is not cached"
    assert costs.bytes_read(200, 500) == 100, "and no more than that half is read"
    assert costs.bytes_read(200, 500, machines=2) == 0
    assert 10 < plan_cluster(ClusterRequest(2e5, 3600, 200)).cores < 100


def test_a_plan_is_printed_with_its_laws() -> None:
    result = watersmeet("plan", "--rate", "2e6/s", "--within", "1h", "--row", "200B", "--heaviest", "0.3")
    assert result.exit_code == 0, result.output
    assert all(word in result.stdout for word in ("rate x (within + lag)", "one core joins it", MEASURED.commit))
    data = json.loads(watersmeet("plan", "--rate", "1e5/s", "--within", "1h", "--format", "json").stdout)
    assert data["cores"] >= 1 and data["spread"][-1]["tasks"] == 2048 and data["simulated"] == []
    for arguments, said in (
        (("--rate", "2e6", "--within", "1h"), "[WRONG_RATE]"),
        (("--rate", "2e6/s", "--within", "1h", "--row", "big"), "[WRONG_SIZE]"),
        (("--rate", "2e6/s", "--within", "1 month"), "days"),
        (("--rate", "2e6/s", "--within", "1h", "--batch", "0s"), "--batch"),
    ):
        refused = watersmeet("plan", *arguments)
        assert refused.exit_code in (1, 2) and said in refused.stderr


def test_the_plan_of_a_load_shows_the_simulated_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.cli.explain.SIMULATED_ROWS", 2_000)
    load = ("plan", "--rate", "2e6/s", "--within", "1h", "--simulate")
    result = watersmeet(*load)
    assert result.exit_code == 0, result.output
    assert "Simulated on this machine: a batch of 2,000 rows" in result.stdout
    measured = json.loads(watersmeet(*load, "--format", "json").stdout)["simulated"]
    # As many records as there are pairs of a task and a shard: watermarks come behind rows where there are any.
    assert [(entry["tasks"], entry["records"]) for entry in measured] == [(n, n) for n in (2, 16, 64, 256, 1024, 4096)]


@pytest.mark.parametrize("shards", [1, 8, 64, 4096])
@pytest.mark.parametrize("partitions", [None, 1, 4, 64, 4096])
def test_records_are_counted_as_shards_are_grouped(shards: int, partitions: int | None) -> None:
    groups = set(group_labels(labels(shards), partitions or shards).values())
    counted = count_records(0, 10, shards, partitions)
    # Labels are even over as many partitions as shards, and about even over fewer.
    assert counted.of_rows == 0 and counted.of_watermarks == counted.merged
    assert counted.merged == pytest.approx(10 * len(groups), rel=0.6)
    assert partitions is not None or counted.merged == 10 * shards
    assert count_records(1e9, 10, shards, partitions).of_watermarks == 0


def test_the_exchange_is_simulated_with_the_code_of_a_query() -> None:
    few, many = simulate(20_000, 2, 2, repeat=1), simulate(20_000, 200, 200, repeat=1)
    assert (few.records, few.watermark_records) == (2, 0)
    assert many.records == 200 and 0 < many.watermark_records < 200
    assert few.bytes * 2 > 20_000 * 28 and many.watermark_bytes == 100 * few.watermark_bytes
    assert many.per_row > few.per_row


def test_a_run_of_the_benchmark_is_held_against_its_forecast() -> None:
    run = forecast_section(Workload(rows=8000))[0]
    measured = {
        "workload": {"rows": 4000, "batches": 8}, "shards": 2, "contender": run.contender, "state_rows": 500 * 70 // 60,
        "seconds_per_batch": 0.35, "results_per_second": 0, "write_amplification": 1,
    }  # fmt: skip
    found = forecast_of(measured)
    assert abs(found["state"].error) < 0.01 and abs(found["seconds"].error) < 0.4
    told = forecast_table("forecast", [measured | {"label": "one"}]).caption
    assert str(told).startswith("Rows kept: 1 of 1 within 20 %. Seconds: 1 of 1 within 40 %.\nCosts of commit ")
