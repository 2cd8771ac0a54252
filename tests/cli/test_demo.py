"""The demo's generator knows the truth, whatever the cut; and its folder."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from watersmeet.cli.demo import (
    DeliveryRow,
    DemoResult,
    OrderRow,
    Truth,
    Writer,
    make_streams,
    prepare_folder,
    show_result,
)
from watersmeet.errors import WatersmeetError


def punctual(
    files: Sequence[Sequence[OrderRow]] | Sequence[Sequence[DeliveryRow]], column: str, cut: int
) -> tuple[set[int], int]:
    """Positions of the rows that a run with ``cut`` files per batch takes in, and how many it drops as late.

    A row is late if it lies before the watermark that earlier batches have left: the definition, row by row.
    """
    mark: datetime | None = None
    taken: set[int] = set()
    late = position = 0
    for first in range(0, len(files), cut):
        batch = [row for file in files[first : first + cut] for row in file]
        for row in batch:
            if mark is not None and getattr(row, column) < mark:
                late += 1
            else:
                taken.add(position)
            position += 1
        times = [getattr(row, column) - timedelta(minutes=10) for row in batch]
        mark = max([*times, *([mark] if mark else [])], default=None)  # pyright: ignore[reportAssignmentType] - of Any
    return taken, late


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_the_truth_is_the_join_of_what_is_not_late(seed: int, cut: int) -> None:
    streams = make_streams(orders=600, seed=seed)
    orders = [row for file in streams.orders for row in file]
    deliveries = [row for file in streams.deliveries for row in file]
    left, late_left = punctual(streams.orders, "order_time", cut)
    right, late_right = punctual(streams.deliveries, "delivery_time", cut)
    pairs: set[tuple[int, int | None]] = set()
    for o in (orders[i] for i in left):
        partners = [
            d.delivery_id
            for d in (deliveries[i] for i in right)
            if d.order_id == o.order_id and o.order_time <= d.delivery_time <= o.order_time + timedelta(hours=2)
        ]
        pairs |= {(o.order_id, partner) for partner in partners or [None]}
    truth = streams.truth
    assert (truth.orders, truth.deliveries) == (len(orders), len(deliveries))
    assert truth.late == late_left + late_right > 0
    assert truth.pairs == pairs
    assert truth.match_count + truth.pad_count == len(pairs)


def test_the_rows_are_worth_a_demo() -> None:
    streams = make_streams()
    times = [row.order_time for file in streams.orders for row in file]
    assert sum(a > b for a, b in pairwise(times)) > 1000, "out of order"
    assert len(times) == 20_000
    assert min(streams.truth.match_count, streams.truth.pad_count) > 1000
    assert streams == make_streams()


def test_the_writer_writes_every_row_once(tmp_path: Path) -> None:
    streams = make_streams(orders=300)
    with Writer(streams, tmp_path, seconds=0) as writer:
        writer._thread.join()  # pyright: ignore[reportPrivateUsage]
    files = sorted((tmp_path / "orders").iterdir())
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [row["order_id"] for row in rows] == [row.order_id for file in streams.orders for row in file]
    assert {file.name[0] for file in files} == {"0"}, "no hidden file is left"
    stamps = [file.stat().st_mtime_ns for file in files]
    assert stamps == sorted(stamps), "Spark reads files in the order of their times"


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(WatersmeetError, match="FOLDER_NOT_EMPTY"):
        prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_the_demo_may_run_again_but_not_over_an_edited_query(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    prepare_folder(folder)
    (folder / "data" / "orders" / "old.json").write_text("")
    prepare_folder(folder)
    assert not (folder / "data" / "orders" / "old.json").exists()
    (folder / "sql" / "delivered.sql").write_text("edited")
    with pytest.raises(WatersmeetError, match="was edited"):
        prepare_folder(folder)


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        (DemoResult(Counter({(1, 11): 1, (2, None): 1}), (), late=3), True),
        (DemoResult(Counter({(1, 11): 1, (2, None): 1}), (), late=2), False),
        (DemoResult(Counter({(1, 12): 1, (2, None): 1}), (), late=3), False),
        (DemoResult(Counter({(1, 11): 2, (2, None): 1}), (), late=3), False),
        (DemoResult(Counter({(1, 11): 1}), (), late=3), False),
    ],
)
def test_a_difference_from_the_truth_is_seen(found: DemoResult, is_right: bool) -> None:
    truth = Truth(2, 1, frozenset({(1, 11), (2, None)}), late=3)
    shown = Console(file=io.StringIO())
    assert show_result(found, truth, shown) is is_right
