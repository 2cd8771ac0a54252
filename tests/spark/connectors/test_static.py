"""Tables that are read once: a copy belongs to the declaration that it was made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.connectors import static
from watersmeet.spark.connectors.static import DECLARATION
from watersmeet.spark.run.running import run_script
from watersmeet.spark.state.moving import export_checkpoint, import_checkpoint

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE TABLE items (id INT, {columns}, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/{path}', static 'true');
CREATE SINK {sink} USING json OPTIONS (path '{folder}/{sink}', changes 'log');
INSERT INTO {sink} SELECT TABLE {shown} FROM items i;
"""
BY_ID = {"a": {"name": "tea", "price": 1}, "b": {"name": "jam", "price": 2}}


def run(
    spark: SparkSession, folder: Path, sink: str, columns: str = "name STRING", path: str = "a", shown: str = "i.*"
) -> list[object]:
    """Run the query; gives the rows that its sink has then, without the column of the change."""
    text = SCRIPT.format(folder=folder, sink=sink, columns=columns, path=path, shown=shown)
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger="available_now")
    files = (folder / sink).rglob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "_change"} for row in rows]


def test_a_copy_of_a_static_table_belongs_to_its_declaration(spark: SparkSession, tmp_path: Path) -> None:
    for name, row in BY_ID.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.json").write_text(json.dumps({"id": 1, **row}) + "\n")
    assert run(spark, tmp_path, "one") == [{"id": 1, "name": "tea"}]
    # Other queries of the same storage: a column more, and another path.
    assert run(spark, tmp_path, "two", "name STRING, price INT") == [{"id": 1, "name": "tea", "price": 1}]
    assert run(spark, tmp_path, "three", path="b") == [{"id": 1, "name": "jam"}]
    # As earlier versions left it; and with columns that are there.
    copies = tmp_path / "storage" / "static"
    assert len([*copies.iterdir()]) == 3
    for copy in copies.iterdir():
        (copy / DECLARATION).unlink()
    assert run(spark, tmp_path, "one") == [{"id": 1, "name": "tea"}]
    # One that has read the copy would have the rows of both.
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, "one", "name STRING, code STRING", shown="i.id, i.name")
    (refusal,) = raised.value.refusals
    assert (refusal.condition, refusal.label) == ("STATIC_TABLE_CHANGED", "its column `code` was not declared")


def test_a_copy_belongs_to_the_settings_that_it_was_read_with(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.json").write_text('{"id": 1, "at": "2026-01-01T00:00:00"}\n')
    (tmp_path / "b").mkdir()

    def run_in(zone: str, sink: str, at: str = "at TIMESTAMP") -> list[object]:
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            return run(spark, tmp_path, sink, at, shown="i.at")
        finally:
            spark.conf.unset("spark.sql.session.timeZone")

    assert run_in("UTC", "one") == [{"at": "2026-01-01T00:00:00.000Z"}]
    assert run_in("Asia/Shanghai", "two") == [{"at": "2025-12-31T16:00:00.000Z"}]
    # Text of other types has no zone, and the first copy has the column with its first zone.
    copies = tmp_path / "storage" / "static"
    for zone in ("UTC", "Asia/Shanghai"):
        run_in(zone, f"as-text-{zone[:3]}".replace("-", "_"), "at STRING")
    assert len([*copies.iterdir()]) == 3
    with pytest.raises(WatersmeetError) as raised:
        run_in("Asia/Tokyo", "one")
    (refusal,) = raised.value.refusals
    zone = "it was read with `spark.sql.session.timeZone` `UTC`, now `Asia/Tokyo`"
    assert (refusal.condition, refusal.label) == ("STATIC_TABLE_CHANGED", zone)


def test_an_imported_copy_is_found_again_and_mixed_with_no_other(spark: SparkSession, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "0.json").write_text(json.dumps({"id": 1, **BY_ID["a"]}) + "\n")
    run(spark, first, "one")
    archive = tmp_path / "one.tar.gz"
    export_checkpoint(first / "storage" / "checkpoints" / "one", first, archive)
    import_checkpoint(archive, second / "storage", second)
    assert run(spark, second, "one") == [], "it goes on, and reads no row again"
    third = tmp_path / "third"
    (copy,) = (first / "storage" / "static").iterdir()
    (third / "storage" / "static" / copy.name).mkdir(parents=True)
    (third / "storage" / "static" / copy.name / "part-0.parquet").touch()
    with pytest.raises(WatersmeetError) as raised:
        import_checkpoint(archive, third / "storage", third)
    assert raised.value.getCondition() == "COPY_IS_THERE"


def test_two_starts_at_once_do_not_empty_each_others_copy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.json").write_text(json.dumps({"id": 1, **BY_ID["a"]}) + "\n")
    script = read_script(SCRIPT.format(folder=tmp_path, sink="one", columns="name STRING", path="a", shown="i.*"))
    (slow,), (quick,) = (static.static_tables(spark, script, tmp_path / "storage").values() for _ in range(2))
    write = static.write_declaration

    def overtaken(*args: object) -> None:
        monkeypatch.setattr(static, "write_declaration", write)
        quick.keep()
        write(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(static, "write_declaration", overtaken)
    slow.keep()
    assert slow.folder == quick.folder
    assert [row.name for row in spark.read.parquet(f"file:{slow.folder}").collect()] == ["tea"]
    assert [*slow.folder.parent.iterdir()] == [slow.folder]
