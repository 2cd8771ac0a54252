"""How many files of a folder wait: counted where looking is cheap, and else not known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from watersmeet.catalog import Source
from watersmeet.spark.state import offset_log
from watersmeet.spark.state.offset_log import backlog_counters, count_unread_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files, of which a checkpoint has read one; another one is far older than the newest."""
    found = tmp_path / "in put"
    found.mkdir()
    for name in ("a.json", "b.json", "c.json", "old.json", ".hidden", "_meta"):
        (found / name).write_text("{}")
    os.utime(found / "old.json", (1_000_000, 1_000_000))
    checkpoint = tmp_path / "checkpoint"
    for name, lines in {
        "offsets/0": ["v1", json.dumps({"batchTimestampMs": 1}), json.dumps({"logOffset": 0})],
        "commits/0": ["v1", "{}"],
        "sources/0/0": ["v1", json.dumps({"path": f"file://{tmp_path}/in%20put/a.json", "timestamp": 0, "batchId": 0})],
    }.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("\n".join(lines))
    return found


def test_files_that_no_batch_has_read_wait(folder: Path) -> None:
    checkpoint = folder.parent / "checkpoint"
    assert count_unread_files(folder, checkpoint) == 2
    assert count_unread_files(folder, folder.parent / "nothing") == 3, "nothing has run yet"


def test_pending_files_are_unknown_where_listing_is_dear(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = folder.parent / "checkpoint"
    assert count_unread_files(folder.parent / "nowhere", checkpoint) is None
    assert count_unread_files(folder.parent, checkpoint) is None, "it has folders in it"
    monkeypatch.setattr(offset_log, "MOST_FILES", 2)
    assert count_unread_files(folder, checkpoint) is None


def test_plain_folders_of_this_machine_alone_are_looked_into(folder: Path) -> None:
    def source(name: str, format: str = "json", **options: str) -> Source:
        return Source(name, (), format=format, options=options)

    told = backlog_counters(
        [
            source("plain", path=str(folder)),
            source("address", path=f"file://{folder}"),
            source("far", path="s3://bucket/in"),
            source("some", path=f"{folder}/*.json"),
            source("filtered", path=str(folder), pathGlobFilter="*.json"),
            source("topic", "kafka", subscribe="t"),
        ],
        folder.parent / "checkpoint",
    )
    assert {name: count() for name, count in told.items()} == {"plain": 2, "address": 2}
