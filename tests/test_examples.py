"""Rows that are told of: which are pairs and which died alone, as far as their columns can tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from watersmeet.joins.core.operator import Family
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.shard import LATE_BY, LATE_COLUMN
from watersmeet.observe.progress import Progress
from watersmeet.page.rows import Rows
from watersmeet.spark.exchange.examples import CHARACTERS, ROWS, Examples


def examples(left: tuple[str, ...], right: tuple[str, ...]) -> Examples:
    sides = (Port(left, times=("l.t",), keys=("l.k",)), Port(right, times=("r.t",), keys=("r.k",)))
    return Examples(cast("Family", SimpleNamespace(sides=sides)))


def told(found: Examples) -> dict[str, Any]:
    return found.kept


def test_a_key_or_a_time_tells_pairs_from_rows_alone() -> None:
    found = examples(("l.v", "l.k"), ("r.v", "r.t"))
    found.take(pa.table({"l.v": [None, 1], "l.k": [1, 2], "r.v": [None, None], "r.t": [5, None], "#x": [0, 0]}))
    assert told(found) == {
        "matched": [{"l.v": None, "l.k": "1", "r.v": None, "r.t": "5"}],
        "padded": [{"l.v": "1", "l.k": "2", "r.v": None, "r.t": None}],
    }


def test_where_no_column_tells_it_is_not_guessed() -> None:
    found = examples(("l.k",), ("r.v",))
    found.take(pa.table({"l.k": [1], "r.v": pa.array([None], pa.int64())}))
    assert list(told(found)) == ["joined"]


def test_an_operator_that_says_which_side_is_missing_is_believed() -> None:
    found = examples(("l.k",), ("r.v",))
    found.take(pa.table({"l.k": [1, 2], "r.v": [0, 0], "#padded": [-1, 1]}))
    assert {kind: rows[0]["l.k"] for kind, rows in told(found).items()} == {"matched": "1", "padded": "2"}


def test_what_has_one_side_joins_nothing() -> None:
    found = Examples(cast("Family", SimpleNamespace(sides=(Port(("l.k",), keys=("l.k",)),))))
    found.take(pa.table({"l.k": [1, None]}))
    assert list(told(found)) == ["out"]


def test_few_rows_and_short_values() -> None:
    found = examples(("l.k",), ())
    found.take(pa.table({"l.k": ["x" * 1000] * 50}))
    assert [len(row["l.k"]) for row in told(found)["matched"]] == [CHARACTERS] * ROWS
    assert examples(("l.k",), ()).kept == {}


@pytest.mark.parametrize(("by", "why"), [(540_000_000, "9 min behind the watermark of l.t"), (None, "had ended (l.t)")])
def test_late_rows_say_what_they_missed(by: int | None, why: str) -> None:
    found = examples(("l.k",), ())
    late = pa.table({"l.k": [7], LATE_COLUMN: ["l.t"], LATE_BY: pa.array([by], pa.int64())})
    found.late([late])
    rows = Rows()
    rows.take(Progress("q", 3, examples={"l and r": told(found)}, temporal=frozenset({"l.t"})))
    [table] = cast("list[dict[str, Any]]", rows.shown("q")["kinds"])
    assert (
        table["rows"][0]["values"] == ["7"] and why in table["rows"][0]["why"] and "batch 3" in table["rows"][0]["why"]
    )
    assert rows.shown("other")["kinds"] == []
