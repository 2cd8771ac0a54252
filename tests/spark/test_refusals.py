"""What cannot run is refused through the catalogue, before anything is written or started."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import run_all, stream_files

import watersmeet as ws
from watersmeet.catalog import Sink, Source
from watersmeet.errors import Refusal, WatersmeetError, refusal_in
from watersmeet.queries import read_script
from watersmeet.spark import refusals
from watersmeet.spark.refusals import kafka_failure, unreadable_source
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.session import session
from watersmeet.tools.testing import parse_case, run_case

pytestmark = pytest.mark.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SCHEMA = "id INT, t TIMESTAMP, v INT, name STRING, m MAP<STRING, INT>, bag STRUCT<a: INT>"
ON = "left.id = right.id"


@pytest.fixture
def batch(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], SCHEMA)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    return spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")).withWatermark("t", "1 minute")


def refusals_of(call: Callable[[], object]) -> list[Refusal]:
    """What a call is refused for."""
    with pytest.raises(WatersmeetError) as raised:
        call()
    return list(raised.value.refusals)


def run(spark: SparkSession, text: str, folder: Path, trigger: Trigger = "available_now") -> None:
    """Run a script that keeps its checkpoints in that folder."""
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger=trigger)


def conditions(call: Callable[[], object]) -> list[str]:
    return [refusal.condition for refusal in refusals_of(call)]


@contextmanager
def conf(spark: SparkSession, name: str, value: str) -> Generator[None]:
    """Another setting of the session, for a while."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def test_a_stream_and_a_batch_do_not_mix(stream: DataFrame, batch: DataFrame) -> None:
    (found,) = refusals_of(lambda: ws.join(stream, batch, ON, within="1 hour", right_time="t"))
    assert (found.condition, found.parameters) == ("MIXED_INPUT", {"stream": "`left`", "batch": "`right`"})


def test_the_in_memory_state_store_is_refused_for_streams_only(
    spark: SparkSession, stream: DataFrame, batch: DataFrame
) -> None:
    provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    with conf(spark, PROVIDER, provider):
        (found,) = refusals_of(lambda: ws.join(stream, stream, ON, within="1 hour"))
        assert found.condition == "STATE_STORE_PROVIDER"
        assert "HDFSBackedStateStoreProvider" in found.message and PROVIDER in found.hint


def test_a_frame_that_is_not_as_declared(stream: DataFrame) -> None:
    text = """CREATE STREAM l (id BIGINT, t TIMESTAMP, gone INT, WATERMARK FOR t AS t - INTERVAL 1 MINUTE);
    SELECT STREAM l.id FROM l JOIN r WITHIN 1h ON l.id = r.id"""
    (found,) = refusals_of(lambda: ws.sql(text, l=stream, r=stream))
    assert found.condition == "SCHEMA_MISMATCH"
    assert found.parameters["difference"] == "`id` is INT, declared BIGINT, `gone` is missing"
    assert found.place is not None and found.place.line == 1


def test_a_frame_as_declared_is_taken(stream: DataFrame) -> None:
    text = """CREATE STREAM l (ID INT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 MINUTE);
    SELECT STREAM l.id, r.v FROM l JOIN r WITHIN 1h ON l.id = r.id"""
    assert ws.sql(text, l=stream, r=stream).isStreaming


def test_a_source_without_rows(stream: DataFrame) -> None:
    text = """CREATE STREAM l (id INT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 MINUTE);
    SELECT STREAM l.id FROM l JOIN r WITHIN 1h ON l.id = r.id"""
    assert conditions(lambda: ws.sql(text, r=stream)) == ["MISSING_FRAME"]


def test_no_query_and_too_many(stream: DataFrame) -> None:
    one = "SELECT STREAM l.id FROM l JOIN r WITHIN 1h ON l.id = r.id;"
    assert conditions(lambda: ws.sql("SET watersmeet.shards = 2;", l=stream)) == ["NO_QUERY"]
    (found,) = refusals_of(lambda: ws.sql(f"{one}\n{one}", l=stream, r=stream))
    assert (found.condition, found.place and found.place.line) == ("NOT_ONE_QUERY", 2)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"how": "cross"}, "how"),
        ({"within": "soon"}, "within"),
        ({"within": "1 month"}, "within"),
        ({"left_lag": "-", "left_time": "t"}, "left_lag"),
        ({"shards": 0}, "shards"),
    ],
)
def test_arguments_without_meaning(stream: DataFrame, arguments: dict[str, object], argument: str) -> None:
    (found,) = refusals_of(lambda: ws.join(stream, stream, ON, **{"within": "1 hour", **arguments}))  # type: ignore[arg-type]
    assert (found.condition, found.parameters["argument"]) == ("WRONG_ARGUMENT", argument)
    assert found.hint


def test_explain_needs_two_sides(stream: DataFrame) -> None:
    assert conditions(lambda: ws.explain(stream)) == ["WRONG_ARGUMENT"]


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        ({"on": "left.id = right.nope", "within": "1 hour"}, "UNKNOWN_COLUMN"),
        ({"on": "nope", "within": "1 hour"}, "UNKNOWN_COLUMN"),
        ({"on": ["id", "nope"], "within": "1 hour"}, "UNKNOWN_COLUMN"),
        ({"on": "left.id =", "within": "1 hour"}, "SYNTAX_ERROR"),
        ({"on": ON}, "UNBOUNDED_STATE"),
        ({"on": ON, "within": "1 hour", "left_time": "nope"}, "UNKNOWN_COLUMN"),
        ({"on": ON, "within": "1 hour", "left_time": "name"}, "WRONG_EVENT_TIME"),
        ({"on": ON, "within": 5}, "WRONG_TIME_UNIT"),
    ],
)
def test_joins_that_make_no_sense(stream: DataFrame, arguments: dict[str, object], condition: str) -> None:
    assert conditions(lambda: ws.join(stream, stream, **arguments))[0] == condition  # type: ignore[arg-type]


def test_a_side_without_a_watermark(spark: SparkSession, stream: DataFrame, tmp_path: Path) -> None:
    bare = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    assert conditions(lambda: ws.join(stream, bare, ON, within="1 hour")) == ["MISSING_WATERMARK"]


def test_types_that_do_not_fit_are_all_shown_at_their_places(
    stream: DataFrame, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """SELECT STREAM l.id + l.m AS sum, nosuch(l.v)
FROM l LEFT JOIN r WITHIN 1h
ON l.id = r.id AND l.m = 3
WHERE r.bag > 1"""
    found = refusals_of(lambda: ws.sql(text, l=stream, r=stream))
    assert sorted(f.condition for f in found) == [*["TYPE_MISMATCH"] * 3, "UNKNOWN_FUNCTION"]
    assert sorted(f.place.line for f in found if f.place) == [1, 1, 3, 4]
    assert all("\n" not in f.message and "SQLSTATE" not in f.message for f in found)
    assert "stacktrace" not in capfd.readouterr().err, "Spark's own log of what we report is not shown"


@pytest.mark.parametrize("condition", ["left.m = right.m", "left.bag < right.bag"])
def test_conditions_that_only_spark_could_compare(batch: DataFrame, condition: str) -> None:
    on = f"{ON} AND NOT ({condition})"
    (found,) = refusals_of(
        lambda: ws.join(batch, batch, on, within="1 hour", how="left", left_time="t", right_time="t")
    )
    assert found.condition in {"UNSUPPORTED_CONDITION", "TYPE_MISMATCH"}
    assert found.place is not None and found.place.text[found.place.start :]


def test_a_type_that_arrow_does_not_know(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01' AS t, INTERVAL '1-2' YEAR TO MONTH AS age")
    found = refusals_of(lambda: ws.join(frame, frame, ON, within="1 hour", left_time="t", right_time="t"))
    assert [refusal.condition for refusal in found] == ["UNSUPPORTED_TYPE"] * 2
    assert [refusal.parameters["column"] for refusal in found] == ["left.age", "right.age"]
    assert ws.sql("SELECT STREAM l.id FROM l JOIN r WITHIN 1h ON l.id = r.id", l=frame, r=frame).columns == ["id"]


STREAM = "CREATE STREAM {name} (id INT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 MINUTE) USING {using};\n"
PARQUET = "parquet OPTIONS (path '{out}')"
QUERY = "INSERT INTO out SELECT STREAM l.id FROM l JOIN r WITHIN 1h ON l.id = r.id;\n"


def script(folder: Path, left: str, sink: str = PARQUET, query: str = QUERY) -> str:
    """A script whose left source or sink is wrong."""
    right = f"json OPTIONS (path '{folder}/in')"
    made = STREAM.format(name="l", using=left) + STREAM.format(name="r", using=right)
    return made + f"CREATE SINK out USING {sink.format(out=folder / 'out')};\n" + query


WRONG_SCRIPTS = {
    "a path that is not there": ("json OPTIONS (path '{folder}/none')", None, "PATH_NOT_FOUND", 1),
    "a format that is not there": ("jsno OPTIONS (path '{folder}/in')", None, "UNKNOWN_FORMAT", 1),
    "a format of another package": ("avro OPTIONS (path '{folder}/in')", None, "MISSING_CONNECTOR", 1),
    "no path at all": ("json", None, "WRONG_OPTION", 1),
    "a wrong option": ("rate OPTIONS (rowsPerSecond 'many')", None, "WRONG_OPTION", 1),
    "columns that the source has not": ("rate", None, "WRONG_OPTION", 1),
    "an encoding that is not there": ("text OPTIONS (path '{folder}/in', value.format 'xml')", None, "WRONG_OPTION", 1),
    "no rows": ("", None, "MISSING_FRAME", 1),
    "a sink format that is not there": ("json OPTIONS (path '{folder}/in')", "praquet", "UNKNOWN_FORMAT", 3),
    "a sink format of another package": ("json OPTIONS (path '{folder}/in')", "avro", "MISSING_CONNECTOR", 3),
    "a sink without a path": ("json OPTIONS (path '{folder}/in')", "parquet", "WRONG_OPTION", 3),
}


@pytest.mark.parametrize("wrong", WRONG_SCRIPTS)
def test_scripts_that_cannot_run_leave_nothing(spark: SparkSession, tmp_path: Path, wrong: str) -> None:
    left, sink, condition, line = WRONG_SCRIPTS[wrong]
    (tmp_path / "in").mkdir()
    text = script(tmp_path, left.format(folder=tmp_path), sink or "parquet OPTIONS (path '{out}')").replace(
        " USING ;", ";"
    )
    (found,) = refusals_of(lambda: run(spark, text, tmp_path))
    assert (found.condition, found.place and found.place.line) == (condition, line)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert spark.streams.active == []


def test_all_refusals_of_a_script_are_reported_at_once(spark: SparkSession, tmp_path: Path) -> None:
    text = script(
        tmp_path,
        f"json OPTIONS (path '{tmp_path}/none')",
        query=QUERY.replace("l.id FROM", "l.nope FROM").replace("out", "otu"),
    )
    assert sorted(conditions(lambda: run(spark, text, tmp_path))) == [
        "PATH_NOT_FOUND",
        "PATH_NOT_FOUND",
        "UNKNOWN_COLUMN",
        "UNKNOWN_SINK",
    ]
    assert list(tmp_path.iterdir()) == []


def test_queries_stop_if_one_does_not_start(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    second = "CREATE SINK nowhere USING rate;\n" + QUERY.replace("out", "nowhere")
    text = script(tmp_path, f"json OPTIONS (path '{tmp_path}/in')") + second
    assert conditions(lambda: run(spark, text, tmp_path, "continuous")) == ["WRONG_OPTION"]
    assert spark.streams.active == []


def test_other_failures_are_not_blamed_on_options(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = script(tmp_path, f"json OPTIONS (path '{tmp_path}/in')")
    same = spark.readStream.format("rate").load().writeStream.format("noop").queryName("out").start()
    try:
        (found,) = refusals_of(lambda: run(spark, text, tmp_path))
    finally:
        same.stop()
    assert (found.condition, found.may_be_retried) == ("START_FAILED", True)
    assert "`out`" in found.message and "already active" in found.message


def test_the_packages_of_a_format_are_named() -> None:
    (found,) = unreadable_source(Source("a", (), format="Kafka"), None, Exception("[DATA_SOURCE_NOT_FOUND]")).refusals
    assert found.condition == "MISSING_CONNECTOR"
    assert '`.config("spark.jars", ws.jars("kafka"))`: org.apache.spark:spark-sql-kafka-0-10_2.13:4.' in found.hint


def test_a_format_says_for_which_versions_it_has_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Exception("[DATA_SOURCE_NOT_FOUND]")
    monkeypatch.setattr(refusals, "spark_version", lambda: "4.3.0")
    (found,) = unreadable_source(Source("a", (), format="delta"), None, absent).refusals
    assert (
        found.condition == "MISSING_CONNECTOR"
        and "no package is known for Spark 4.3.0 (only for 4.0, 4.1, 4.2)" in found.hint
    )
    monkeypatch.setattr(refusals, "spark_version", lambda: "4.1.4")
    (found,) = unreadable_source(Source("a", (), format="delta"), None, absent).refusals
    assert "io.delta:delta-spark_2.13:4.1.0" in found.hint and '.config("spark.sql.extensions"' in found.hint


KAFKA = "org.apache.kafka.common.errors."
USED = (
    Source("orders", (), format="kafka", options={"subscribe": "a,b", "kafka.bootstrap.servers": "h:1,i:1"}),
    Sink("out", "kafka", {"topic": "c", "kafka.bootstrap.servers": "j:1"}),
)


@pytest.mark.parametrize(
    ("text", "condition", "expected"),
    [
        (f"{KAFKA}UnknownTopicOrPartitionException: This server does not host this topic-partition.", "UNKNOWN_TOPIC",
         ["Kafka has no topic `a` and `b` at h:1, i:1.", "Kafka has no topic `c` at j:1."]),
        (f"{KAFKA}TimeoutException: Topic c not present in metadata after 60000 ms.", "UNKNOWN_TOPIC",
         ["Kafka has no topic `c` at j:1."]),
        (f"{KAFKA}TimeoutException: Timed out waiting for a node assignment.", "BROKER_UNREACHABLE",
         ["`orders` reads `a` and `b` in Kafka, but no server answers: h:1, i:1.",
          "`out` writes to `c` in Kafka, but no server answers: j:1."]),
    ],
)  # fmt: skip
def test_failures_of_kafka_are_reported_with_topics_and_servers(text: str, condition: str, expected: list[str]) -> None:
    found = kafka_failure(f"[STREAM_FAILED] ...\nCaused by: {text}\n\tat ...", USED)
    assert found is not None and {refusal.condition for refusal in found.refusals} == {condition}
    assert [refusal.message for refusal in found.refusals] == expected
    assert kafka_failure(text, ()) is None and kafka_failure("java.io.IOException", USED) is None


def test_a_script_without_a_query(spark: SparkSession, tmp_path: Path) -> None:
    text = "SET watersmeet.shards = 2;"
    assert conditions(lambda: run(spark, text, tmp_path, "end")) == ["NO_QUERY"]


def test_a_setting_that_only_a_new_session_takes(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = "SET spark.sql.warehouse.dir = '/nowhere';\n" + script(tmp_path, f"json OPTIONS (path '{tmp_path}/in')")
    (found,) = refusals_of(lambda: run(spark, text, tmp_path, "end"))
    assert (found.condition, found.place and found.place.line) == ("WRONG_ARGUMENT", 1)
    assert "--conf spark.sql.warehouse.dir" in found.hint


def test_a_checkpoint_of_another_query_is_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    row = {"id": 1, "t": "2024-01-01T12:00:00Z"}
    (tmp_path / "in" / "1.json").write_text(json.dumps(row) + "\n")
    text = script(tmp_path, f"json OPTIONS (path '{tmp_path}/in')")
    run(spark, text, tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    changes = {
        ("1h", "2h"): ("OF_A_CHANGED_QUERY", "now until it has passed `l.t` + 2 hours"),
        ("l.id = r.id", "l.id + 1 = r.id"): ("TO_REBUILD", "the key was `l.id`, now it is `l.id+1`"),
    }
    for (was, becomes), (which, told) in changes.items():
        (found,) = refusals_of(partial(run, spark, text.replace(was, becomes), tmp_path, "end"))
        assert found.condition == f"CHECKPOINT_{which}"
        assert str(tmp_path / "storage" / "checkpoints" / "out") in found.message
        assert told in found.parameters["difference"]
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    run(spark, text + "\n-- a comment", tmp_path)


def test_a_checkpoint_of_another_join_fails_with_our_message(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    one = stream_files(tmp_path / "l", [rows]).withWatermark("t", "1 minute")
    two = stream_files(tmp_path / "r", [rows]).withWatermark("t", "1 minute")
    run_all(ws.join(one, two, ON, within="1 hour"), tmp_path / "checkpoint")
    for name in ("l", "r"):
        stream_files(tmp_path / name, [rows])
    # Where no one can look before the start, the workers still see whose state it is.
    owner = tmp_path / "checkpoint" / "watersmeet.json"
    kept = owner.rename(owner.with_name("kept"))
    with pytest.raises(StreamingQueryException) as failed:
        run_all(ws.join(one, two, ON, within="2 hours"), tmp_path / "checkpoint")
    found = refusal_in(str(failed.value))
    assert found is not None and found.condition == "CHECKPOINT_OF_ANOTHER_QUERY"
    assert "the join of left and right" in found.label
    kept.rename(owner)
    assert [
        len(found) for found in run_all(ws.join(one, two, ON, within="1 hour"), tmp_path / "checkpoint") if found
    ] == [3]


def test_a_query_that_fails_says_why(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(json.dumps({"id": 0, "t": "2024-01-01T12:00:00Z"}) + "\n")
    query = QUERY.replace("l.id FROM", "1 / l.id AS x FROM")
    text = script(tmp_path, f"json OPTIONS (path '{tmp_path}/in')", query=query)
    (found,) = refusals_of(lambda: run(spark, text, tmp_path))
    assert found.condition == "QUERY_FAILED"
    assert "DIVIDE_BY_ZERO" in found.message and "\n" not in found.message
    assert spark.streams.active == []


def test_without_pyspark_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.spark.session.find_spec", lambda name: None)
    (found,) = refusals_of(session)
    assert found.condition == "SPARK_NOT_INSTALLED"
    assert "watersmeet[spark]" in found.hint


def test_a_join_that_would_keep_too_many_rows_stops(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT INT(id) AS id, TIMESTAMP'2024-01-01 12:00:00' AS t FROM range(9)")
    one = stream_files(tmp_path / "l", [rows]).withWatermark("t", "1 minute")
    with pytest.raises(StreamingQueryException, match="STATE_LIMIT"):
        run_all(ws.join(one, one, ON, within="1 hour", max_rows=2), tmp_path / "checkpoint")


def test_computed_columns_of_a_union_have_one_type(batch: DataFrame) -> None:
    text = "SELECT STREAM u.a FROM (SELECT id + 1 AS a FROM l UNION ALL SELECT upper(CAST(id AS STRING)) FROM l) AS u"
    (found,) = refusals_of(lambda: ws.sql(text, l=batch))
    assert found.condition == "TYPE_MISMATCH"
    assert "INT and STRING" in found.message


def test_a_case_whose_query_dies_fails_alone(spark: SparkSession) -> None:
    case = parse_case(
        "{name: a, sql: 'CREATE STREAM s (n BIGINT); SELECT STREAM 1 / s.n AS x FROM s;', batches: [{in: {s: [[0]]}}]}"
    )
    result = run_case(case, "spark", spark)
    assert result.status == "failed"
    assert "the query stops: " in result.detail
    assert "DIVIDE_BY_ZERO" in result.detail
