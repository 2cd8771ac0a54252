"""Merged files have the rows of the files that they replace, whatever crashed, and the query continues exactly once."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from watersmeet.catalog import Sink
from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.spark.connectors import files as merged_files
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.compaction import Compaction, Sizes, checksum_rows
from watersmeet.spark.connectors.sinks import SinkTarget
from watersmeet.spark.private.files import LocalFolder
from watersmeet.spark.state.owner import lock_storage

pytestmark = pytest.mark.spark

SQL = """
CREATE STREAM orders (id INT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS)
  USING json OPTIONS (path 'data', maxFilesPerTrigger '1');
CREATE SINK lines USING json OPTIONS (path 'lines');
CREATE SINK columns USING parquet OPTIONS (path 'columns');
INSERT INTO lines SELECT STREAM id, t FROM orders;
INSERT INTO columns SELECT STREAM id, t FROM orders;
"""
SINKS = {"lines": "json", "columns": "parquet"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    project = tmp_path / "shop"
    (project / "sql").mkdir(parents=True)
    (project / "data").mkdir()
    (project / "watersmeet.yml").write_text("name: shop\n")
    (project / "sql" / "queries.sql").write_text(SQL)
    return project


def watersmeet(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "500"}).invoke(app, [str(argument) for argument in arguments])
    return result.stdout if result.exit_code == 0 else " ".join(result.output.split())


def run_batches(shop: Path, ids: range) -> None:
    """Run a batch per row."""
    for id_ in ids:
        (shop / "data" / f"{id_}.json").write_text(json.dumps({"id": id_, "t": f"2026-01-01T00:00:{id_:02}Z"}) + "\n")
    assert "refused" not in watersmeet("run", shop, "--once")


def rows_of(shop: Path, sink: str) -> list[tuple[int, str]]:
    """The rows of a sink as DuckDB reads them, in order."""
    files = str(shop / sink / f"*.{SINKS[sink]}")
    return duckdb.execute(f"SELECT id, t::VARCHAR FROM '{files}' ORDER BY ALL").fetchall()


def files_of(shop: Path, sink: str) -> list[str]:
    return sorted(path.name for path in (shop / sink).iterdir() if path.is_file())


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, method: str, name: str, calls: int) -> Generator[None]:
    """Let a step fail after some calls of it, as if the machine had gone down there."""
    count = [0]
    real = getattr(LocalFolder, method)

    def crash(self: LocalFolder, *names: str) -> None:
        count[0] += names[0].startswith(name)
        if count[0] > calls:
            raise OSError("the machine went down")
        real(self, *names)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, method, crash)
        yield
    assert count[0] > calls, "the step was never reached"


@pytest.mark.usefixtures("spark")
def test_compaction_leaves_each_row_once_and_the_query_continues(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batches(shop, range(6))
    before = {sink: rows_of(shop, sink) for sink in SINKS}
    assert [id_ for id_, _ in before["lines"]] == list(range(6)) and len(files_of(shop, "lines")) == 6
    copy = shutil.copytree(shop / "storage", shop.parent / "copy")

    with lock_storage(shop / "storage", "shared"):
        assert "CHECKPOINT_IN_USE" in watersmeet("compact", shop)
    assert watersmeet("compact", shop) == "lines: 6 files, now 2 files.\ncolumns: 6 files, now 2 files.\n"
    for sink in SINKS:
        first, last = files_of(shop, sink)
        assert first.startswith("part-000000004-since-000000000-") and last.startswith("part-000000005-0")
        assert rows_of(shop, sink) == before[sink]
    assert watersmeet("compact", shop, "--sink", "lines") == "lines: 2 files, nothing to merge.\n"

    run_batches(shop, range(6, 8))
    before = {sink: rows_of(shop, sink) for sink in SINKS}
    with crash_at(monkeypatch, "move", merged_files.ROWS, 0):
        assert "the machine went down" in watersmeet("compact", shop)
    assert len(rows_of(shop, "lines")) == 1, "the merged file, which has the other rows, is still hidden"
    run_batches(shop, range(8, 9))
    for sink in SINKS:
        assert rows_of(shop, sink)[:8] == before[sink] and [id_ for id_, _ in rows_of(shop, sink)] == list(range(9))
    assert len(files_of(shop, "lines")) == 3

    again = (
        "CREATE STREAM again (id INT, t TIMESTAMP, WATERMARK FOR t AS t) USING json OPTIONS (path 'lines/*.json');\n"
    )
    (shop / "sql" / "again.sql").write_text(again)
    reason = "`again` reads the folder, and would read merged rows again"
    assert watersmeet("compact", shop).startswith(f"lines: not compacted, because {reason}.\ncolumns: ")
    assert "NOT_COMPACTED" in watersmeet("compact", shop, "--sink", "lines")
    assert "UNKNOWN_SINK" in watersmeet("compact", shop, "--sink", "line")
    assert len(files_of(shop, "lines")) == 3
    (shop / "sql" / "again.sql").unlink()

    shutil.rmtree(shop / "storage")
    copy.rename(shop / "storage")
    rows = rows_of(shop, "lines")
    assert "COMPACTED_AFTER_CHECKPOINT" in watersmeet("run", shop, "--once")
    assert rows_of(shop, "lines") == rows


# A folder of each format

STEPS = (
    ("delete", "part-", 0),
    ("delete", "part-", 2),
    ("move", merged_files.ROWS, 0),
    ("delete", merged_files.JOURNAL, 0),
)


def write_batches(spark: SparkSession, sink: Sink, schema: str, *batches: tuple[object, ...]) -> None:
    writer = sink_connector(SinkTarget(sink, "out", Path(sink.options["path"]).parent / "checkpoint")).writer()
    for number, row in enumerate(batches):
        writer(spark.createDataFrame([row], schema).coalesce(1), number)


@pytest.mark.parametrize(
    ("format_", "options"),
    [("csv", {"header": "true"}), ("csv", {}), ("json", {"compression": "gzip"}), ("orc", {}), ("text", {})],
)
def test_every_format_keeps_its_rows(
    spark: SparkSession, tmp_path: Path, format_: str, options: dict[str, str]
) -> None:
    folder = tmp_path / "out"
    sink = Sink("out", format_, {"path": str(folder), **options})
    write_batches(spark, sink, "a STRING", *((f'"row"\n {number}',) for number in range(4)))
    reading = {**options, "multiLine": str(format_ == "csv")}
    before = Counter(map(str, spark.read.format(format_).options(**reading).load(str(folder)).collect()))
    assert Compaction(sink, 9, Sizes(1e6, 1e6), lambda: spark).compact() == (4, 1)
    assert Counter(map(str, spark.read.format(format_).options(**reading).load(str(folder)).collect())) == before
    if format_ == "json":
        (merged,) = folder.glob("*.gz")
        assert len(gzip.decompress(merged.read_bytes()).splitlines()) == 4
        assert len(duckdb.execute(f"SELECT * FROM '{merged}'").fetchall()) == 4


@pytest.mark.parametrize("format_", ["json", "parquet"])
def test_a_crash_at_any_step_loses_and_doubles_no_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    written = tmp_path / "written"
    write_batches(spark, Sink("out", format_, {"path": str(written)}), "a INT", *((value,) for value in range(4)))
    for number, step in enumerate(STEPS):
        folder = LocalFolder(shutil.copytree(written, tmp_path / f"out{number}"))
        sink = Sink("out", format_, {"path": str(folder.path)})
        compaction = Compaction(sink, 9, Sizes(1e6, 1e6), lambda: spark)
        with crash_at(monkeypatch, *step), pytest.raises(OSError, match="the machine went down"):
            compaction.compact()
        visible = [path.name for path in folder.path.iterdir() if path.is_file()]
        assert any("since" in name for name in visible) is (step[1] == merged_files.JOURNAL)
        assert len(visible) == {0: 4, 1: 2, 2: 0, 3: 1}[number]
        # A second crash, while the first one is made good.
        with crash_at(monkeypatch, "delete", merged_files.JOURNAL, 0), pytest.raises(OSError, match="went down"):
            compaction.compact()
        assert compaction.compact() == (1, 1)
        assert duckdb.execute(f"SELECT a FROM '{folder.path}/*.{format_}' ORDER BY a").fetchall() == [
            (0,),
            (1,),
            (2,),
            (3,),
        ]


def test_files_with_other_columns_are_not_merged(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink("out", "parquet", {"path": str(tmp_path / "out")})
    write_batches(spark, sink, "a INT, m MAP<INT, STRING>", *((number, {number: "x"}) for number in range(4)))
    write_batches(spark, Sink("out", "parquet", {"path": str(tmp_path / "other")}), "a INT, b INT", *[(1, 2)] * 6)
    for number in (4, 5):
        (moved,) = (tmp_path / "other").glob(f"part-00000000{number}-*")
        moved.rename(tmp_path / "out" / moved.name)
    assert Compaction(sink, 9, Sizes(1e6, 1e6), lambda: spark).compact() == (6, 2)
    rows = duckdb.execute(
        f"SELECT a, b FROM read_parquet('{tmp_path}/out/*', union_by_name=true) ORDER BY a, b"
    ).fetchall()
    assert rows == [(0, None), (1, 2), (1, 2), (1, None), (2, None), (3, None)]


def test_a_merged_file_with_other_rows_is_not_used(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink("out", "parquet", {"path": str(tmp_path / "out")})
    write_batches(spark, sink, "a INT", (1,), (2,))
    names = sorted(path.name for path in (tmp_path / "out").glob("part*"))
    load = Compaction._load  # pyright: ignore[reportPrivateUsage]
    frames = iter([lambda rows: rows, lambda rows: rows.limit(1)])
    monkeypatch.setattr(Compaction, "_load", lambda self, names: next(frames)(load(self, names)))
    with pytest.raises(WatersmeetError, match="NOT_COMPACTED"):
        Compaction(sink, 9, Sizes(1e6, 1e6), lambda: spark).compact()
    assert sorted(path.name for path in (tmp_path / "out").glob("part*")) == names


def test_content_distinguishes_rows_and_not_their_order(spark: SparkSession) -> None:
    frames = [spark.createDataFrame([(one,) for one in rows], "a INT") for rows in ([1, 2, 2], [2, 1, 2], [1, 1, 2])]
    same, order, other = (checksum_rows(frame) for frame in frames)
    assert same == order != other
