"""Files of a sink hold every row once for every reader, whatever crashed, and a folder knows whose it is."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow.orc as orc
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from watersmeet.catalog import Sink
from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.spark.connectors import files, sink_connector
from watersmeet.spark.connectors.sinks import SinkTarget
from watersmeet.spark.private.files import HadoopStorage, LocalFolder

pytestmark = pytest.mark.spark

SQL = """
CREATE STREAM l (id INT, t INT, WATERMARK FOR t AS t - 5) USING json OPTIONS (path 'data/l');
CREATE STREAM r (id INT, t INT, w INT, WATERMARK FOR t AS t - 5) USING json OPTIONS (path 'data/r');
CREATE SINK out USING json OPTIONS (path 'out');
CREATE SINK late USING json OPTIONS (path 'late');
INSERT INTO out SELECT STREAM l.id, r.w FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t - 5 AND l.t + 5
  LATE INTO late;
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop" / "sql").mkdir(parents=True)
    (tmp_path / "shop" / "watersmeet.yml").write_text("name: shop\n")
    write_sql(tmp_path / "shop", SQL)
    return tmp_path / "shop"


def write_sql(project: Path, text: str) -> None:
    (project / "sql" / "queries.sql").write_text(text)


def arrive(project: Path, number: int) -> None:
    """Pairs of rows and one without its other half, in all shards; from the second time on one row is late."""
    moment = number * 20
    pairs = range(number * 10, number * 10 + 6)
    sides = {
        "l": [*({"id": id_, "t": moment} for id_ in pairs), {"id": 100 + number, "t": moment}, {"id": -number, "t": 0}],
        "r": [{"id": id_, "t": moment + 1, "w": number} for id_ in pairs],
    }
    for side, rows in sides.items():
        (project / "data" / side).mkdir(parents=True, exist_ok=True)
        (project / "data" / side / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(project: Path, trigger: str = "--once") -> str:
    """What the command says, as one line; nothing, if it ran."""
    said = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["run", str(project), trigger])
    return "" if said.exit_code == 0 else " ".join(said.output.split())


def rows_in(folder: Path) -> Counter[str]:
    """The rows as DuckDB sees them, which are those of the lines of all files."""
    lines = Counter(line for file in folder.glob("*.json") for line in file.read_text().splitlines())
    found = duckdb.execute(
        f"SELECT to_json(t) FROM read_json('{folder}/*.json', format='newline_delimited') t"
    ).fetchall()
    assert len(found) == lines.total()
    return lines


def only_once(rows: Counter[str]) -> bool:
    return all(count == 1 for count in rows.values())


# A batch into a folder


def batch_writer(spark: SparkSession, folder: Path, format_: str, **options: str) -> Callable[[int, list[int]], None]:
    """What writes rows as a batch, as a query that has just started does."""
    sink = Sink("out", format_, {"path": str(folder), **options})

    def write(number: int, rows: list[int]) -> None:
        frame = spark.createDataFrame([(f"row {row}",) for row in rows], "a STRING").repartition(2)
        sink_connector(SinkTarget(sink, "out", folder.parent / "checkpoint")).writer()(frame, number)

    return write


def read(folder: Path, format_: str) -> list[str]:
    match format_:
        case "orc":
            return [row["a"] for file in folder.glob("*.orc") for row in orc.read_table(file).to_pylist()]
        case "text":
            return [line for file in folder.glob("*.txt") for line in file.read_text().splitlines()]
        case _:
            reader = {"csv": "read_csv", "json": "read_json", "parquet": "read_parquet"}[format_]
            names = ", header=false, names=['a']" if format_ == "csv" else ""
            found = [str(file) for file in folder.glob(f"[!.]*.{format_}*")]
            return [a for (a,) in duckdb.execute(f"SELECT a FROM {reader}({found}{names})").fetchall()]


@pytest.mark.smoke
@pytest.mark.parametrize("format_", ["csv", "json", "orc", "parquet", "text"])
def test_a_repeated_batch_takes_the_place_of_its_files(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    folder = tmp_path / "out"
    write = batch_writer(spark, folder, format_, **({"compression": "gzip"} if format_ == "json" else {}))
    write(0, [1, 2, 2])
    write(1, [3, 4])
    write(1, [5, 6, 7])
    assert sorted(read(folder, format_)) == [f"row {row}" for row in (1, 2, 2, 5, 6, 7)]
    shown = [name.name for name in folder.iterdir() if name.name != files.HIDDEN]
    assert all(name.startswith(("part-000000000-0000", "part-000000001-0000")) for name in shown)
    # A checkpoint that was put back from a copy makes these batches again, and others of them.
    write(0, [1, 2, 2, 3])
    assert sorted(read(folder, format_)) == ["row 1", "row 2", "row 2", "row 3"]


def test_any_file_system_of_hadoops_will_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "folder_of", HadoopStorage)
    write = batch_writer(spark, tmp_path / "a folder", "json")
    write(0, [1])
    write(1, [2])
    write(1, [3])
    assert Counter(read(tmp_path / "a folder", "json")) == Counter(["row 1", "row 3"])


# Crashes


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, method: str, name: str, calls: int) -> Generator[None]:
    """Let a step fail after some calls of it, as if the machine had gone down there: nothing after it happens."""
    done = [0]
    real = getattr(LocalFolder, method)

    def crash(self: LocalFolder, *names: str) -> None:
        done[0] += names[0].startswith(name)
        if done[0] > calls:
            raise OSError("the machine went down")
        real(self, *names)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, method, crash)
        yield
    assert done[0] > calls, "the step was never reached"


STEPS = (
    ("write", files.OWNER, 0),  # staged, and nothing moved
    ("move", files.STAGED, 0),
    ("move", files.STAGED, 1),  # one of two files
    ("delete", "part-", 0),  # before it is replaced
    ("move", files.STAGED, 2),  # the rows, and no late rows
    ("delete", files.STAGED, 1),  # everything, but Spark has not heard of it
)


def test_every_row_is_there_once_after_a_crash_at_any_step(
    spark: SparkSession, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(project, 1)
    assert run(project) == ""
    arrive(project, 2)
    for step in STEPS:
        with crash_at(monkeypatch, *step):
            assert "the machine went down" in run(project), step
        assert only_once(rows_in(project / "out")), step
    arrive(project, 3)
    assert run(project, "--end") == ""
    lines = [json.loads(line) for line in rows_in(project / "out").elements()]
    pairs = [(number * 10 + id_, number) for number in (1, 2, 3) for id_ in range(6)]
    assert sorted((row["id"], row.get("w")) for row in lines if row["id"] > 0) == [
        *pairs, (101, None), (102, None), (103, None),
    ]  # fmt: skip
    late = [json.loads(line)["l"]["id"] for line in rows_in(project / "late").elements()]
    assert sorted(late) == [-3, -2]
    assert not any(path.is_dir() and path.name != files.HIDDEN for path in (project / "out").iterdir())
    assert spark.read.json(str(project / "out")).count() == len(lines)


# Whose a folder is


# It runs the command eight times, which takes minutes where all cores are taken.
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")
def test_a_folder_of_another_run_format_or_query_is_refused_and_the_hint_works(project: Path) -> None:
    arrive(project, 1)
    assert run(project) == ""
    before = rows_in(project / "out")
    sinks = project / "storage" / "checkpoints"
    kept = sinks.rename(project / "kept")
    said = run(project)
    assert "SINK_OF_ANOTHER_CHECKPOINT" in said and "give the sink another path, or delete the folder" in said
    assert rows_in(project / "out") == before and not sinks.exists()
    for folder in ("out", "late"):
        shutil.rmtree(project / folder)
    assert run(project) == ""
    assert rows_in(project / "out") == before
    # A folder without files is anybody's, so let there be a late row.
    arrive(project, 2)
    assert run(project) == ""
    before = rows_in(project / "out")

    for old, new, told in (
        ("out USING json", "out USING parquet", "its format was `json`, now it would be `parquet`"),
        ("'out'", "'late'", "its query was `out "),
    ):
        write_sql(project, SQL.replace("path 'late'", "path 'elsewhere'").replace(old, new))
        said = run(project)
        assert "FOLDER_OF_ANOTHER_SINK" in said and told in said, said
        assert not (project / "elsewhere").exists()
    write_sql(project, SQL.replace("out USING json OPTIONS (path 'out')", "out USING parquet OPTIONS (path 'other')"))
    arrive(project, 3)
    assert run(project) == ""
    found = duckdb.execute(f"SELECT id FROM '{project}/other/*.parquet' WHERE w IS NOT NULL ORDER BY id").fetchall()
    assert found == [(30 + id_,) for id_ in range(6)]
    assert rows_in(project / "out") == before
    assert kept.exists()


@pytest.mark.usefixtures("spark")
def test_an_emptied_folder_is_anybodys(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    batch_writer(spark, folder, "json")(0, [1])
    owner = folder / files.OWNER
    for text in ("{", "[]", '{"name": "x"}'):
        owner.write_text(text)
        with pytest.raises(WatersmeetError, match="FOLDER_OF_ANOTHER_SINK"):
            batch_writer(spark, folder, "json")(1, [1])
    for file in folder.glob("*.json"):
        file.unlink()
    batch_writer(spark, folder, "csv")(0, [2])
    assert read(folder, "csv") == ["row 2"] and json.loads(owner.read_text())["format"] == "csv"


# Folders of earlier versions


def spark_sink(frame: DataFrame, folder: Path, checkpoint: Path) -> None:
    """Let Spark's own sink write what is there."""
    writer = frame.writeStream.format("json").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start(str(folder)).awaitTermination()


def test_a_folder_of_sparks_own_sink_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = spark.readStream.schema("a STRING").option("maxFilesPerTrigger", "1").json(str(tmp_path / "in"))
    folder, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    for number in range(12):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"a": f"row {number}"}) + "\n")
    spark_sink(rows, folder, checkpoint)
    # What a batch left behind that was killed: no row of it counts.
    (folder / "part-00000-11111111-2222-3333-4444-555555555555-c000.json").write_text('{"a": "row 3"}\n')
    (folder / "of mine.json").write_text('{"a": "row 99"}\n')
    write = batch_writer(spark, folder, "json")
    with pytest.raises(WatersmeetError, match="SINK_OF_ANOTHER_CHECKPOINT"):
        write(10, [10])
    write(11, [11])
    write(12, [12])
    expected = [f"row {row}" for row in (*range(13), 99)]
    assert Counter(read(folder, "json")) == Counter(expected)
    assert Counter(row.a for row in spark.read.json(str(folder)).collect()) == Counter(expected)
    write(12, [12, 13])
    assert Counter(read(folder, "json")) == Counter([*expected, "row 13"])


def test_a_folder_of_folders_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for number in range(3):
        frame = spark.createDataFrame([(f"row {number}",)], "a STRING")
        frame.write.json(str(folder / f"_batch={number}"))
    write = batch_writer(spark, folder, "json")
    write(2, [7])
    assert Counter(read(folder, "json")) == Counter(["row 0", "row 1", "row 7"])
    assert spark.read.json(str(folder)).columns == ["a"]


# Checkpoints that cannot be read


def cut(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "half an offset": ("offsets/1", cut),
    "no metadata": ("metadata", Path.unlink),
    "half of what a source has read": ("sources/0/1", cut),
    "garbage about a state": ("state/0/_stateSchema/default/[0-9]*", lambda file: file.write_bytes(b"\0garbage\xff")),
    "half of a state's changes": ("state/0/*/2.changelog", cut),
    "no changes of a state": ("state/0/*/2.changelog", Path.unlink),
}
"""One of each kind; `tests/spark/state/test_damage.py` has all files that are looked at before Spark starts."""


def forget_states(spark: SparkSession) -> None:
    """Let the JVM read states again, as it must after a restart."""
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # pyright: ignore


def test_a_damaged_checkpoint_is_refused_with_its_file_and_a_way_out(spark: SparkSession, project: Path) -> None:
    for number in (1, 2):
        arrive(project, number)
        assert run(project) == ""
    arrive(project, 3)
    checkpoint, kept = project / "storage" / "checkpoints" / "out", project.parent / "kept"
    shutil.copytree(project, kept)
    for case, (name, damage) in DAMAGES.items():
        (file, *_) = sorted(checkpoint.glob(name))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        damage(file)
        forget_states(spark)
        said = run(project)
        assert "DAMAGED_CHECKPOINT" in said, (case, said)
        assert f"{file} is" in said and "restore that file" in said, (case, said)
        shutil.rmtree(project)
        shutil.copytree(kept, project)
    # What the hint offers, done: the checkpoint from a copy, or another name and path.
    assert run(project) == ""
    (checkpoint / "metadata").unlink()
    assert "new sinks, with other names and paths than `out` and `late`" in run(project)
    write_sql(project, re.sub(r"\b(out|late)\b", r"\1_anew", SQL))
    assert run(project) == ""
    assert sum(rows_in(project / "out_anew").values()) >= 3


@pytest.mark.parametrize(
    ("format_", "options"),
    [("json", {}), ("json", {"compression": "gzip"}), ("csv", {"header": "true"}), ("parquet", {}), ("orc", {})],
)
def test_a_task_without_rows_leaves_no_file(
    spark: SparkSession, tmp_path: Path, format_: str, options: dict[str, str]
) -> None:
    folder = tmp_path / "out"
    sink = Sink("out", format_, {"path": str(folder), **options})
    target = SinkTarget(sink, "query", tmp_path / "checkpoint")
    write = sink_connector(target).writer()
    batches = [[3], [], [0, 1, 2, 3], [1, 2]]
    for number, tasks in enumerate(batches):
        # Four tasks, of which some have a row.
        wanted = " OR ".join(f"id = {task}" for task in tasks) or "false"
        rows = spark.range(0, 4, 1, 4).where(f"({wanted}) AND id >= 0")
        write(rows, number)
    names = sorted(file.name for file in folder.glob("part-*"))
    assert [name.split(".")[0] for name in names] == [
        f"part-{number:09}-{task:05}" for number, tasks in enumerate(batches) for task in tasks
    ]
    found = spark.read.format(format_).options(**options).load(str(folder))
    assert sorted(int(row.id) for row in found.collect()) == [0, 1, 1, 2, 2, 3, 3]
    assert not [*(folder / ".watersmeet").glob("*blank*")]
