"""What is known of Spark without a JVM, compared with Spark: its functions, and what it compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.spark import builtin_functions

import watersmeet as ws
from watersmeet.cli.check import spark_refusals
from watersmeet.cli.script import open_script
from watersmeet.formats.base import OPTIONS
from watersmeet.formats.columns import FIXED
from watersmeet.functions import builtin_signatures
from watersmeet.logical.passes.comparisons import ANSI, NOT_COMPARED, READ_AS
from watersmeet.schema import BY_NAME
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.spark.run.running import run_script

pytestmark = pytest.mark.spark


def test_the_functions_of_spark_are_known(spark: SparkSession):
    assert builtin_functions.names(spark) == [*builtin_signatures()]


def test_the_numbers_of_arguments_are_those_that_spark_takes(spark: SparkSession):
    # Every function takes a minute; `python -m tests.spark.builtin_functions` asks for all of them.
    some = [name for n, name in enumerate(builtin_signatures()) if n % 19 == 0]
    assert {name: set(builtin_functions.counts(spark, name)) for name in some} == {
        name: set(builtin_signatures()[name]) for name in some
    }


CLASSES = {
    "csv": "catalyst.csv.CSVOptions", "json": "catalyst.json.JSONOptions", "xml": "catalyst.xml.XmlOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions", "orc": "execution.datasources.orc.OrcOptions",
    "text": "execution.datasources.text.TextOptions", "avro": "avro.AvroOptions",
}  # fmt: skip


@pytest.mark.parametrize("format", CLASSES)
def test_the_options_of_spark_are_known(spark: SparkSession, format: str):
    jvm: Any = getattr(spark, "_jvm")  # noqa: B009 - what Spark has registered, it tells no one else
    class_ = jvm.java.lang.Class.forName(
        f"org.apache.spark.sql.{CLASSES[format]}$", True, jvm.java.lang.Thread.currentThread().getContextClassLoader()
    )
    registered = next(field for field in class_.getDeclaredFields() if "validOptions" in field.getName())
    registered.setAccessible(True)
    options = registered.get(class_.getField("MODULE$").get(None)).keySet().toSeq()
    names = {str(name) for name in jvm.scala.jdk.javaapi.CollectionConverters.asJava(options)}
    assert len(names) > 1 or format in ("orc", "text")
    assert {name for name in names if "." not in name} <= set(OPTIONS[format])


@pytest.mark.parametrize("format", ["rate", "rate-micro-batch", "text"])
def test_the_columns_of_a_format_are_those_that_spark_gives(spark: SparkSession, tmp_path: Path, format: str):
    options = {"path": str(tmp_path), "rowsPerBatch": "1"}
    schema = spark.readStream.format(format).options(**options).load().schema
    given = [(field.name, field.dataType.simpleString().upper()) for field in schema]
    assert given == [*FIXED[format]]


TYPES = ("INT", "DOUBLE", "DECIMAL(10,2)", "STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_functions_that_compare_are_known(spark: SparkSession, ansi: str):
    frame = spark.createDataFrame([], ", ".join(f"c{n} {type_}" for n, type_ in enumerate(TYPES)))
    refused, compared = set[frozenset[str]](), set[frozenset[str]]()
    before = str(spark.conf.get(ANSI))
    spark.conf.set(ANSI, ansi)
    try:
        for n, left in enumerate(TYPES):
            for m, right in enumerate(TYPES[:n]):
                kinds = frozenset(BY_NAME[type_.split("(")[0]].values for type_ in (left, right))
                try:
                    with suppress_logs():
                        _ = frame.selectExpr(f"c{n} = c{m}").schema
                    compared.add(kinds)
                except AnalysisException:
                    refused.add(kinds)
    finally:
        spark.conf.set(ANSI, before)
    assert refused >= NOT_COMPARED
    assert not compared & NOT_COMPARED
    assert compared >= {frozenset({"text", kind}) for kind in READ_AS}


SCRIPT = """\
CREATE STREAM here (id BIGINT, n STRING, t TIMESTAMP, WATERMARK FOR t AS t) USING json OPTIONS (path '{path}');
CREATE STREAM gone (id BIGINT, n STRING, t TIMESTAMP, WATERMARK FOR t AS t) USING json OPTIONS (path '/not/there');
CREATE SINK out USING json OPTIONS (path '{path}/out');
CREATE SINK odd USING nonesuch;
INSERT INTO out SELECT STREAM h.id, uper(h.n) AS u FROM here h JOIN gone g WITHIN 1h ON h.id = g.id;
SELECT STREAM g.id, array_contains(g.n, 1) AS u FROM gone g;
INSERT INTO odd SELECT STREAM h.id FROM here h;
SELECT STREAM my_own(n) AS n FROM here WHERE upper(n) IN ({members});
"""


def test_spark_tells_the_rest_and_starts_nothing(spark: SparkSession, tmp_path: Path):
    (tmp_path / "in").mkdir()
    members = ", ".join(f"'v{n}'" for n in range(10_000))
    (tmp_path / "q.sql").write_text(SCRIPT.format(path=tmp_path / "in", members=members))
    spark.udf.register("my_own", lambda text: text, "string")
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "empty").mkdir()
    opened = open_script(tmp_path / "q.sql")
    found = spark_refusals(opened, spark, tmp_path / "storage", tmp_path / "empty")
    told = {(refusal.condition, refusal.place.line if refusal.place else 0) for refusal in found}
    assert told == {
        ("PATH_NOT_FOUND", 2), ("UNKNOWN_FUNCTION", 5), ("UNKNOWN_FORMAT", 4), ("TYPE_MISMATCH", 6),
    }  # fmt: skip
    assert "did you mean `upper`?" in {refusal.hint for refusal in found}
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "empty") == before


UNDECLARED = """\
CREATE STREAM o (WATERMARK FOR t AS t - INTERVAL 1 HOUR) USING parquet OPTIONS (path 'in');
CREATE STREAM c USING csv OPTIONS (path 'csv', header true);
CREATE SINK out USING json OPTIONS (path 'out');
CREATE SINK copied USING json OPTIONS (path 'copied');
INSERT INTO out SELECT STREAM * FROM o;
INSERT INTO copied SELECT STREAM * FROM c;
"""


def test_columns_of_the_first_start_stay(spark: SparkSession, tmp_path: Path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("id,at,day\n1,2026-01-01T10:00:00Z,2026-01-01\n")
    (tmp_path / "q.sql").write_text(UNDECLARED)

    def run(columns: str) -> list[dict[str, object]]:
        spark.range(1).selectExpr(columns.split(" | ")).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        opened = open_script(tmp_path / "q.sql", "absolute")
        storage = tmp_path / "q.storage"
        run_script(opened.script, spark=spark, storage=storage, analyzed=opened.queries, trigger="available_now")
        files = sorted((tmp_path / "out").glob("*.json"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    columns = "1 AS id | TIMESTAMP '2026-01-01 10:00:00' AS t | named_struct('a', 1.5D) AS s"
    first = {"id": 1, "s": {"a": 1.5}, "t": "2026-01-01T10:00:00.000Z"}
    assert run(columns) == [first]
    assert run(f"{columns} | 'x' AS further") == [first, first]
    copied = [file.read_text() for file in (tmp_path / "copied").glob("*.json") if file.stat().st_size]
    assert copied == ['{"id":1,"at":"2026-01-01T10:00:00.000Z","day":"2026-01-01"}\n']
    called = ws.sql(
        f"CREATE STREAM o USING parquet OPTIONS (path '{tmp_path}/in'); SELECT STREAM * FROM o;", spark=spark
    )
    assert [(field.name, field.dataType.simpleString()) for field in called.schema] == [
        ("id", "int"), ("t", "timestamp"), ("s", "struct<a:double>"), ("further", "string"),
    ]  # fmt: skip
