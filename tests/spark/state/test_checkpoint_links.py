"""Where Spark reads a checkpoint from: its own place, or links to it where Spark would not find it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from watersmeet.spark.private.files import LocalFolder
from watersmeet.spark.state.checkpoint import readable_location


def _checkpoint(place: Path) -> Path:
    """A checkpoint in its own place, as far as its schema tells."""
    schema = place / "state" / "0" / "_stateSchema" / "default" / "0_a"
    log = place / "state" / "0" / "_metadata" / "v2" / "0"
    for file, text in ((schema, "schema"), (log, json.dumps({"path": f"file:{schema}"})), (place / "metadata", "{}")):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place


def test_a_checkpoint_is_read_in_its_own_place(tmp_path: Path) -> None:
    place = _checkpoint(tmp_path / "joined-1.2=a")
    assert readable_location(str(place), LocalFolder(place)) == f"file://{place}"


@pytest.mark.parametrize("name", ["my shop", "50%", "caf\u00e9", "a#b"])
def test_a_checkpoint_whose_path_spark_escapes_is_read_through_links(tmp_path: Path, name: str) -> None:
    place = _checkpoint(tmp_path / name)
    found = Path(readable_location(str(place), LocalFolder(place)).removeprefix("file://"))
    assert name not in str(found)
    assert (found / "metadata").read_text() == "{}"
    assert json.loads((found / "state/0/_metadata/v2/0").read_text())["path"].startswith(f"file:{found}/")
