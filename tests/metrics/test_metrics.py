"""The metrics of operators: what they mean, how Prometheus reads them, and where."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.examples import examples
from typer.testing import CliRunner

from watersmeet.cli.app import app
from watersmeet.cli.init import init_project
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.metrics import OperatorMetrics, SideMetrics, backpressure_of, busy_share
from watersmeet.metrics.progress import Progress, ProgressSchema, progress_of
from watersmeet.metrics.prometheus import MetricsRegistry, serve_metrics
from watersmeet.operators.core.operator import END_OF_INPUT

GOLDEN = Path(__file__).parent / "metrics.txt"

OPERATORS = {
    "a and b": OperatorMetrics(
        kind="interval",
        busy=0.5,
        backpressure=0.25,
        events=4,
        events_processed=7,
        matched=3,
        padded=1,
        late=2,
        state_rows=5,
        written=6,
        seconds=0.75,
        shards=2,
        sides={"left": SideMetrics(state_rows=5, stored=4, bytes=200), "right": SideMetrics(state_rows=1)},
    ),
    'a+b and "c\\d"': OperatorMetrics(kind="merge", events=2, events_processed=4, seconds=0.125, shards=2),
}
FIRST = Progress(
    "joined",
    7,
    rows_in=11,
    rows_out=2,
    padded=1,
    late=2,
    state_rows=5,
    seconds=1.5,
    operators=OPERATORS,
    marks={"a.t": 1_700_000_000_500_000, "b.t": END_OF_INPUT, "c.n": 42},
    temporal=frozenset({"a.t", "b.t"}),
    backpressure=0.25,
    sources={"a": 7, "b": 4},
    malformed=1,
    malformed_of={"a": 1},
    backlog={"topic-a": 12},
    state_bytes=2048,
    at=1_700_000_090.0,
)
SECOND = replace(FIRST, batch=8, seconds=0.5, state_rows=3, backpressure=0.0, at=1_700_000_095.0)
NOW = 1_700_000_100.0

SAMPLE = re.compile(r'([a-z_:]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (\+Inf|-?[0-9.]+(?:e[+-]?\d+)?)')
REPORTED: dict[str, Any] = {
    "batchId": 3,
    "durationMs": {"triggerExecution": 2000},
    "sources": [{"numInputRows": 40, "inputRowsPerSecond": 40.05, "endOffset": '{"p": 1}', "latestOffset": "null"}],
    "observedMetrics": {
        "watersmeet": {"rows": 6},
        "watersmeet:a and b": {
            "rows_left": 30,
            "rows_right": 10,
            "emitted": 8,
            "seconds": 3.0,
            "shards": 4,
            "operator": "interval",
            "padded_left": 2,
            "padded_right": None,
            "watermark:a.t": 5,
        },
        "watersmeet:the groups of a": {"rows_1": 8, "emitted": 5, "seconds": 0.5, "shards": 1, "operator": "group"},
    },
}


def registry_of(*batches: Progress) -> MetricsRegistry:
    metrics = MetricsRegistry()
    for progress in batches:
        metrics.take(progress)
    return metrics


def samples(text: str) -> dict[tuple[str, str], float]:
    """The samples of a text, as a reader of the format finds them: families whole, help and type first, none twice."""
    found: dict[tuple[str, str], float] = {}
    family, kind, done = "", "", set[str]()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            done.add(family)
            family = line.split()[2]
            assert family not in done
            continue
        if line.startswith("# TYPE "):
            kind = line.split()[3]
            assert line.split()[2] == family and (kind == "counter") == family.endswith("_total")
            continue
        matched = SAMPLE.fullmatch(line)
        assert matched is not None, line
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert matched[1] in [f"{family}{part}" for part in parts] and (matched[1], matched[2]) not in found
        found[matched[1], matched[2]] = float(matched[3])
    assert text.endswith("\n")
    return found


def without_lag(text: str) -> list[str]:
    """The lines that do not change with the clock."""
    return [line for line in text.splitlines() if not line.startswith("watersmeet_watermark_lag_seconds")]


def test_prometheus_own_parser_reads_it() -> None:
    metrics = registry_of(FIRST, SECOND)
    metrics.checkpoints = {"joined": lambda: 4096}
    families = {family.name: family for family in text_string_to_metric_families(metrics.text(NOW))}
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    batches = {
        (sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value
        for sample in families["watersmeet_query_batch_seconds"].samples
    }
    assert (batches["bucket", "1.0"], batches["bucket", "+Inf"], batches["count", None], batches["sum", None]) == (
        1,
        2,
        2,
        2,
    )
    lags = {sample.labels["column"]: sample.value for sample in families["watersmeet_watermark_lag_seconds"].samples}
    # An input that has ended is not behind.
    assert lags == {"a.t": 99.5}
    [success] = families["watersmeet_query_last_success_timestamp_seconds"].samples
    assert success.value == SECOND.at + SECOND.seconds
    # No name is a counter here and a gauge there: the parser knows counters without their ending.
    assert len(families) == len({name.removesuffix("_total") for name in families})


def test_the_text_is_what_prometheus_reads() -> None:
    """Rewrite the golden file with UPDATE_GOLDEN=1 in the environment, and read the difference."""
    metrics = registry_of(FIRST, SECOND)
    metrics.fail("not\nstarted")
    metrics.checkpoints = {"joined": lambda: 4096, "gone": lambda: None}
    text = metrics.text(NOW)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert samples(text)


def test_counters_add_up_and_gauges_show_the_latest_batch() -> None:
    found = samples(registry_of(FIRST, SECOND).text())
    operator = 'query="joined",operator="a and b",kind="interval"'
    assert found["watersmeet_operator_events_total", operator] == 8
    assert found["watersmeet_operator_events_processed_total", operator] == 14
    assert found["watersmeet_operator_busy_seconds_total", operator] == 1.5
    assert found["watersmeet_operator_busy", operator] == 0.5
    query = 'query="joined"'
    assert found["watersmeet_query_batch", query] == 8
    assert found["watersmeet_query_latest_batch_seconds", query] == 0.5
    assert found["watersmeet_query_batch_seconds_sum", query] == 2
    assert found["watersmeet_query_batch_seconds_bucket", f'{query},le="0.5"'] == 1
    assert found["watersmeet_query_batch_seconds_count", query] == 2
    assert found["watersmeet_source_rows_total", f'{query},source="a"'] == 14
    assert found["watersmeet_query_state_rows", query] == 3
    assert found["watersmeet_query_backpressure", query] == 0
    assert found["watersmeet_watermark_seconds", f'{query},column="b.t"'] == float("inf")
    assert found["watersmeet_watermark", f'{query},column="c.n"'] == 42


def test_a_failed_query_takes_the_health_of_its_operators_and_a_batch_gives_it_back() -> None:
    metrics = registry_of(FIRST, replace(FIRST, query="other", operators={"x": OperatorMetrics(kind="lookup")}))
    metrics.fail("joined")
    health = {k: v for k, v in samples(metrics.text()).items() if k[0] == "watersmeet_operator_health"}
    assert [*health.values()] == [0, 0, 1] and metrics.status == "failed"
    metrics.take(SECOND)
    assert metrics.status == "healthy" and metrics.queries["joined"].operators["a and b"].health == 1


def test_the_time_of_groups_is_shown_as_that_of_their_source() -> None:
    group = {"rows_1": 8, "own:#group.time": 7, "watermark:#group.time": None, "own:#group.w": 3}
    schema = ProgressSchema(frozenset({"a.t"}), times={"#group.time": "a.t"})
    progress = progress_of("hourly", REPORTED | {"observedMetrics": {"watersmeet:the groups of a": group}}, schema)
    assert progress.own == progress.marks == {"a.t": 7}
    assert progress.watermarks == {"a.t": "1970-01-01 00:00:00"}


def test_the_progress_has_the_numbers_of_each_operator() -> None:
    progress = progress_of("joined", REPORTED, ProgressSchema(frozenset({"a.t", "unknown.t"})), cores=2)
    assert (progress.rows_in, progress.rows_out, progress.padded) == (48, 6, 2)
    join, group = progress.operators.values()
    assert [*progress.operators] == ["a and b", "the groups of a"]
    assert (join.kind, join.events, join.events_processed, join.padded) == ("interval", 8, 40, 2)
    # Four shards on two cores may compute four seconds in a batch of two; one shard no more than two.
    assert (join.busy, group.busy) == (0.75, 0.25)
    assert progress_of("joined", REPORTED, ProgressSchema()).operators["a and b"].busy == 0.375
    assert (join.backpressure, group.backpressure, progress.backpressure) == (0.5, 0.5, 0.5)
    assert (progress.marks, progress.temporal) == ({"a.t": 5}, {"a.t"})


@pytest.mark.parametrize(
    ("end", "latest", "expected"),
    [
        ('{"t": {"0": 5, "1": 7}}', '{"t": {"1": 7, "0": 5}}', 0),
        ('{"t": {"0": 5}}', '{"t": {"0": 6}}', 1),
        ("5", "null", 0),
        ("not JSON", "more", 1),
        ({"t": 5}, None, 0),
    ],
)
def test_a_source_that_has_more_waiting_is_backpressure(end: Any, latest: Any, expected: float) -> None:
    source = {"endOffset": end, "latestOffset": latest, "numInputRows": 5, "inputRowsPerSecond": float("nan")}
    assert backpressure_of({"durationMs": {"triggerExecution": 100}, "sources": [source]}) == expected


@settings(max_examples=examples(60))
@given(st.integers(0, 10**6), st.integers(1, 100_000), st.integers(1, 100_000))
def test_rounded_rates_are_no_backpressure(rows: int, interval: int, took: int) -> None:
    """Spark rounds: a batch that took no longer than its rows took to come has none, and no batch has more than all."""
    source = {"numInputRows": rows, "inputRowsPerSecond": round(rows / interval * 1000, 1)}
    found = backpressure_of({"durationMs": {"triggerExecution": took}, "sources": [source]})
    exact = max(0.0, 1 - interval / took)
    assert 0 <= found <= exact + 0.0001
    if rows / interval * 1000 > 1000:
        assert found == pytest.approx(exact, abs=0.001)


@settings(max_examples=examples(30))
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 1000))
def test_busy_is_a_share(computed: float, seconds: float, at_once: int) -> None:
    assert 0 <= busy_share(computed, seconds, at_once) <= 1


def test_the_endpoint_answers() -> None:
    metrics = registry_of(FIRST)
    with serve_metrics(metrics, 0) as address:
        with urlopen(f"{address}/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert without_lag(answer.read().decode()) == without_lag(metrics.text())
        with urlopen(f"{address}/health") as answer:
            assert answer.read() == b'{"status": "healthy", "queries": {"joined": 1}}\n'
        metrics.fail("joined")
        with pytest.raises(HTTPError) as failed:
            urlopen(f"{address}/health")
        assert (failed.value.code, failed.value.read()) == (503, b'{"status": "failed", "queries": {"joined": 0}}\n')
        with pytest.raises(HTTPError) as unknown:
            urlopen(f"{address}/other")
        assert unknown.value.code == 404


def status(address: str, *hosts: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.putrequest("GET", "/metrics", skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    found = connection.getresponse().status
    connection.close()
    return found


def test_a_name_that_was_made_to_point_here_reads_no_metrics() -> None:
    own = socket.gethostname()
    with serve_metrics(MetricsRegistry(), 0) as address:
        port = urlsplit(address).port
        for host in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST."):
            assert status(address, host) == 200, host
        for host in (f"rebound.example:{port}", "127.0.0.1.rebound.example", "10.0.0.7", "0x7f.1"):
            assert status(address, host) == 421, host
        for host in ("[::1", "localhost:1:2", "localhost/x", "a b", ""):
            assert status(address, host) == 400, host
        assert status(address, "localhost", "rebound.example") == 400
        # A check of HTTP/1.0 names no host, and no browser does that.
        assert status(address) == 200
    with serve_metrics(MetricsRegistry(), 0, "0.0.0.0", ["metrics.shop.svc"]) as address:
        for host in ("10.0.0.7:9464", "[fd00::7]:9464", own, "metrics.shop.svc:9464", "localhost"):
            assert status(address, host) == 200, host
        assert status(address, "rebound.example") == 421
    with serve_metrics(MetricsRegistry(), 0, names=["*"]) as address:
        assert status(address, "anything.example") == 200


def test_a_query_hangs_that_is_not_heard_of_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("watersmeet.metrics.prometheus.monotonic", lambda: clock[0])
    metrics = MetricsRegistry(patience=30)
    metrics.take(replace(FIRST, seconds=4.0))
    for name in ("joined", "idle", "new", "done", "broken"):
        metrics.record_activity(name)
    metrics.end("done")
    metrics.fail("broken")
    metrics.take(replace(FIRST, query="broken"))
    clock[0] += 35
    metrics.record_activity("idle")
    # Ten times its longest batch would be more than the patience.
    assert metrics.unresponsive_queries == {"new": 35}
    clock[0] += 6.5
    with serve_metrics(metrics, 0) as address, pytest.raises(HTTPError) as failed:
        urlopen(f"{address}/health")
    record = json.loads(failed.value.read())
    assert (failed.value.code, record["status"], record["hanging"]) == (503, "hanging", {"joined": 41.5, "new": 41.5})
    metrics.record_activity("joined")
    metrics.end("new")
    assert metrics.status == "healthy" and MetricsRegistry().unresponsive_queries == {}


def test_an_address_that_cannot_be_had_is_refused_with_a_hint(tmp_path: Path) -> None:
    init_project(tmp_path / "shop")
    with socket.socket() as taken_by:
        taken_by.bind(("127.0.0.1", 0))
        taken_by.listen()
        port = taken_by.getsockname()[1]
        said = CliRunner().invoke(app, ["run", str(tmp_path / "shop"), "--metrics-port", str(port)])
    assert said.exit_code != 0 and "METRICS_ADDRESS" in said.stderr
    assert f"127.0.0.1:{port}" in said.stderr and "--metrics-port" in said.stderr
    assert not (tmp_path / "shop" / "storage").exists(), "nothing was started"
    for port, host, hint in ((9464, "192.0.2.1", "--metrics-host"), (70_000, "127.0.0.1", "--metrics-port 9464")):
        with pytest.raises(WatersmeetError) as caught, serve_metrics(MetricsRegistry(), port, host):
            pass
        assert hint in str(caught.value)


def test_rows_of_sources_count_once_and_those_of_the_result_are_the_last_joins() -> None:
    inner = {"rows_left": 30, "rows_right": 10, "emitted": 8, "own:a.t": 90, "own:b.t": None}
    outer = {"rows_left": 8, "rows_right": 31, "emitted": 5, "watermark:a.t": 60}
    reported = REPORTED | {
        "observedMetrics": {"watersmeet:a and b#x": inner, "watersmeet:a+b and a#x": outer},
        "sink": {"numOutputRows": -1},
        "stateOperators": [{"memoryUsedBytes": 1000}, {"memoryUsedBytes": 500}],
        "timestamp": "1970-01-01T00:01:00.500Z",
    }
    feeds = {"watersmeet:a and b#x": {"left": "a", "right": "b"}, "watersmeet:a+b and a#x": {"right": "a"}}
    reading = ProgressSchema(frozenset({"a.t"}), feeds, frozenset({"watersmeet:a+b and a#x"}))
    found = progress_of("joined", reported, reading)
    # Both joins read a, of which one has let go a row; what the inner one hands on comes from no source.
    assert (found.rows_in, found.sources, found.rows_out) == (41, {"a": 31, "b": 10}, 5)
    assert (found.own, found.silent, found.marks) == ({"a.t": 90}, frozenset({"b.t"}), {"a.t": 60})
    assert (found.state_bytes, found.at) == (1500, 60.5)
    assert progress_of("joined", reported | {"sink": {"numOutputRows": 4}}, reading).rows_out == 4
    alone = progress_of("plain", reported | {"observedMetrics": {}}, ProgressSchema())
    assert alone.rows_in == 40, "where no join counts, Spark does"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Every metric, matched label and label of a legend is written; counters are asked for their rate, gauges not."""
    metrics = registry_of(FIRST)
    metrics.checkpoints = {"joined": lambda: 1}
    metrics.files = {"joined": {"a": lambda: 3}}
    text = metrics.text(NOW)
    labels = {name: set(re.findall(r'(\w+)="', told)) for name, told in samples(text)}
    kinds = dict(re.findall(r"# TYPE (\w+) (\w+)", text))
    targets = [target for panel in dashboard()["panels"] for target in panel["targets"]]
    assert len(targets) > 18
    for target in targets:
        expression = target["expr"]
        assert expression.count("(") == expression.count(")")
        [(name, matched)] = re.findall(r"(watersmeet_\w+){([^}]*)}", expression)
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        grouped = re.search(r" by \(([^)]*)\)", expression)
        kept = set(grouped[1].split(", ")) if grouped else labels[name]
        assert shown <= kept <= labels[name] | {"le"}
        assert set(re.findall(r"(\w+)[=!~]", matched)) <= labels[name]
        is_counter = kinds.get(name) == "counter" or name.endswith("_bucket")
        assert is_counter == ("rate(" in expression), expression
        assert ("[" in expression) == ("rate(" in expression or "_over_time(" in expression)


def test_the_dashboard_has_what_grafana_asks_of_one() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 36 and board["title"] and board["time"].keys() == {"from", "to"}
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["source"]["type"] == "datasource" and variables["source"]["query"] == "prometheus"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken_cells = set[tuple[int, int]]()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries") and panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        used = {name for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])}
        assert used <= variables.keys()
        assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert place["x"] + place["w"] <= 24 and not cells & taken_cells, "no two panels stand on each other"
        taken_cells |= cells


def dashboard() -> dict[str, Any]:
    return json.loads((Path(__file__).parents[2] / "examples" / "grafana.json").read_text("utf-8"))
