"""Records of a shard in one order, whichever they come in, in memory or in a file."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from watersmeet.spark.exchange.packing import to_blob
from watersmeet.spark.exchange.stateful import InputBuffer, SpillFile

BLOBS = [(port, to_blob([pa.record_batch({"a": [10 * n + port] * 20})], place=n)) for n in range(12) for port in (0, 1)]
SIZE = len(BLOBS[0][1])


def parts(order: list[tuple[int, bytes]], size: int, file: SpillFile, every: int = 0) -> list[dict[int, list[int]]]:
    """The numbers of blobs in each part; port 1 waits for the whole batch."""
    arrivals = InputBuffer(frozenset({0}))
    for number, (port, blob) in enumerate(order):
        arrivals.add(port, blob)
        if every and number % every == 0:
            arrivals.spill(file)
            assert not arrivals.bytes
    found = list(arrivals.parts(size))
    assert [is_last for _, is_last in found] == [False] * (len(found) - 1) + [True]
    return [{port: table["a"].to_pylist()[::20] for port, table in tables.items()} for tables, _ in found]


@pytest.mark.parametrize("every", [0, 1, 5])
def test_parts_are_the_same_in_every_order(tmp_path: Path, every: int) -> None:
    file = SpillFile(str(tmp_path))
    expected = parts(BLOBS, 3 * SIZE, file)
    assert [part.get(0) for part in expected] == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90, 100, 110]]
    assert [len(part.get(1, [])) for part in expected] == [0, 0, 12]
    for seed in range(5):
        order = Random(seed).sample(BLOBS, len(BLOBS))
        assert parts(order, 3 * SIZE, file, every) == expected
    file.close()


def test_a_batch_that_fits_comes_whole(tmp_path: Path) -> None:
    (found,) = parts(BLOBS, 100 * SIZE, SpillFile(str(tmp_path)))
    assert found == {port: [10 * n + port for n in range(12)] for port in (0, 1)}


def test_a_file_is_made_when_it_is_needed_and_leaves_nothing(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path))
    file.close()
    spilled = file.put(BLOBS[3][1])
    assert spilled.read() == BLOBS[3][1] and spilled.place == 1 and file.put(b"" + BLOBS[4][1]).start == SIZE
    assert list(tmp_path.iterdir()) == []
    file.close()
    with pytest.raises(ValueError, match="closed"):
        spilled.read()


def test_late_rows_alone_are_a_part_too() -> None:
    arrivals = InputBuffer(frozenset({0}))
    arrivals.add_late(0, b"late")
    assert list(arrivals.parts(0)) == [({}, True)]
    assert arrivals.ports == {0} and arrivals.late == [b"late"]
