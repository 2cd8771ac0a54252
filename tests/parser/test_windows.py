"""Windows as other systems write them are Spark's."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from watersmeet.duration import MINUTE, SECOND
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import windows_in
from watersmeet.logical.nodes import Item, Lateral, Query, Scan
from watersmeet.operators.core.condition import Windows
from watersmeet.queries import read_script


def query(text: str) -> Query:
    [found] = read_script(f"{text};", "<sql>").queries
    return found


def item_texts(found: Query) -> tuple[list[str], list[str]]:
    items = [item.expr.sql(lambda ref: ref.parts[-1]) for item in found.items if isinstance(item, Item)]
    return items, [expr.sql(lambda ref: ref.parts[-1]) for expr in found.group_by]


@pytest.mark.parametrize(
    ("text", "items", "by"),
    [
        (
            "SELECT TUMBLE_START(t, INTERVAL '10' MINUTE), tumble_end(t, 10m) FROM b GROUP BY TUMBLE(t, 10 MINUTES)",
            ["window(t, '10 minutes').start", "window(t, '10 minutes').end"],
            ["window(t, '10 minutes')"],
        ),
        (
            "SELECT [HOP_END(b.t, 1s, 10s), 1], count(*) || HOP_START(t, 1s, 10s) FROM b GROUP BY k, HOP(b.t, 1s, 10s)",
            [
                "array(window(t, '10 seconds', '1 seconds').end, 1)",
                "count(*) || window(t, '10 seconds', '1 seconds').start",
            ],
            ["k", "window(t, '10 seconds', '1 seconds')"],
        ),
        (
            """SELECT window_start, b.window_end AS e, date_format(window_start, k) AS d, k FROM
            TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), 90 SECONDS)) AS b GROUP BY window_start, window_end, k""",
            [
                "window(t, '90 seconds').start", "window(t, '90 seconds').end",
                "date_format(window(t, '90 seconds').start, k)", "k",
            ],
            ["window(t, '90 seconds')", "k"],
        ),
        (
            "SELECT max(x) FROM TABLE(HOP(TABLE bids, DESCRIPTOR(t), 1m, 1h)) GROUP BY window_end",
            ["max(x)"],
            ["window(t, '1 hours', '1 minutes')"],
        ),
        (
            "SELECT SESSION_START(t, 5m) FROM b GROUP BY SESSION(t, INTERVAL '5' MINUTES), k",
            ["session_window(t, '5 minutes').start"],
            ["session_window(t, '5 minutes')", "k"],
        ),
        (
            """SELECT b.window_end, K FROM TABLE(SESSION(TABLE bids PARTITION BY (k, j), DESCRIPTOR(t), 5m)) AS b
            GROUP BY k, b.J, window_start""",
            ["session_window(t, '5 minutes').end", "K"],
            ["k", "J", "session_window(t, '5 minutes')"],
        ),
    ],
)  # fmt: skip
def test_windows_are_read_as_those_of_spark(text: str, items: list[str], by: list[str]):
    found = query(text)
    assert item_texts(found) == (items, by)
    assert isinstance(found.relation, Scan)
    assert found.relation.window is None


@pytest.mark.parametrize(
    ("function", "windows"),
    [
        ("TUMBLE(TABLE bids, DESCRIPTOR(t), 1m)", Windows(MINUTE, 1, -MINUTE, MINUTE, -MINUTE)),
        ("HOP(TABLE bids, DESCRIPTOR(t), 4s, 10s)", Windows(4 * SECOND, 3, -4 * SECOND, 10 * SECOND, -4 * SECOND)),
        ("CUMULATE(TABLE(bids), DESCRIPTOR(t), 1s, 1m)", Windows(MINUTE, 60, 0, SECOND, SECOND)),
    ],
    ids=["TUMBLE", "HOP", "CUMULATE"],
)
def test_a_source_that_is_not_grouped_is_a_subquery_with_the_bounds_of_windows(function: str, windows: Windows):
    found = query(f"SELECT * FROM TABLE({function}) AS w WHERE k > 1")
    [view] = found.views
    assert found.relation == replace(cast("Scan", found.relation), source=view.name, alias="w")
    rows = view.query.relation
    assert isinstance(rows, Lateral)
    assert isinstance(rows.input, Scan)
    assert rows.input.source == "bids"
    assert windows_in(rows.array) == windows
    assert [item.name for item in view.query.items if isinstance(item, Item)] == ["window_start", "window_end"]


def test_names_of_columns_stay():
    found = query(
        "SELECT window_start, Window_End FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(t), 1m)) GROUP BY window_start"
    )
    assert [item.name for item in found.items if isinstance(item, Item)] == ["window_start", "Window_End"]
    # Without the function they are names like any other.
    assert item_texts(query("SELECT window_start, tumble FROM b GROUP BY hop"))[0] == ["window_start", "tumble"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SELECT count(*) FROM b GROUP BY SESSION(t)", "SESSION(t, INTERVAL '5' MINUTES)"),
        ("SELECT count(*) FROM b GROUP BY CUMULATE(t, 1m, 1h)", "FROM TABLE(CUMULATE(TABLE bids"),
        ("SELECT count(*) FROM b GROUP BY TUMBLE(t)", "TUMBLE(t, INTERVAL '10' MINUTES)"),
        ("SELECT count(*) FROM b GROUP BY HOP(t, 1m)", "the slide, then the size"),
        ("SELECT k FROM TABLE(SESSION(TABLE b, DESCRIPTOR(t), 1m))", "GROUP BY window_start, window_end"),
        ("SELECT k FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(t)))", "INTERVAL '10' MINUTES"),
        ("SELECT k FROM TABLE(SESSION(TABLE b, DESCRIPTOR(t), 1m)) GROUP BY window_end, k", "after PARTITION BY"),
        ("SELECT k FROM TABLE(SESSION(TABLE b, DESCRIPTOR(t)))", "TABLE(SESSION(TABLE bids PARTITION BY bidder"),
        (
            "SELECT k FROM TABLE(CUMULATE(TABLE b, DESCRIPTOR(t), 7m, 1h))",
            "expected a size that is a multiple of the step",
        ),
        ("SELECT k FROM TABLE(HOP(TABLE b, DESCRIPTOR(t), 2h, 1h))", "expected a size of at least the slide"),
        ("SELECT k FROM TABLE(HOP(TABLE b, DESCRIPTOR(t), 2, 10))", "expected a duration"),
        ("SELECT k FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(t), 0s))", "expected a duration"),
        ("SELECT k FROM TABLE(HOP(DATA => TABLE b, TIMECOL => DESCRIPTOR(t), SIZE => 1m, SLIDE => 1h))", "slide, size"),
        ("SELECT k FROM TABLE(TUMBLE(TABLE(HOP(TABLE b, DESCRIPTOR(t), 1m, 1h)), DESCRIPTOR(t), 1m))", "stream itself"),
        ("SELECT k FROM a JOIN TABLE(SESSION(TABLE b, DESCRIPTOR(t), 1m)) w ON a.k = w.k", "group it in a view"),
        ("SELECT k FROM TABLE(orders)", "write the name alone: `orders`"),
    ],
)
def test_further_windows_are_refused(text: str, hint: str):
    with pytest.raises(WatersmeetError) as caught:
        query(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize("named", ["TABLE b", "TABLE(b)", "(TABLE b)", "input => TABLE(b)"])
def test_argument_of_a_function_may_stand_in_brackets(named: str):
    found = query(f"SELECT * FROM TABLE(IMPOSE_ORDER({named}, DESCRIPTOR(t), INTERVAL '5' SECONDS))")
    assert isinstance(found.relation, Scan)
    assert (found.relation.source, [mark.column for mark in found.relation.watermarks]) == ("b", ["t"])
