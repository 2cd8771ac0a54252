"""Checkpoints of which a file is torn or gone, found without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.spark.private.files import LocalFolder
from watersmeet.spark.private.introspection import is_whole_changelog
from watersmeet.spark.state.owner import check_files, state_damage

FILES = {
    "metadata": '{"id":"c8484eb4"}',
    "offsets/6": 'v1\n{"conf":{}}\n{"logOffset":8}\n-',
    "offsets/7": 'v1\n{"conf":{}}\n{"logOffset":9}\n-',
    "commits/6": 'v1\n{"nextBatchWatermarkMs":0}',
    "sources/0/9": 'v1\n{"path":"file:///a.json"}\n{"path":"file:///b.json"}',
    "sources/1/0": '\0v1\n{"topic":{"0":7}}',
    "sources/4/0": "as another source likes it",
    "state/0/_metadata/v2/6": "v2\n{}",
    "state/0/_stateSchema/default/0_a": "\0\x02v3...",
}
LZ4 = b"LZ4Block\x15\x02\0\0\0\x02\0\0\0....ab" + b"LZ4Block\x15" + bytes(12)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_whole_checkpoint_and_none_are_taken(checkpoint: Path) -> None:
    check_files(LocalFolder(checkpoint), "ck", "begin anew.")
    check_files(LocalFolder(checkpoint / "nowhere"), "ck", "begin anew.")


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("metadata", Path.unlink, "is empty or missing"),
        ("metadata", lambda file: file.write_text('{"id"'), "is incomplete"),
        ("offsets/7", lambda file: file.write_text('v1\n{"conf"'), "is incomplete"),
        ("offsets/7", lambda file: file.write_text('v1\n{"conf":{}}\n{"logOffset":9}'), "is incomplete"),
        ("offsets/6", lambda file: file.write_text(""), "is empty"),
        ("commits/6", lambda file: file.write_text("v1"), "is incomplete"),
        ("sources/0/9", lambda file: file.write_text('v1\n{"path":"file:///a.json"}\n{"pa'), "is incomplete"),
        ("state/0/_metadata/v2/6", lambda file: file.write_bytes(b"\xff\0"), "is incomplete"),
        ("state/0/_stateSchema/default/0_a", lambda file: file.write_bytes(b"\xff\0"), "is incomplete"),
    ],
)
def test_a_damaged_file_is_named(checkpoint: Path, name: str, damage: Callable[[Path], object], reason: str) -> None:
    damage(checkpoint / name)
    with pytest.raises(WatersmeetError) as raised:
        check_files(LocalFolder(checkpoint), "ck", "begin anew.")
    (found,) = raised.value.refusals
    assert found.condition == "DAMAGED_CHECKPOINT" and found.label.startswith(f"ck/{name} {reason}")
    resume = "if the sink is ahead of the copy, see `watersmeet run --sink-resume`"
    assert found.hint == f"restore that file or the checkpoint from a copy ({resume}); or begin anew."


def test_offsets_that_are_gone_are_named_by_the_batch_that_was_done(checkpoint: Path) -> None:
    for number in (6, 7):
        (checkpoint / "offsets" / str(number)).unlink()
    with pytest.raises(WatersmeetError, match="ck/offsets/6 is missing"):
        check_files(LocalFolder(checkpoint), "ck", "begin anew.")


def test_a_torn_file_of_a_state_is_found_where_spark_names_none(tmp_path: Path) -> None:
    said = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error.\nCaused by: java.io.EOFException: ended\n"
    plan = f"WriteToMicroBatchDataSourceV1 [queryName=out, checkpointLocation={tmp_path}], Append"

    def label_of(text: str) -> str:
        error = state_damage(text)
        return "" if error is None else error.refusals[0].label

    assert label_of(f"java.io.EOFException\n{plan}") == ""
    assert label_of(f"{said}{plan}") == f"{tmp_path}/state could not be loaded: java.io.EOFException: ended"
    partition = tmp_path / "state" / "0" / "1"
    partition.mkdir(parents=True)
    for number, data in enumerate((LZ4, LZ4, LZ4[:-3])):
        (partition / f"{number}.changelog").write_bytes(data)
    assert label_of(f"{said}{plan}").startswith(f"{partition}/2.changelog is incomplete")
    (partition / "1.changelog").write_bytes(b"")
    assert label_of(f"{said}{plan}") == f"{partition}/1.changelog is empty"
    named = f"CANNOT_READ_STREAMING_STATE_FILE] of file:{partition}/7.changelog does not exist.\n{plan}"
    assert label_of(named) == f"{partition}/7.changelog is missing"


def test_changes_of_a_state_are_whole_or_not() -> None:
    assert is_whole_changelog(LZ4)
    assert not any(is_whole_changelog(LZ4[:length]) for length in range(len(LZ4)))
    assert not is_whole_changelog(LZ4 + b"x")
