"""Rows that are told of: which are pairs and which died alone, as far as their columns can tell."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.metrics.progress import Progress
from watersmeet.operators.core.operator import Port, StreamOperator
from watersmeet.operators.core.python_values import arrow_values, python_values
from watersmeet.operators.core.rowwise import compare, event_time
from watersmeet.operators.state.shard import LATE_BY, LATE_COLUMN
from watersmeet.spark.exchange.output import MAX_CHARACTERS, ROWS_PER_KIND, Examples
from watersmeet.tools.studio.page.model import RowSamples
from watersmeet.tools.testing.case import CaseBatch, Outcome
from watersmeet.tools.testing.case import compare as compare_case


def examples(left: tuple[str, ...], right: tuple[str, ...]) -> Examples:
    sides = (Port(left, times=("l.t",), keys=("l.k",)), Port(right, times=("r.t",), keys=("r.k",)))
    return Examples(cast("StreamOperator", SimpleNamespace(ports=sides)))


def rows_by_kind(found: Examples) -> dict[str, Any]:
    return found.by_kind


def test_a_key_or_a_time_tells_pairs_from_rows_alone() -> None:
    found = examples(("l.v", "l.k"), ("r.v", "r.t"))
    found.take(pa.table({"l.v": [None, 1], "l.k": [1, 2], "r.v": [None, None], "r.t": [5, None], "#x": [0, 0]}))
    assert rows_by_kind(found) == {
        "matched": [{"l.v": None, "l.k": "1", "r.v": None, "r.t": "5"}],
        "padded": [{"l.v": "1", "l.k": "2", "r.v": None, "r.t": None}],
    }


def test_sides_without_a_telltale_column_are_not_guessed() -> None:
    found = examples(("l.k",), ("r.v",))
    found.take(pa.table({"l.k": [1], "r.v": pa.array([None], pa.int64())}))
    assert list(rows_by_kind(found)) == ["joined"]


def test_an_operator_that_says_which_side_is_missing_is_believed() -> None:
    found = examples(("l.k",), ("r.v",))
    found.take(pa.table({"l.k": [1, 2], "r.v": [0, 0], "#padded": [-1, 1]}))
    assert {kind: rows[0]["l.k"] for kind, rows in rows_by_kind(found).items()} == {"matched": "1", "padded": "2"}


def test_operators_of_one_side_give_no_examples() -> None:
    found = Examples(cast("StreamOperator", SimpleNamespace(ports=(Port(("l.k",), keys=("l.k",)),))))
    found.take(pa.table({"l.k": [1, None]}))
    assert list(rows_by_kind(found)) == ["out"]


def test_few_rows_and_short_values() -> None:
    found = examples(("l.k",), ())
    found.take(pa.table({"l.k": ["x" * 1000] * 50}))
    assert [len(row["l.k"]) for row in rows_by_kind(found)["matched"]] == [MAX_CHARACTERS] * ROWS_PER_KIND
    assert examples(("l.k",), ()).by_kind == {}


@pytest.mark.parametrize(("by", "why"), [(540_000_000, "9 min behind the watermark of l.t"), (None, "had ended (l.t)")])
def test_late_rows_say_what_they_missed(by: int | None, why: str) -> None:
    found = examples(("l.k",), ())
    late = pa.table({"l.k": [7], LATE_COLUMN: ["l.t"], LATE_BY: pa.array([by], pa.int64())})
    found.take_late([late])
    rows = RowSamples()
    rows.take(Progress("q", 3, examples={"l and r": rows_by_kind(found)}, temporal=frozenset({"l.t"})))
    [table] = cast("list[dict[str, Any]]", rows.to_json("q")["kinds"])
    assert (
        table["rows"][0]["values"] == ["7"] and why in table["rows"][0]["why"] and "batch 3" in table["rows"][0]["why"]
    )
    assert rows.to_json("other")["kinds"] == []


def not_utf8(count: int) -> pa.Array:
    """Texts as Spark may have them: it does not check what it casts to STRING."""
    data = b"".join(b"\xff%d" % (n % 10) for n in range(count))
    offsets = np.arange(0, 2 * count + 1, 2, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


FAR = [2**63 - 1, 253_402_300_800_000_000, -62_135_596_800_000_001, 1 - 2**63, -(2**63)]
"""Microseconds of times that no `datetime` can hold."""
ODD_ZONES = ["GMT+01:00", "UTC+1", "UT-05:30", "+01:02:03", "Z", "-18:00", "Nowhere/At_all"]


def odd_values() -> dict[str, pa.Array]:
    moments, text = pa.array(FAR).cast(pa.timestamp("us")), not_utf8(5)
    every = pa.array(range(6), pa.int32())
    days = pa.array([2_932_897, -800_000, 2**31 - 1, -(2**31), 0], pa.int32()).cast(pa.date32())
    found = {
        "text": text, "moments": moments, "dates": days, "nulls": pa.nulls(5),
        "in a list": pa.ListArray.from_arrays(every, moments), "in a map": pa.MapArray.from_arrays(every, text, days),
        "in a struct": pa.StructArray.from_arrays([text, moments], names=["a", "b"]),
        "a name twice": pa.StructArray.from_arrays([text, moments], names=["a", "a"]),
        "in a list of structs": pa.ListArray.from_arrays(every, pa.StructArray.from_arrays([text, days], ["a", "b"])),
        "from a dictionary": pa.DictionaryArray.from_arrays(pa.array([4, 3, 2, 1, 0]), text),
        "not numbers": pa.array([math.nan, math.inf, -math.inf, -0.0, None]),
        "decimals": pa.array([Decimal("9" * 38)] * 5, pa.decimal128(38, 0)),
        "intervals": pa.array(FAR).cast(pa.duration("us")),
        "months": pa.array([(2**31 - 1, 0, 0)] * 5, pa.month_day_nano_interval()),
        "binary": pa.array([b"\xff"] * 5), "times of day": pa.array([86_399_999_999] * 5).cast(pa.time64("us")),
    }  # fmt: skip
    return found | {f"at {zone}": moments.cast(pa.timestamp("us", zone)) for zone in ODD_ZONES}


@pytest.mark.parametrize("name", odd_values())
def test_a_value_that_python_cannot_hold_is_shown_as_text(name: str) -> None:
    column = odd_values()[name]
    found = examples(("l.k", "l.v"), ())
    found.take(pa.table({"l.k": range(5), "l.v": column}))
    found.take_late([pa.table({"l.v": column, LATE_COLUMN: ["l.t"] * 5, LATE_BY: pa.array([1] * 5)})])
    assert {*rows_by_kind(found)} == {"matched", "late"}
    assert json.loads(json.dumps(rows_by_kind(found))) == rows_by_kind(found)
    again = [row["l.v"] for row in rows_by_kind(found)["matched"]]
    assert [text is None for text in again] == [not one.is_valid for one in column[-ROWS_PER_KIND:]]
    if name not in ("a name twice", "from a dictionary"):
        values = python_values(column)
        assert repr(python_values(arrow_values(values, column.type))) == repr(values)
    if not name.startswith(("nulls", "not numbers", "months", "decimals", "binary", "times")):
        assert len({*again}) == len(again), "different values look different"


def test_a_time_beyond_the_calendar_keeps_its_number() -> None:
    """Definitions and `why` compare rows by it."""
    values = python_values(pa.array(FAR).cast(pa.timestamp("us", "GMT+01:00")))
    assert [event_time(value) for value in values] == FAR
    assert values[1] == "+10000-01-01 00:00:00+00:00"
    assert values[2] == "0000-12-31 23:59:59.999999+00:00"
    assert compare(values[2], values[1]) == -1
    near = python_values(pa.array([0]).cast(pa.timestamp("us", "GMT+01:00")))
    assert str(near[0]) == "1970-01-01 01:00:00+01:00"


def test_rows_that_cannot_be_shown_are_counted_and_fail_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(table: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr("watersmeet.spark.exchange.output.python_rows", fail)
    found = examples(("l.k",), ())
    found.take(pa.table({"l.k": [1]}))
    found.take(pa.table({"l.k": [1]}))
    found.take_late([pa.table({"l.k": [7], LATE_COLUMN: ["l.t"], LATE_BY: pa.array([1])})])
    assert rows_by_kind(found) == {"dropped": [{"times": "3", "reason": "MemoryError: too much"}]}
    rows = RowSamples()
    rows.take(Progress("q", 3, examples={"l and r": rows_by_kind(found)}))
    [table] = cast("list[dict[str, Any]]", rows.to_json("q")["kinds"])
    assert table["name"].startswith("Not shown")


def test_a_case_shows_and_compares_values_that_python_cannot_hold() -> None:
    out = pa.table({"t": pa.array(FAR[:1]).cast(pa.timestamp("us", "Z")), "s": not_utf8(1)})
    right, wrong = ("+294247-01-10 04:00:54.775807+00:00", "\\xff0"), ("2024-01-01", "x")
    assert compare_case(CaseBatch(out=(right,)), Outcome((out,))) is None
    difference = compare_case(CaseBatch(out=(wrong,)), Outcome((out,)))
    assert difference is not None and "+294247-01-10" in difference and "\\\\xff0" in difference
