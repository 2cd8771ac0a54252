"""``check --deep`` on a real broker and a real Postgres: what is not there, and what cannot take the rows."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from watersmeet.cli.check import spark_refusals
from watersmeet.cli.script import open_script

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = pytest.mark.spark

COLUMNS = "(id BIGINT, n STRING, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 MINUTE)"
TABLE_COLUMNS = "(id BIGINT, n STRING, PRIMARY KEY (id))"
TABLES = """
CREATE TABLE deep_there (id bigint PRIMARY KEY, n text);
CREATE TABLE deep_typed (id bigint PRIMARY KEY, n integer);
CREATE TABLE deep_other (id bigint PRIMARY KEY, name text);
CREATE TABLE deep_keyless (id bigint, n text);
"""


def refusals_by_line(spark: SparkSession, tmp_path: Path, *lines: str) -> dict[int, tuple[str, str]]:
    """The condition and the message of what is refused, by the line of the script."""
    script, empty = tmp_path / "q.sql", tmp_path / "empty"
    script.write_text("\n".join(lines))
    empty.mkdir(exist_ok=True)
    found = spark_refusals(open_script(script, "absolute"), spark, tmp_path / "storage", empty)
    assert not (tmp_path / "storage").exists(), "nothing is begun"
    by_line = {refusal.place.line if refusal.place else 0: (refusal.condition, refusal.message) for refusal in found}
    assert len(by_line) == len(found)
    return by_line


def kafka_at(server: str, option: str, topic: str) -> str:
    return f"USING kafka OPTIONS (kafka.bootstrap.servers '{server}', {option} '{topic}', value.format 'json')"


def test_sources_that_are_not_there(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topics.create(kafka, "deep-there", 1)
    names = ("here", "two", "gone", "nowhere")
    found = refusals_by_line(
        spark,
        tmp_path,
        f"CREATE STREAM here {COLUMNS} {kafka_at(kafka, 'subscribe', 'deep-there')};",
        f"CREATE STREAM two {COLUMNS} {kafka_at(kafka, 'subscribe', 'deep-there, deep-gone')};",
        f"CREATE STREAM gone {COLUMNS} USING json OPTIONS (path 'not/there');",
        f"CREATE STREAM nowhere {COLUMNS} {kafka_at('127.0.0.1:1', 'subscribe', 'deep-there')};",
        f"CREATE STREAM unread {COLUMNS} {kafka_at(kafka, 'subscribe', 'deep-never')};",
        f"CREATE TABLE driverless {TABLE_COLUMNS} USING jdbc OPTIONS (url 'jdbc:none:x', dbtable 't', static 'true');",
        *(f"SELECT STREAM id, array_contains(n, 1) AS c FROM {name};" for name in names),
        "SELECT STREAM h.id, d.n FROM here h JOIN driverless d ON h.id = d.id;",
    )
    mismatch = dict.fromkeys((7, 8, 9, 10), "TYPE_MISMATCH")
    sources = {2: "UNKNOWN_TOPIC", 3: "PATH_NOT_FOUND", 4: "BROKER_UNREACHABLE", 6: "MISSING_CONNECTOR"}
    assert {line: condition for line, (condition, _) in found.items()} == sources | mismatch
    assert found[2][1] == f"Kafka has no topic `deep-gone` at {kafka}."
    assert "127.0.0.1:1 (connection refused)" in found[4][1]


def test_sinks_that_are_not_there_or_cannot_take_the_rows(
    spark: SparkSession, kafka: str, postgres: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute(TABLES)
    (tmp_path / "a-file").write_text("")
    (tmp_path / "in").mkdir()

    def table(name: str, more: str = "") -> str:
        return f"USING postgres OPTIONS (url '{postgres}', table '{name}'{more})"

    sinks = {
        "there": table("deep_there"),
        "made": table("deep_made"),
        "typed": table("deep_typed"),
        "other": table("deep_other"),
        "keyless": table("deep_keyless"),
        "absent": table("deep_absent", ", create 'false'"),
        "serverless": f"USING postgres OPTIONS (host '{tmp_path}', dbname 'shop', user 'me', table 't')",
        "topicless": kafka_at(kafka, "topic", "deep-none"),
        "brokerless": kafka_at("127.0.0.1:1", "topic", "deep-none"),
        "file": "USING json OPTIONS (path 'a-file/out')",
    }
    tables = [name for name, text in sinks.items() if text.startswith("USING postgres")]
    lines = [f"CREATE STREAM s {COLUMNS} USING json OPTIONS (path 'in');"]
    lines += [f"CREATE SINK {name} {text};" for name, text in sinks.items()]
    lines += [f"INSERT INTO {name} SELECT TABLE id, max(n) AS n FROM s GROUP BY id;" for name in tables]
    lines += [f"INSERT INTO {name} SELECT STREAM id, n FROM s;" for name in sinks if name not in tables]
    found = refusals_by_line(spark, tmp_path, *lines)
    line = {name: number for number, name in enumerate(sinks, 2)}
    assert {number: condition for number, (condition, _) in found.items()} == {
        line["typed"]: "SINK_UNFIT",
        line["other"]: "SINK_UNFIT",
        line["keyless"]: "SINK_UNFIT",
        line["absent"]: "WRONG_OPTION",
        line["serverless"]: "DATABASE_UNREACHABLE",
        line["topicless"]: "UNKNOWN_TOPIC",
        line["brokerless"]: "BROKER_UNREACHABLE",
        line["file"]: "WRONG_OPTION",
    }
    assert 'column "n" is of type integer but expression is of type text' in found[line["typed"]][1]
    assert "it has no column `n`" in found[line["other"]][1]
    assert "no unique or exclusion constraint" in found[line["keyless"]][1]
    assert "a-file is a file" in found[line["file"]][1]
    with psycopg.connect(postgres) as connection:
        there = connection.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'deep%' AND relkind = 'r'"
        ).fetchall()
    assert {name for (name,) in there} == {"deep_there", "deep_typed", "deep_other", "deep_keyless"}, "none is made"
