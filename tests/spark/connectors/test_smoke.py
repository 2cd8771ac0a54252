"""`make smoke` has a test of every connector, here those of formats whose own tests are long or need packages."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.queries import read_script
from watersmeet.spark.connectors import CHANGE_DECODERS, SINK_CONNECTORS, SOURCE_CONNECTORS
from watersmeet.spark.run.running import run_script

HERE = Path(__file__).parent
SMOKE = {
    "reading.SourceConnector": "test_smoke.py::test_xml_and_orc_meet_a_table_of_a_database",
    "files.TextConnector": "test_feeds.py::test_debezium_records_become_a_snapshot_and_a_static_table_joins",
    "files.NamedColumnsConnector": "test_smoke.py::test_xml_and_orc_meet_a_table_of_a_database",
    "parquet.ParquetConnector": "test_input_files.py::test_a_run_has_the_values_of_spark",
    "static.JdbcConnector": "test_smoke.py::test_xml_and_orc_meet_a_table_of_a_database",
    "kafka.KafkaSourceConnector": "test_kafka.py::test_keys_come_out_as_they_went_in",
    "files.FileSinkConnector": "test_file_sinks.py::test_a_repeated_batch_takes_the_place_of_its_files",
    "postgres.PostgresConnector": "test_sinks.py::test_rows_are_put_in_replaced_and_deleted_by_key",
    "kafka.KafkaSinkConnector": "test_kafka.py::test_keys_come_out_as_they_went_in",
    "reading.row_changes": "test_feeds.py::test_debezium_records_become_a_snapshot_and_a_static_table_joins",
    "records.decode_records": "test_kafka.py::test_keys_come_out_as_they_went_in",
    "debezium.debezium_changes": "test_feeds.py::test_debezium_records_become_a_snapshot_and_a_static_table_joins",
    "delta.delta_changes": "test_feeds.py::test_delta_tells_rows_before_and_after",
}
"""By connector, the test that `make smoke` runs."""
DERBY = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
"""The driver of the database that PySpark brings."""
WITH_PACKAGES = (
    "delta.DeltaSourceConnector", "delta.DeltaSinkConnector",
    "iceberg.IcebergSourceConnector", "iceberg.IcebergSinkConnector",
)  # fmt: skip
"""Connectors whose session needs packages that not every version of Spark has."""
VALUES = {"avro": "test_avro.py", "protobuf": "test_protobuf.py"}
"""Formats of the values of records, which are not registered, and the files with their tests."""


def smoke_tests(path: Path) -> set[str]:
    """The functions of a file that have the marker."""
    functions = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if "pytest.mark.smoke" in map(ast.unparse, node.decorator_list)}


def test_every_connector_has_a_smoke_test() -> None:
    registered = {*SOURCE_CONNECTORS.values(), *SINK_CONNECTORS.values(), *CHANGE_DECODERS.values()}
    assert registered == {*SMOKE, *WITH_PACKAGES, "sinks.SinkConnector"}, "the last one is the base of all others"
    for file, _, name in (test.partition("::") for test in SMOKE.values()):
        assert name in smoke_tests(HERE / file)
    assert all(smoke_tests(HERE / file) for file in VALUES.values())


@pytest.mark.smoke
@pytest.mark.parametrize("connector", WITH_PACKAGES)
def test_connectors_with_packages_are_tested_in_the_matrix(connector: str) -> None:
    pytest.skip(f"{connector} needs a session with its package: `make matrix` runs tests/matrix/test_lakes.py")


@pytest.mark.spark
@pytest.mark.smoke
def test_xml_and_orc_meet_a_table_of_a_database(spark: SparkSession, tmp_path: Path) -> None:
    database = f"jdbc:derby:{tmp_path}/shop;create=true"
    spark.sql("SELECT 7L AS id, 'lamp' AS name").write.jdbc(database, "items", properties={"driver": DERBY})
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "1.xml").write_text(
        "<rows><row><id>7</id><t>5</t></row><row><id>8</id><t>6</t></row></rows>"
    )
    spark.sql("SELECT 7L AS id, 6L AS t, 'north' AS courier").write.orc(str(tmp_path / "deliveries"))
    text = f"""
    CREATE STREAM o (id BIGINT, t BIGINT, WATERMARK FOR t AS t)
        USING xml OPTIONS (path '{tmp_path}/orders', rowTag 'row');
    CREATE STREAM d (id BIGINT, t BIGINT, courier STRING, WATERMARK FOR t AS t)
        USING orc OPTIONS (path '{tmp_path}/deliveries');
    CREATE TABLE items (ID BIGINT, NAME STRING, PRIMARY KEY (ID))
        USING jdbc OPTIONS (url '{database}', dbtable 'items', driver '{DERBY}', static 'true');
    CREATE SINK out USING json OPTIONS (path '{tmp_path}/out');
    INSERT INTO out SELECT STREAM o.id, d.courier, items.NAME
    FROM o JOIN d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + 1 JOIN items ON items.ID = o.id;"""
    run_script(read_script(text), spark=spark, storage=tmp_path / "storage", trigger="end")
    [line] = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert json.loads(line) == {"id": 7, "courier": "north", "NAME": "lamp"}
