"""Clocks that a query begins, or ceases, to follow: lines and folders of sources find their places in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.physical.change import NamedIdentity
from watersmeet.spark.private.files import LocalFolder
from watersmeet.spark.private.writers import FORMAT
from watersmeet.spark.run.starts import check_clocks, take_clocks
from watersmeet.spark.state.owner import OWNER, Owner

MARKS, CLOCK = {"path": "marks/*.json"}, {FORMAT: "rate"}


def owner(*clocks: bool) -> Owner:
    return Owner((NamedIdentity({"clocks": list(clocks), "shards": 2}, {}),))


def file(path: str) -> dict[str, str]:
    return {"path": path}


A, B, C = file("a"), file("b"), file("c")
CHAIN = [(0, A), (1, B), (2, MARKS), (3, C), (2, MARKS)]
"""Three streams and two joins, whose marks are one source that is read twice."""
FIRST = [(0, A), (1, B), (2, MARKS), (3, CLOCK), (4, C), (2, MARKS)]
LAST = [*CHAIN, (4, CLOCK)]
LINES = {"a": '{"logOffset":4}', "b": '{"logOffset":5}', "marks": '{"logOffset":0}', "c": '{"logOffset":7}'}


def checkpoint(folder: Path, sources: list[tuple[int, dict[str, str]]], was: Owner) -> LocalFolder:
    """A checkpoint of two batches, in which each source has left its name."""
    names = [options.get("path", "17") for _, options in sources]
    lines = [LINES.get(name.removesuffix("/*.json"), name) for name in names]
    for batch in (8, 9):
        (folder / "offsets").mkdir(parents=True, exist_ok=True)
        (folder / "offsets" / str(batch)).write_text("\n".join(["v1", '{"batchTimestampMs":1}', *lines]))
    for (number, _), name in zip(sources, names, strict=True):
        (folder / "sources" / str(number)).mkdir(parents=True, exist_ok=True)
        (folder / "sources" / str(number) / "0").write_text(name)
    (folder / "state" / "0").mkdir(parents=True)
    (folder / "state" / "0" / "10.zip").write_text("rows")
    (folder / OWNER).write_text(was.to_text("4.3.0"))
    return LocalFolder(folder)


@pytest.mark.parametrize(
    ("before", "was", "after", "now"),
    [
        (CHAIN, (False, False), FIRST, (True, False)),
        (CHAIN, (False, False), LAST, (False, True)),
        (FIRST, (True, False), CHAIN, (False, False)),
        (FIRST, (True, False), LAST, (False, True)),
        (LAST, (False, True), CHAIN, (False, False)),
        (FIRST, (True, False), [*FIRST, (5, CLOCK)], (True, True)),
    ],
)
def test_sources_find_their_places(tmp_path: Path, before: Any, was: Any, after: Any, now: Any) -> None:
    folder = checkpoint(tmp_path / "q", before, owner(*was))
    check_clocks(folder, "q", owner(*was), owner(*now), after, "start anew.")
    take_clocks(folder, owner(*was), owner(*now), after, "4.3.0")
    for batch in (8, 9):
        found = (folder.path / "offsets" / str(batch)).read_text().split("\n")
        assert found[:2] == ["v1", '{"batchTimestampMs":1}']
        for line, (number, options) in zip(found[2:], after, strict=True):
            name = options.get("path", "17")
            log = folder.path / "sources" / str(number) / "0"
            if name != "17":
                assert (line, log.read_text()) == (LINES[name.removesuffix("/*.json")], name)
            elif line == "-":
                assert not log.exists()
            else:
                assert (line, log.read_text()) == ("17", "17")
    kept = [line for line, (_, options) in zip(found[2:], after, strict=True) if options == CLOCK and line == "17"]
    assert len(kept) == sum(a and b for a, b in zip(was, now, strict=True))
    assert (folder.path / "state" / "0" / "10.zip").read_text() == "rows"
    assert Owner.from_text((folder.path / OWNER).read_text(), "q", "").clocks == now
    assert [one.name for one in tmp_path.iterdir()] == ["q"]


def test_a_clock_that_looks_like_another_source_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "q", [*CHAIN, (4, CLOCK)], owner(False, False))
    rate = [*CHAIN, (4, CLOCK), (5, CLOCK)]
    with pytest.raises(WatersmeetError, match="which of Spark's sources are the clocks"):
        check_clocks(folder, "q", owner(False, False), owner(False, True), rate, "start anew.")
