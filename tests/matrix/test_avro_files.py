"""Files of Avro whose columns no one declares: they have the types that Spark reads them as, and are read so."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.avro_files import READ, long, record, write_avro

from watersmeet.cli.script import open_script
from watersmeet.errors import WatersmeetError
from watersmeet.formats.packages import connector_of
from watersmeet.formats.records import ddl
from watersmeet.queries import read_script
from watersmeet.spark.private import spark_version
from watersmeet.spark.run.running import run_script

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SQL = """\
CREATE STREAM s (WATERMARK FOR t AS t) USING avro OPTIONS (path 'in');
CREATE SINK out USING json OPTIONS (path 'out');
INSERT INTO out SELECT STREAM * FROM s;
"""


@pytest.fixture(scope="module")
def avro(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the library, made as `watersmeet run` makes it."""
    if connector_of("avro", spark_version()) is None:
        pytest.skip(f"there is no library of Avro for Spark {spark_version()}")
    from watersmeet.spark.session import session

    assert SparkSession.getActiveSession() is None, "these tests want a session of their own"
    try:
        spark = session("local[2]", formats=["avro"], log=tmp_path_factory.mktemp("spark") / "spark.log")
    except WatersmeetError as error:
        pytest.skip(f"the library of Avro cannot be had: {error.refusals[0].message}")
    yield spark
    spark.stop()
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)


def test_columns_are_those_that_spark_reads_and_stay(avro: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(SQL)
    fields = [(name, type_) for name, (type_, _) in READ.items()]
    write_avro(tmp_path / "in" / "a.avro", record(("t", "int"), *fields))
    source = open_script(tmp_path / "q.sql", "absolute").script.sources[0]
    assert avro.read.format("avro").load(f"{tmp_path}/in").schema == StructType.fromDDL(ddl(source))

    write_avro(tmp_path / "in" / "a.avro", record(("t", "int"), ("f", "float")), (long(1) + bytes(4),))
    write_avro(tmp_path / "in" / "b.avro", record(("t", "long"), ("f", "double")), (long(2**40) + bytes(8),))

    def run() -> list[dict[str, object]]:
        opened = open_script(tmp_path / "q.sql", "absolute")
        storage = tmp_path / "q.storage"
        run_script(opened.script, spark=avro, storage=storage, analyzed=opened.queries, trigger="available_now")
        files = (tmp_path / "out").glob("*.json")
        rows = (json.loads(line) for file in files for line in file.read_text().splitlines())
        return sorted(rows, key=lambda row: row["t"])

    first = [{"t": 1, "f": 0.0}, {"t": 2**40, "f": 0.0}]
    assert run() == first
    write_avro(tmp_path / "in" / "c.avro", record(("t", "long"), ("more", "long")), (long(2**41) + long(7),))
    assert run() == [*first, {"t": 2**41}]


def test_files_of_avro_are_the_history_of_a_stream(avro: SparkSession, tmp_path: Path) -> None:
    rows = avro.range(6).selectExpr("id", "id AS t").coalesce(1)
    rows.write.format("avro").save(f"{tmp_path}/history")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "0.json").write_text("".join(json.dumps({"id": n, "t": n}) + "\n" for n in range(2, 9)))
    script = read_script(f"""
        CREATE STREAM s (id BIGINT, t BIGINT, WATERMARK FOR t AS t) USING json OPTIONS (path '{tmp_path}/live')
        AFTER avro OPTIONS (path '{tmp_path}/history', until '4');
        CREATE SINK out USING json OPTIONS (path '{tmp_path}/out');
        INSERT INTO out SELECT STREAM id FROM s;
    """)
    run_script(script, spark=avro, storage=tmp_path / "storage", trigger="end")
    files = (tmp_path / "out").glob("*.json")
    assert sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines()) == [*range(9)]
