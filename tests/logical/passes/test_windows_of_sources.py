"""Windows of sources in joins, views and groups: what their ends bound, and where they do not."""

from __future__ import annotations

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedJoin
from watersmeet.queries import analyze, read_script

STREAMS = """
CREATE STREAM a (k BIGINT, v STRING, t TIMESTAMP, WATERMARK FOR t AS t - 5s);
CREATE STREAM b (k BIGINT, w STRING, t TIMESTAMP, WATERMARK FOR t AS t - 5s);
"""
A, B = (f"TABLE(TUMBLE(TABLE {name}, DESCRIPTOR(t), INTERVAL '5' MINUTES))" for name in "ab")
SAME = "ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end"


def query(text: str, streams: str = STREAMS, **more: str) -> AnalyzedQuery:
    [found] = analyze(read_script(f"{streams} {text};"), **more)  # pyright: ignore[reportArgumentType]
    return found


def bounds(found: AnalyzedQuery) -> list[str]:
    assert isinstance(found.relation, AnalyzedJoin)
    return [bounded.by for bounded in found.relation.state_bounds]


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
def test_an_equality_of_ends_bounds_a_join_by_time(kind: str) -> None:
    shown = "l.v" if kind.startswith(("LEFT S", "LEFT A")) else "l.v, r.w"
    assert bounds(query(f"SELECT STREAM {shown} FROM {A} l {kind} {B} r {SAME}")) == ["time"]


def test_ends_go_through_views_that_show_the_time() -> None:
    named = f"WITH x AS (SELECT STREAM k, t AS at, window_start AS s, window_end AS e FROM {A})"
    joined = query(f"{named} SELECT STREAM x.k, r.w FROM x JOIN {B} r ON x.k = r.k AND x.e = r.window_end")
    assert bounds(joined) == ["time"]
    grouped = query(f"{named} SELECT TABLE s, count(*) AS n FROM x GROUP BY s, e")
    assert grouped.group is not None
    assert (grouped.group.window, str(grouped.group.time)) == ("k1", "x.at")


def test_joins_of_one_window_follow_each_other() -> None:
    chain = f"SELECT STREAM x.v, y.v AS u, z.w FROM {A} x JOIN {A} y USING (k, window_start, window_end) JOIN {B} z"
    assert bounds(query(f"{chain} ON y.k = z.k AND y.window_end = z.window_end")) == ["time"]


def test_a_group_of_ends_that_may_be_padded_never_ends() -> None:
    joined = f"{A} l LEFT JOIN {B} r {SAME}"
    ends = ("l.window_end", "r.window_end")
    both = [query(f"SELECT TABLE {end}, count(*) AS n FROM {joined} GROUP BY {end}") for end in ends]
    assert [str(one.group and one.group.time) for one in both] == ["l.t", "None"]


def test_batches_need_no_watermark() -> None:
    plain = STREAMS.replace(", WATERMARK FOR t AS t - 5s", "")
    assert bounds(query(f"SELECT STREAM l.v, r.w FROM {A} l LEFT JOIN {B} r {SAME}", plain, inputs="batches")) == [
        "time"
    ]


OUT = "CREATE SINK out USING json OPTIONS (path 'out'); INSERT INTO out"
MISNAMED = A.replace("(t)", "(§tt)")


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT STREAM k, window_start, count(*) AS n FROM {MISNAMED} GROUP BY k, window_start, window_end",
        f"SELECT STREAM k, v FROM {MISNAMED} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY v) <= 2",
        f"SELECT STREAM k, v FROM {A} QUALIFY ROW_NUMBER() OVER (PARTITION BY §tt ORDER BY v) <= 2",
        f"{OUT} SELECT STREAM k, v FROM {A} QUALIFY ROW_NUMBER() OVER (PARTITION BY §tt ORDER BY v) <= 2",
        "SELECT STREAM k, count(*) AS n FROM a GROUP BY k, window(§tt, '5 minutes')",
        "SELECT STREAM DISTINCT k, §tt FROM a",
    ],
)
def test_a_name_that_means_nothing_is_refused_once_where_it_is_written(text: str) -> None:
    text = f"{STREAMS} {text};"
    with pytest.raises(WatersmeetError) as caught:
        analyze(read_script(text.replace("§", "")))
    (refusal,) = caught.value.refusals
    assert (refusal.condition, refusal.place and refusal.place.start) == ("UNKNOWN_COLUMN", text.index("§"))
    assert "#" not in str(refusal)
