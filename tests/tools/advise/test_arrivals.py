"""What is found in rows, one kind of finding after the other."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from tests.tools.advise.generated import SECOND, START, Truth

from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.queries import analyze, read_script
from watersmeet.tools.advise.arrivals import (
    SampledRows,
    advise_table,
    codes_of,
    disorder,
    join_pairs,
    numbers_of,
    pauses,
    skew,
    skip_notes,
)
from watersmeet.tools.advise.distances import KeyedTimes, bounds_of, distances
from watersmeet.tools.advise.pair import AdviceRequest, PairAdvice, advise_pair
from watersmeet.tools.advise.report import Advice

TYPES = {"int64": "BIGINT", "string": "STRING", "timestamp[us]": "TIMESTAMP_NTZ", "date32[day]": "DATE"}


def arrivals(name: str, columns: dict[str, object], time: str = "", **more: object) -> SampledRows:
    table = pa.table(columns)
    fields = tuple(Field(f.name, TYPES.get(str(f.type), "TIMESTAMP")) for f in table.schema)
    marks = (Watermark(time, Amount(0, is_interval=True)),) if time else ()
    return SampledRows(Source(name, fields, marks, **more), table)  # pyright: ignore[reportArgumentType]


def advice_of(left: SampledRows, right: SampledRows, **more: object) -> PairAdvice:
    found = advise_pair(AdviceRequest(left, right, **more))  # pyright: ignore[reportArgumentType]
    assert found is not None
    return found


def test_rows_at_the_end_do_not_make_distances_seem_short() -> None:
    """Half of the partners of the last rows are beyond the end: what is left of them are the near ones."""
    times = np.arange(10_000) * SECOND
    apart = np.random.default_rng(0).integers(0, 2000, 10_000) * SECOND
    known = times + apart < times[-1]
    left = KeyedTimes(np.arange(10_000), times)
    right = KeyedTimes(np.arange(10_000)[known], (times + apart)[known])
    found = distances(left, right)
    assert found is not None and found.left_out > 1500 and not found.is_short
    assert abs(found.quantile(0.5) / SECOND - 1000) < 50
    assert found.within(0, 1000 * SECOND) == pytest.approx(0.5, abs=0.03)


def test_of_keys_with_many_rows_the_nearest_is_the_partner() -> None:
    rng = np.random.default_rng(1)
    codes, times = rng.integers(0, 5, 5000), np.arange(5000) * SECOND
    order = np.lexsort((times, codes))
    left = KeyedTimes(codes[order], times[order])
    found = distances(left, KeyedTimes(left.codes, left.times + 2 * SECOND // 10))
    assert found is not None and (found.pairing, found.quantile(0.99)) == ("nearest", 2 * SECOND // 10)
    assert bounds_of(found, 1.0).later >= found.values[-1]


def test_a_bound_reaches_to_both_sides() -> None:
    codes = np.arange(1000)
    times = codes * SECOND
    found = distances(KeyedTimes(codes, times), KeyedTimes(codes, times + np.where(codes % 2, 30, -20) * SECOND))
    assert found is not None
    bounds = bounds_of(found, 1.0)
    assert (bounds.earlier, bounds.later, bounds.keeps) == (20 * SECOND, 30 * SECOND, 1.0)


def test_partitions_are_out_of_order_by_themselves_only() -> None:
    times, there = np.array([100, 1, 200, 2, 150]), np.ones(5, np.bool_)
    assert disorder(times, there).behind.tolist() == [0, 0, 50, 99, 198]
    assert disorder(times, there, np.array([0, 1, 0, 1, 0])).behind.tolist() == [0, 0, 0, 0, 50]


def test_null_keys_and_times_are_no_pairs() -> None:
    left = pa.array([1, None, 3]), pa.array(["a", "b", None])
    right = pa.array([1, None, 3]), pa.array(["a", "b", "c"])
    mine, other = codes_of(left, right)
    assert mine[0] == other[0] >= 0 and mine.tolist()[1:] == [-1, -1] and other[1] == -1 != other[2]
    times, there = numbers_of(pa.array([None, 5]))
    assert len(KeyedTimes.of(np.array([0, 0]), times, there)) == 1


def test_a_side_that_pauses_is_reported_when_it_is_idle() -> None:
    own = np.concatenate([np.arange(2000), 50_000 + np.arange(2000)]) * SECOND
    found = pauses(own, np.arange(0, 60_000, 5) * SECOND)
    assert found is not None and (found.count, found.longest) == (1, 48_001 * SECOND)
    assert SECOND < found.idle_after < 20 * SECOND and found.waiting > 9000
    assert pauses(np.arange(4000) * SECOND, np.arange(4000) * SECOND) is None, "no pause"
    assert pauses(own, np.array([0, 10**12])) is None, "nobody waits"


def test_heavy_keys_end_what_cores_can_do() -> None:
    found = skew(pa.array(["x"] * 500 + [str(n) for n in range(500)]))
    assert found.heaviest[0] == ("x", 0.5) and found.most_cores == 2
    assert skew(pa.array(list(range(1000)))).most_cores is None


@pytest.mark.parametrize(
    ("ids", "change", "looks_static"),
    [([1, 2, 3], None, True), ([1, 2, 1], None, False), ([1, 2, 3], ["+", "+", "-"], False)],
)
def test_tables_that_never_change(ids: list[int], change: list[str] | None, looks_static: bool) -> None:
    columns: dict[str, object] = {"id": ids, "name": ["a", "b", "c"], **({"_change": change} if change else {})}
    table = arrivals("customers", columns, kind="table", primary_key=("id",))
    found = advise_table(table)
    assert found is not None and found.is_static is looks_static
    assert ("static 'true'" in Advice.of([], [found])) is looks_static
    assert advise_table(replace(table, source=replace(table.source, options={"static": "true"}))) is None


def test_proposals_may_run_whatever_the_columns_are_called() -> None:
    rng = np.random.default_rng(2)
    ids, times = rng.permutation(500), START + np.arange(500) * SECOND
    moment = pa.array(times).cast(pa.timestamp("us", "UTC"))
    left = arrivals("my orders", {"order id": ids, "select": moment, "x": ["a"] * 500}, "select", format="json",
                    options={"path": "it's", "maxFilesPerTrigger": "1"})  # fmt: skip
    right = arrivals("r", {"order id": ids, "select": moment, "x": ["b"] * 500})
    for kind in ("inner", "left", "full", "semi"):
        found = Advice.of([advice_of(left, right, kind=kind, aliases=("a", "b"))])
        [query] = analyze(read_script(found.sql))
        assert found.pairs[0].sides[1].is_guessed and "is used as the event time" in found
        assert len(query.outputs) == (3 if kind == "semi" else 6)


def test_days_and_numbers_are_bounded_in_their_own_units() -> None:
    ids = np.arange(400)
    days = pa.array(ids // 10).cast(pa.int32()).cast(pa.date32())
    later = pa.array(ids // 10 + ids % 3).cast(pa.int32()).cast(pa.date32())
    found = Advice.of(
        [advice_of(arrivals("a", {"id": ids, "day": days}, "day"), arrivals("b", {"id": ids, "day": later}, "day"))]
    )
    assert "INTERVAL 2 DAYS" in found.sql and analyze(read_script(found.sql))
    numbers = [arrivals(name, {"id": ids * 5, "n": ids * 10 + more}, "n") for name, more in (("a", 0), ("b", 7))]
    numbers = [
        replace(one, source=replace(one.source, watermarks=(Watermark("n", Amount(0, False)),))) for one in numbers
    ]
    found = Advice.of([advice_of(*numbers, keys=(("id", "id"),))])
    assert "BETWEEN l.n AND l.n + 7" in found.sql and analyze(read_script(found.sql))


def test_the_findings_are_data_and_a_picture() -> None:
    found = Advice.of([advice_of(*Truth(rows=3000).streams(1))], notes=["v is a view."])
    data = json.loads(json.dumps(found.data))
    [pair] = data["pairs"]
    assert pair["proposed"]["later"] >= pair["distances"]["median"] and data["sql"] == found.sql
    assert pair["left"]["column_bytes"]["id"] == 8 and pair["left"]["keys"] == 3000
    drawing = ElementTree.fromstring(found.svg)
    assert len(drawing.findall(".//{*}polyline")) == 2 and "v is a view." in found
    assert found._repr_html_().startswith("<img ")


def test_without_partners_nothing_is_proposed() -> None:
    left, right = Truth(rows=500).streams(1)
    right = replace(right, rows=right.rows.set_column(0, "order_id", pa.array(np.arange(right.rows.num_rows) + 10**9)))
    found = Advice.of([advice_of(left, right, keys=(("id", "order_id"),))])
    assert "No row of orders has a partner" in found and not found.sql
    nothing = replace(left, rows=left.rows.slice(0, 0))
    assert advise_pair(AdviceRequest(nothing, right)) is None


SCRIPT = """
CREATE STREAM a (id BIGINT, k STRING, t TIMESTAMP);
CREATE STREAM b (id BIGINT, k STRING, u TIMESTAMP);
CREATE TABLE c (id BIGINT, name STRING, PRIMARY KEY (id));
"""


@pytest.mark.parametrize(
    ("query", "pairs"),
    [
        ("", [("a", "b", (), ())]),
        (
            "SELECT STREAM x.id FROM a x JOIN b y ON y.id = x.id AND x.k = 'v'",
            [("x", "y", (("id", "id"),), ("x.k = 'v'",))],
        ),
        ("SELECT STREAM a.id FROM a JOIN b USING (id, k)", [("a", "b", (("id", "id"), ("k", "k")), ())]),
        ("SELECT STREAM a.id FROM a JOIN b ON lower(a.k) = b.k", [("a", "b", (), ("lower(a.k) = b.k",))]),
        (
            "SELECT STREAM a.id FROM a JOIN b ON a.id = b.id JOIN c ON b.id = c.id",
            [("b", "c", (("id", "id"),), ()), ("a", "b", (("id", "id"),), ())],
        ),
    ],
)
def test_the_joins_of_a_script_that_may_not_run_yet(query: str, pairs: list[object]) -> None:
    found = join_pairs(read_script(SCRIPT + query + (";" if query else "")))
    assert [(*pair.aliases, pair.keys, pair.unread) for pair in found] == pairs


def test_views_are_not_looked_at() -> None:
    script = read_script(
        f"{SCRIPT} WITH v AS (SELECT STREAM id, t FROM a) SELECT STREAM v.id FROM v JOIN b ON v.id = b.id;"
    )
    assert skip_notes(script)[0].startswith("v is a view") and join_pairs(script) == ()


def test_joins_without_bounds_of_time_are_not_looked_at() -> None:
    windows = f"{SCRIPT} SELECT STREAM a.id FROM a WINDOW (COUNT 5) JOIN b WINDOW (COUNT 5) ON a.id = b.id;"
    union = f"{SCRIPT} SELECT STREAM x.id FROM (SELECT * FROM a UNION ALL SELECT * FROM b) x JOIN b ON x.id = b.id;"
    for text, said in ((windows, "a and b has no time bounds"), (union, "x is a union")):
        script = read_script(text)
        assert join_pairs(script) == () and any(said in note for note in skip_notes(script))


def test_current_values_are_shown_next_to_proposed_ones() -> None:
    left, right = Truth("even", reach=100, disorder=0, rows=3000, spacing=1).streams(1)
    mark = Watermark("at", Amount(500 * SECOND, is_interval=True))
    found = advice_of(replace(left, source=replace(left.source, watermarks=(mark,))), right, bounds=(0, 50 * SECOND))
    assert found.now is not None and found.now.bounds.keeps == pytest.approx(0.5, abs=0.05)
    assert found.now.rows[1] == pytest.approx(500 * found.sides[1].rate * SECOND)
    text = Advice.of([found])
    assert text.count("<- now") == 2 and text.data["pairs"][0]["left"]["declared_lag"] == 500 * SECOND  # pyright: ignore
