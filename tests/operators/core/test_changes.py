"""Z-set arithmetic: rows are put together by what they show, down to the last bit of nested values."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.table_strategies import tuples

from watersmeet.operators.changelog.definition import freeze_bits, is_same
from watersmeet.operators.core.changes import (
    WEIGHT,
    ChangeBuffer,
    concat_tables,
    consolidate_changes,
    key_ids,
    row_codes,
)

FLOATS = st.sampled_from([0.0, -0.0, math.nan, 1.5, None])
ENTRIES = pa.map_(pa.string(), pa.list_(pa.int32()))
STRUCTS = st.fixed_dictionaries({"a": FLOATS, "b": st.sampled_from([1, None])})
ONES = st.lists(st.just(1), max_size=1)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integer": (pa.int16(), st.sampled_from([1, 2, None])),
    "double": (pa.float64(), FLOATS),
    "float": (pa.float32(), FLOATS),
    "text": (pa.string(), st.sampled_from(["", "a", "ab", None])),
    "bytes": (pa.binary(), st.sampled_from([b"", b"a", None])),
    "decimal": (pa.decimal128(20, 2), st.sampled_from([Decimal("1.10"), Decimal("-1.10"), None])),
    "truth": (pa.bool_(), st.sampled_from([True, False, None])),
    "date": (pa.date32(), st.dates().filter(lambda d: d.year > 1900) | st.none()),
    "nothing": (pa.null(), st.none()),
    "list": (pa.list_(pa.float64()), st.lists(FLOATS, max_size=2) | st.none()),
    "lists": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.sampled_from("ab"), max_size=2), max_size=2)),
    "struct": (pa.struct([("a", pa.float64()), ("b", pa.int64())]), STRUCTS | st.none()),
    "empty": (pa.struct([]), st.sampled_from([{}, None])),
    "map": (ENTRIES, st.lists(st.tuples(st.sampled_from("ab"), ONES), max_size=2) | st.none()),
    "fixed": (pa.list_(pa.int64(), 2), st.sampled_from([[1, 2], [2, 1], None])),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Changes with columns of one to three types, in chunks, perhaps a slice of more."""
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(0, 8))
    columns = [pa.array([draw(KINDS[name][1]) for _ in range(rows)], KINDS[name][0]) for name in names]
    weights = pa.array([draw(st.sampled_from([1, -1, 2])) for _ in range(rows)], pa.int64())
    table = pa.Table.from_arrays([*columns, weights], names=[*names, WEIGHT])
    cut, start = draw(st.integers(0, rows)), draw(st.integers(0, min(rows, 2)))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)]).slice(start)


def bag(table: pa.Table) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for row in tuples(table):
        found[freeze_bits(row[:-1])] += row[-1]
    return {row: number for row, number in found.items() if number}


@settings(derandomize=True, max_examples=examples(60), deadline=None, database=None)
@given(tables())
def test_equal_rows_are_merged(table: pa.Table) -> None:
    found = consolidate_changes(table, table.column_names[:-1])
    assert bag(found) == bag(table)
    assert found.num_rows == len(bag(table))
    assert found.schema.equals(table.schema)


@settings(derandomize=True, max_examples=examples(50), deadline=None, database=None)
@given(tables())
def test_codes_and_ids_are_equal_where_keys_are(table: pa.Table) -> None:
    keys = table.column_names[:-1]
    ids, codes, rows = key_ids(table, keys), row_codes(table, keys), [row[:-1] for row in tuples(table)]
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            equal = all(is_same(a, b) for a, b in zip(one, other, strict=True))
            assert (ids[i] == ids[j]) == equal
            assert (codes[i] == codes[j]) == equal


def test_codes_never_change() -> None:
    table = pa.table({"a": [1, None], "b": ["x", ""], "c": [[1.5], None]})
    assert row_codes(table, ["a", "b", "c"]).tolist() == CODES


CODES = [1152071924354248645, 6634346259337869136]


def test_codes_spread() -> None:
    texts = [f"customer-{i}" for i in range(20_000)]
    assert len(np.unique(row_codes(pa.table({"t": texts}), ["t"]))) == len(texts)
    assert len(np.unique(row_codes(pa.table({"i": np.arange(20_000)}), ["i"]) >> 48)) > 17_000


def test_names_may_occur_twice() -> None:
    table = pa.Table.from_arrays([pa.array(c) for c in ([1, 1], ["a", "a"], [2, 3])], names=["x", "x", WEIGHT])
    assert tuples(consolidate_changes(table, ["x", "x"])) == [(1, "a", 5)]


def test_rows_without_columns_are_all_equal() -> None:
    assert consolidate_changes(pa.table({WEIGHT: [1, 2]}), []).to_pydict() == {WEIGHT: [3]}
    assert consolidate_changes(pa.table({WEIGHT: [1, -1]}), []).num_rows == 0


@settings(derandomize=True, max_examples=examples(30), deadline=None, database=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, -1])), max_size=5)), st.integers(1, 9))
def test_pieces_add_up(parts: list[list[tuple[int, int]]], size: int) -> None:
    gathering, out = ChangeBuffer(("a",), size), []
    tables = [
        pa.table({"a": [a for a, _ in part], WEIGHT: pa.array([w for _, w in part], pa.int64())}) for part in parts
    ]
    for table in tables:
        out += gathering.add(table)
    out += gathering.flush()
    expected: Counter[Any] = Counter()
    for table in tables:
        expected.update(bag(table))
    found: Counter[Any] = Counter()
    for table in out:
        found.update(bag(table))
    assert {row: n for row, n in found.items() if n} == {row: n for row, n in expected.items() if n}
    if sum(table.num_rows for table in tables) < size:
        assert len(out) <= 1


def test_a_piece_of_which_nothing_is_left_does_not_come_out() -> None:
    gathering = ChangeBuffer(("a",), 2)
    assert list(gathering.add(pa.table({"a": [1, 1], WEIGHT: [1, -1]}))) == []
    assert list(gathering.flush()) == []


def test_parts_may_differ_in_the_time_zone_that_is_shown() -> None:
    parts = [pa.table({"t": pa.array([1], pa.timestamp("us", zone))}) for zone in ("UTC", "Europe/Vienna")]
    assert concat_tables(parts).column("t").cast(pa.int64()).to_pylist() == [1, 1]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view()])
def test_texts_of_every_form_have_a_code(kind: pa.DataType) -> None:
    codes = row_codes(pa.table({"t": pa.array([b"a", b"b", b"a"]).cast(kind)}), ["t"])
    assert codes[0] == codes[2] != codes[1]
