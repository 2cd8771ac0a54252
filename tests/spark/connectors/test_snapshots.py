"""Folders that hold a table as it is, here and in file systems of Hadoop: batches, crashes, two drivers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tests.spark.connectors.test_restored_checkpoints import condition_of, plans_in
from tests.spark.connectors.test_sinks import Change, changes, fold

from watersmeet.catalog import Sink
from watersmeet.errors import refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.spark.connectors.snapshots import Snapshot

pytestmark = pytest.mark.spark

Where = Literal["here", "elsewhere"]
PLACES: tuple[Where, ...] = ("here", "elsewhere")
in_both_places = pytest.mark.parametrize("where", PLACES)


def snapshot_at(
    spark: SparkSession, folder: Path, where: Where, format_: str = "parquet", check: Callable[[], None] = lambda: None
) -> Snapshot:
    """A snapshot in a folder; elsewhere: by Hadoop's file systems, without links and locks."""
    from watersmeet.spark.connectors.snapshots import LocalSnapshot, RemoteSnapshot
    from watersmeet.spark.private.files import HadoopStorage

    if where == "here":
        return LocalSnapshot(folder, format_, {})
    return RemoteSnapshot(HadoopStorage(spark, f"file://{folder}"), format_, {}, check)


def current(folder: Path) -> Path:
    """The folder that readers are pointed to."""
    pointer = folder / "current"
    return pointer if pointer.is_symlink() else folder / pointer.read_text().strip()


def rows_in(spark: SparkSession, folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, spark.read.parquet(str(current(folder))).collect()))


def versions_in(folder: Path) -> list[str]:
    """The versions that are there, without the parts of their names that are random."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert "current" in names
    return sorted(name.partition("@")[0] for name in names if name != "current")


@in_both_places
def test_a_snapshot_holds_the_table_as_it_is(spark: SparkSession, tmp_path: Path, where: Where) -> None:
    one = snapshot_at(spark, tmp_path / "table", where)
    batches: list[list[Change]] = [
        [(1, "a", "+"), (2, "b", "+"), (2, "b", "+"), (None, None, "+")],
        [(1, "a", "-"), (1, "c", "+"), (2, "b", "-")],
        [],
        [(None, None, "-"), (3, "d", "+")],
    ]
    for number, batch in enumerate(batches):
        for _ in range(2 if number == 1 else 1):
            one.write(changes(spark, *batch), number, "run")
        assert rows_in(spark, tmp_path / "table") == fold(batches[: number + 1]), number
    assert versions_in(tmp_path / "table") == ["_version-1-run", "_version-3-run"]


@in_both_places
def test_another_run_begins_its_snapshot_again(spark: SparkSession, tmp_path: Path, where: Where) -> None:
    one = snapshot_at(spark, tmp_path / "table", where)
    one.write(changes(spark, (1, "a", "+")), 5, "first")
    one.write(changes(spark, (2, "b", "+")), 0, "second")
    assert rows_in(spark, tmp_path / "table") == {(2, "b"): 1}
    late = partial(one.write, changes(spark, (3, "c", "+")), 6, "first")
    assert condition_of(late) == "SINK_OF_ANOTHER_CHECKPOINT"


@in_both_places
def test_a_text_format_loses_nothing_of_a_snapshot(spark: SparkSession, tmp_path: Path, where: Where) -> None:
    one, moment = snapshot_at(spark, tmp_path / "table", where, "json"), datetime(2024, 5, 6, 7, 8, 9, 123456)
    schema = "id INT, at TIMESTAMP_NTZ, m MAP<STRING, INT>, _change STRING"
    row = (1, moment, {"a": 1})
    one.write(spark.createDataFrame([(*row, "+"), (2, moment, None, "+")], schema), 0, "run")
    one.write(spark.createDataFrame([(*row, "-")], schema), 1, "run")
    [line] = [text for f in current(tmp_path / "table").glob("*.json") for text in f.read_text().splitlines()]
    assert json.loads(line)["id"] == 2


@in_both_places
def test_a_snapshot_cannot_retract_what_it_does_not_have(spark: SparkSession, tmp_path: Path, where: Where) -> None:
    one = snapshot_at(spark, tmp_path / "table", where)
    one.write(changes(spark, (1, "a", "+")), 0, "run")
    with pytest.raises(Exception, match="WRONG_CHANGE"):
        one.write(changes(spark, (2, "b", "-")), 1, "run")
    assert rows_in(spark, tmp_path / "table") == {(1, "a"): 1}


@in_both_places
def test_of_two_drivers_one_goes_on_with_a_snapshot(
    spark: SparkSession, tmp_path: Path, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = (snapshot_at(spark, tmp_path / "out", where) for _ in range(2))
    write_rows = type(slow)._write

    def overtake(self: Snapshot, *arguments: Any) -> None:
        write_rows(self, *arguments)
        if self is slow:
            fast.write(changes(spark, (2, "b", "+")), 1, "run")
            fast.write(changes(spark, (3, "c", "+")), 2, "run")

    monkeypatch.setattr(type(slow), "_write", overtake)
    fast.write(changes(spark, (1, "a", "+")), 0, "run")
    assert condition_of(lambda: slow.write(changes(spark, (2, "b", "+")), 1, "run")) == "SINK_FENCED"
    assert rows_in(spark, tmp_path / "out") == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}
    assert versions_in(tmp_path / "out") == ["_version-1-run", "_version-2-run"]


@in_both_places
def test_of_two_drivers_on_two_copies_of_a_checkpoint_one_stops_at_a_snapshot(
    spark: SparkSession, tmp_path: Path, where: Where
) -> None:
    snapshot = snapshot_at(spark, tmp_path / "out", where)
    one = plans_in(tmp_path / "checkpoint", _0=1000, _1=2000, _2=3000)
    other = plans_in(tmp_path / "copy", _0=1000, _1=2500)
    snapshot.write(changes(spark, (1, "a", "+")), 0, "run", one)
    # A batch without changes leaves no version, so only the next one shows that there are two.
    snapshot.write(changes(spark, (1, "a", "+")).where("false"), 1, "run", one)
    snapshot.write(changes(spark, (2, "b", "+")), 1, "run", other)
    batch = changes(spark, (3, "c", "+"))
    assert condition_of(partial(snapshot.write, batch, 2, "run", one)) == "SINK_AHEAD_OF_CHECKPOINT"
    assert rows_in(spark, tmp_path / "out") == {(1, "a"): 1, (2, "b"): 1}


@in_both_places
def test_a_snapshot_goes_back_to_the_version_before(spark: SparkSession, tmp_path: Path, where: Where) -> None:
    snapshot = snapshot_at(spark, tmp_path / "out", where)
    plans = plans_in(tmp_path / "checkpoint", _0=1000, _1=2000)
    for number, row in enumerate([(1, "a"), (2, "b")]):
        snapshot.write(changes(spark, (*row, "+")), number, "run", plans)
    restored = plans_in(tmp_path / "restored", _0=1000)
    snapshot.rewind("run", restored)
    assert snapshot.last_batch("run") == restored.sink_batch(0)
    assert rows_in(spark, tmp_path / "out") == {(1, "a"): 1}
    again = plans_in(tmp_path / "again", _0=1000, _1=5000)
    snapshot.write(changes(spark, (3, "c", "+")), 1, "run", again)
    assert rows_in(spark, tmp_path / "out") == {(1, "a"): 1, (3, "c"): 1}
    assert versions_in(tmp_path / "out") == ["_version-0-run", "_version-1-run"]


def test_a_driver_that_ends_before_it_switches_is_completed_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    snapshot = snapshot_at(spark, tmp_path, "elsewhere")
    snapshot.write(changes(spark, (1, "a", "+")), 0, "run")
    before = (tmp_path / "current").read_text()
    snapshot.write(changes(spark, (2, "b", "+")), 1, "run")
    # As if it had ended after it added its entry.
    (tmp_path / "current").write_text(before)
    snapshot.write(changes(spark, (2, "b", "+")), 1, "run")
    assert rows_in(spark, tmp_path) == {(1, "a"): 1, (2, "b"): 1}
    # As if it had ended while it wrote its entry, on a file system that shows a file before it is written.
    (tmp_path / ".watersmeet" / "versions" / f"{3:010}").touch()
    snapshot.write(changes(spark, (3, "c", "+")), 2, "run")
    assert rows_in(spark, tmp_path) == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}
    snapshot.write(changes(spark, (4, "d", "+")), 3, "run")
    assert sorted(path.name for path in (tmp_path / ".watersmeet" / "versions").glob("[!.]*")) == [
        f"{4:010}", f"{5:010}",
    ]  # fmt: skip


def test_a_driver_without_the_lease_does_not_switch(spark: SparkSession, tmp_path: Path) -> None:
    def lose() -> None:
        raise refuse("LEASE_LOST", lease="query.out", reason="another process has taken it")

    snapshot_at(spark, tmp_path, "elsewhere").write(changes(spark, (1, "a", "+")), 0, "run")
    paused = snapshot_at(spark, tmp_path, "elsewhere", check=lose)
    assert condition_of(partial(paused.write, changes(spark, (2, "b", "+")), 1, "run")) == "LEASE_LOST"
    assert rows_in(spark, tmp_path) == {(1, "a"): 1}


def test_a_snapshot_in_another_file_system_asks_for_the_lease_itself(tmp_path: Path) -> None:
    from watersmeet.spark.connectors import sink_connector
    from watersmeet.spark.connectors.sinks import SinkTarget

    def asks(path: str) -> bool:
        sink = Sink("out", "json", {"path": path, "changes": "snapshot"})
        return sink_connector(SinkTarget(sink, "out", tmp_path, "snapshot")).checks_lease

    assert (asks("s3a://b/out"), asks("/out"), asks("file:///out")) == (True, False, False)
