"""Which conditions bound the state of a join, and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.errors import WatersmeetError
from watersmeet.logical.relation import TimeBound
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.queries import analyze, read_script

DAY = 86_400_000_000
MINUTE = 60_000_000

V = "CREATE STREAM v (a BIGINT, b BIGINT, deadline BIGINT, WATERMARK FOR a AS a - 0);"
V_TIME = "CREATE STREAM v (a TIMESTAMP, b TIMESTAMP, deadline BIGINT, WATERMARK FOR a AS a - INTERVAL 0 SECONDS);"
V_DATE = "CREATE STREAM v (a DATE, b DATE, WATERMARK FOR a AS a - INTERVAL 0 DAYS);"
FORWARD, BACKWARD = ("v1.a", "v2.a"), ("v2.a", "v1.a")


def bound_texts(bounds: tuple[TimeBound, ...]) -> list[tuple[str, str, int]]:
    return [(str(bound.column), str(bound.other), bound.constant) for bound in bounds]


def join_of(query) -> AnalyzedIntervalJoin:
    assert isinstance(query.relation, AnalyzedIntervalJoin)
    return query.relation


def select(on: str, declaration: str = V) -> str:
    return f"{declaration} SELECT STREAM v1.b FROM v v1 JOIN v v2 ON {on};"


# The rows of HZ-V30: a is watermarked, b is not.
@pytest.mark.parametrize(
    ("on", "forward", "backward"),
    [
        ("v1.a = v2.a", 0, 0),
        ("v2.a BETWEEN v1.a - 1 AND v1.a + 4", 4, 1),
        ("v1.a - v2.a + 10 >= 0 AND v1.a <= v2.a + 3", 10, 3),
        ("v1.a + 10 > v2.a + 10 - 10 AND v2.a >= v1.a - 5", 10, 5),
        ("v1.a = v2.a + 10", -10, 10),
        ("v2.a BETWEEN v1.a AND v1.a + 9 AND v2.a <= v1.a + 5", 5, 0),
    ],
)
def test_accepts_bounds_in_both_directions(analyze_sql, on, forward, backward):
    join = join_of(analyze_sql(select(on)))
    assert bound_texts(join.bounds) == [(*FORWARD, forward), (*BACKWARD, backward)]
    assert not (join.residual or join.left_only or join.right_only)


# The rows of HZ-V30 that are rejected, with the cause that is given.
@pytest.mark.parametrize(
    ("on", "unbounded", "cause"),
    [
        ("1 = 2", "v1 and v2", "no bound between v1.a and v2.a"),
        ("v1.a >= v2.a", "v2", "only one direction: v2.a may be any time before v1.a"),
        ("v2.a >= v1.a", "v1", "only one direction: v2.a may be any time after v1.a"),
        ("v1.a BETWEEN v1.b AND v2.a", "v1", "only one direction"),
        ("(v1.a = v2.a) OR (v1.a = v2.a + 1)", "v1 and v2", "only inside OR"),
        ("v2.a BETWEEN v1.a - v1.deadline - 1 AND v1.a", "v2", "not constant: v2.a >= v1.a - v1.deadline - 1"),
        ("v1.a IS NOT DISTINCT FROM v2.a", "v1 and v2", "IS NOT DISTINCT FROM"),
        ("(v1.a = v2.a) IS NULL", "v1 and v2", "no bound between"),
        ("v1.b = v2.b", "v1 and v2", "no bound between"),
    ],
)
def test_refuses_what_does_not_bound_both_sides(refusals_of, on, unbounded, cause):
    [refusal] = refusals_of(select(on))
    assert refusal.condition == "UNBOUNDED_STATE"
    assert refusal.parameters["unbounded"] == unbounded
    assert cause in refusal.label


def test_refuses_a_cast_that_leaves_the_family(refusals_of):
    on = "v2.a BETWEEN CAST(CAST(v1.a AS VARCHAR) AS TIMESTAMP) - INTERVAL '10' SECOND AND v1.a"
    [refusal] = refusals_of(select(on, V_TIME))
    assert refusal.condition == "UNBOUNDED_STATE"
    assert "a cast can change the time" in refusal.label


V_INT = "CREATE STREAM v (a INT, b BIGINT, WATERMARK FOR a AS a - 0);"


@pytest.mark.parametrize(
    ("declaration", "on", "forward", "backward"),
    [
        (V_INT, "CAST(v1.a AS BIGINT) = CAST(v2.a AS BIGINT) + 10", -10, 10),
        (V_INT, "v2.a::BIGINT BETWEEN (v1.a - 1)::INT AND CAST(CAST(v1.a AS BIGINT) + 4 AS INT)", 4, 1),
        (V_INT, "CAST(v1.a - v2.a AS BIGINT) BETWEEN -3 AND 2", 3, 2),
        (V_INT, "v2.a BETWEEN v1.a - 1::INT AND v1.a + CAST(2 AS BIGINT)", 2, 1),
        (V_TIME, "CAST(v1.a AS TIMESTAMP) = v2.a + INTERVAL 1 MINUTE", -MINUTE, MINUTE),
        (V_TIME, "CAST(v1.a + INTERVAL 1 MINUTE AS TIMESTAMP) = v2.a", MINUTE, -MINUTE),
        (V_DATE, "CAST(v1.a + INTERVAL 1 DAY AS DATE) = CAST(v2.a AS DATE)", DAY, -DAY),
    ],
)
def test_looks_through_a_cast_that_keeps_the_time(analyze_sql, declaration, on, forward, backward):
    join = join_of(analyze_sql(select(on, declaration)))
    assert bound_texts(join.bounds) == [(*FORWARD, forward), (*BACKWARD, backward)]
    assert not (join.residual or join.left_only or join.right_only)


@pytest.mark.parametrize(
    ("declaration", "on"),
    [
        (V, "CAST(v1.a AS INT) = v2.a"),
        (V, "CAST(CAST(v1.a AS INT) AS BIGINT) = v2.a"),
        (V, "CAST(v1.a AS DOUBLE) = v2.a"),
        (V, "v1.a + CAST(300 AS TINYINT) = v2.a"),
        (V, "v1.a + CAST(3 AS DATE) = v2.a"),
        (V, "CAST(v1.a AS DECIMAL(38,0)) = v2.a"),
        (V, "try_cast(v1.a AS BIGINT) = v2.a"),
        (V_INT, "CAST(v1.a AS SMALLINT) = v2.a"),
        (V_TIME, "CAST(v1.a AS DATE) = CAST(v2.a AS DATE)"),
        (V_TIME, "CAST(v1.a AS TIMESTAMP_NTZ) = CAST(v2.a AS TIMESTAMP_NTZ)"),
        (V_TIME, "CAST(v1.a AS BIGINT) = CAST(v2.a AS BIGINT)"),
        (V_TIME, "CAST(v1.a AS TIMESTAMP) = v2.a::STRING::TIMESTAMP"),
        (V_DATE, "CAST(v1.a AS TIMESTAMP) = CAST(v2.a AS TIMESTAMP)"),
        (V_DATE, "CAST(v1.a + INTERVAL 30 HOURS AS DATE) = v2.a"),
    ],
)
def test_a_cast_that_can_change_the_time_gives_no_bound(refusals_of, declaration, on):
    [refusal] = refusals_of(select(on, declaration))
    assert refusal.condition == "UNBOUNDED_STATE"
    assert refusal.parameters["unbounded"] == "v1 and v2"


def test_a_cast_next_to_a_bound_is_a_condition(analyze_sql):
    join = join_of(analyze_sql(select("v1.a = v2.a AND v1.a::INT < v2.a::INT")))
    assert [expression_in_words(part) for part in join.residual] == ["CAST(v1.a AS INT) < CAST(v2.a AS INT)"]


def test_refuses_a_side_without_watermark(refusals_of):
    [refusal] = refusals_of(
        f"{V} CREATE STREAM w (a BIGINT); SELECT STREAM v1.b FROM v v1 JOIN w v2 ON v1.a = v2.a;",
    )
    assert refusal.condition == "MISSING_WATERMARK"
    assert refusal.parameters["side"] == "w"
    assert "`WATERMARK FOR a AS a - 5`" in refusal.hint


@pytest.mark.parametrize(
    ("on", "forward", "backward"),
    [
        ("-v1.a <= -v2.a + 3 AND v2.a - v1.a >= -(2 + 5)", 3, 7),
        ("NOT (v1.a < v2.a - 3) AND NOT v2.a < v1.a", 3, 0),
        ("0 <= 2 * 60 + v1.a - v2.a AND v1.a - 1 = v2.a", 1 - 2, 1),
    ],
)
def test_understands_any_arrangement(analyze_sql, on, forward, backward):
    assert bound_texts(join_of(analyze_sql(select(on))).bounds) == [(*FORWARD, forward), (*BACKWARD, backward)]


def test_keeps_strictness_and_prefers_the_strict_of_two_equal_bounds(analyze_sql):
    join = join_of(analyze_sql(select("v1.a >= v2.a - 3 AND v1.a > v2.a - 3 AND v2.a > v1.a - 2 AND v2.a >= v1.a - 1")))
    assert [(bound.constant, bound.strict) for bound in join.bounds] == [(3, True), (1, False)]


def test_equal_times_are_a_key_as_well(analyze_sql):
    [(left, right)] = join_of(analyze_sql(select("v2.a - v1.a = 0"))).keys
    assert (expression_in_words(left), expression_in_words(right)) == ("v1.a", "v2.a")


def test_times_at_a_distance_are_no_key(analyze_sql):
    assert join_of(analyze_sql(select("v1.a = v2.a + 10"))).keys == ()


def test_times_of_different_types_are_no_key(analyze_sql):
    sql = (
        f"{V} CREATE STREAM w (a INT, WATERMARK FOR a AS a - 0);SELECT STREAM v1.b FROM v v1 JOIN w v2 ON v1.a = v2.a;"
    )
    join = join_of(analyze_sql(sql))
    assert join.keys == ()
    assert bound_texts(join.bounds) == [(*FORWARD, 0), (*BACKWARD, 0)]


def test_a_comparison_within_one_side_is_a_predicate(analyze_sql):
    sql = (
        "CREATE STREAM l (t BIGINT, u BIGINT, WATERMARK FOR t AS t - 0, WATERMARK FOR u AS u - 0);"
        "CREATE STREAM r (t BIGINT, WATERMARK FOR t AS t - 0);"
        "SELECT STREAM l.u FROM l JOIN r ON l.t = r.t AND l.u >= l.t - 5;"
    )
    join = join_of(analyze_sql(sql))
    assert bound_texts(join.bounds) == [("l.t", "r.t", 0), ("r.t", "l.t", 0)]
    assert [expression_in_words(part) for part in join.left_only] == ["l.u >= l.t - 5"]


def test_intervals_bound_timestamps(analyze_sql):
    on = "v2.a BETWEEN v1.a - INTERVAL 5 MINUTES AND v1.a + INTERVAL 1 HOUR + INTERVAL 30 MINUTES"
    assert bound_texts(join_of(analyze_sql(select(on, V_TIME))).bounds) == [
        (*FORWARD, 90 * MINUTE),
        (*BACKWARD, 5 * MINUTE),
    ]


def test_plain_numbers_are_days_of_a_date(analyze_sql):
    on = "v2.a BETWEEN v1.a - 1 AND v1.a + INTERVAL 2 DAYS"
    assert bound_texts(join_of(analyze_sql(select(on, V_DATE))).bounds) == [(*FORWARD, 2 * DAY), (*BACKWARD, DAY)]


def test_within_bounds_both_directions(analyze_sql):
    sql = f"{V_TIME} SELECT STREAM v1.b FROM v v1 JOIN v v2 WITHIN 5m ON v1.deadline = v2.deadline;"
    join = join_of(analyze_sql(sql))
    assert bound_texts(join.bounds) == [(*FORWARD, 5 * MINUTE), (*BACKWARD, 5 * MINUTE)]
    assert len(join.keys) == 1


def test_within_and_on_give_the_lowest_bound(analyze_sql):
    sql = f"{V_TIME} SELECT STREAM v1.b FROM v v1 JOIN v v2 WITHIN 5m ON v2.a >= v1.a;"
    assert bound_texts(join_of(analyze_sql(sql)).bounds) == [(*FORWARD, 5 * MINUTE), (*BACKWARD, 0)]


@pytest.mark.parametrize(
    ("on", "streams", "fits"),
    [
        ("v1.a >= v2.a + 1 AND v2.a >= v1.a + 1", V, False),
        ("v2.a >= v1.a AND v2.a <= v1.a", V, True),
        ("v2.a > v1.a AND v2.a <= v1.a", V, False),
        ("v2.a > v1.a AND v2.a < v1.a + 1", V, False),
        ("v2.a > v1.a AND v2.a < v1.a + 2", V, True),
        ("v2.a > v1.a + INTERVAL 5 SECONDS AND v2.a < v1.a + INTERVAL 1 SECOND", V_TIME, False),
        ("v2.a > v1.a AND v2.a < v1.a + INTERVAL 1 SECOND", V_TIME, True),
        # Dates are whole days apart.
        ("v2.a > v1.a AND v2.a < v1.a + 1", V_DATE, False),
        ("v2.a > v1.a AND v2.a < v1.a + 2", V_DATE, True),
    ],
)
def test_bounds_that_no_time_satisfies_are_refused(analyze_sql, refusals_of, on: str, streams: str, fits: bool):
    if fits:
        assert len(join_of(analyze_sql(select(on, streams))).bounds) == 2
    else:
        [refusal] = refusals_of(select(on, streams))
        assert refusal.condition == "NO_TIME_FITS"
        assert "v1.a" in str(refusal.message) and "v2.a" in str(refusal.message)


@pytest.mark.parametrize(
    ("columns", "on", "hint"),
    [
        ("k BIGINT, x BIGINT", "v1.b = w.k", "add a TIMESTAMP column to w"),
        ("k BIGINT, x BIGINT", "v1.b = w.k AND v1.a <= w.x + 5", "`WATERMARK FOR x AS x - 5`"),
        ("k BIGINT, created_at BIGINT", "v1.b = w.k", "`WATERMARK FOR created_at AS created_at - 5`"),
        ("k BIGINT, x TIMESTAMP", "v1.b = w.k", "`WATERMARK FOR x AS x - INTERVAL 5 SECONDS`"),
    ],
)
def test_a_key_is_not_proposed_as_a_time(refusals_of, columns: str, on: str, hint: str):
    [refusal] = refusals_of(f"{V} CREATE STREAM w ({columns}); SELECT STREAM v1.b FROM v v1 JOIN w ON {on};")
    assert (refusal.condition, hint in refusal.hint) == ("MISSING_WATERMARK", True), refusal.hint


@pytest.mark.parametrize(
    ("on", "bounds"),
    [
        ("v2.b <= v1.a AND v2.a <= v2.b + 10 AND v1.a <= v2.a", [("v1.a", "v2.a", 10), ("v2.a", "v1.a", 0)]),
        (
            "v2.b <= v1.b AND v1.b < v1.a AND v2.a < v2.b + 10 AND v1.a <= v2.a",
            [("v1.a", "v2.a", 10), ("v2.a", "v1.a", 0)],
        ),
        (
            "v1.a <= v2.a AND v2.a <= v1.a + 9 AND v2.a <= v1.b AND v1.b <= v1.a",
            [("v1.a", "v2.a", 9), ("v2.a", "v1.a", 0)],
        ),
    ],
)
def test_a_bound_follows_from_comparisons_with_other_columns(analyze_sql, on: str, bounds: list[tuple[str, str, int]]):
    assert bound_texts(join_of(analyze_sql(select(on))).bounds) == bounds


@pytest.mark.parametrize(
    "on",
    [
        "v2.b <= v1.a AND v2.a <= v2.b AND v2.a <= v1.a",
        "(v2.b <= v1.a OR v1.b = 1) AND v2.a <= v2.b + 10 AND v1.a <= v2.a",
        "v2.b <= v1.a AND v2.a <= CAST(v2.b AS INT) AND v1.a <= v2.a",
    ],
)
def test_no_bound_follows_from_these(refusals_of, on: str):
    [refusal] = refusals_of(select(on))
    assert refusal.condition == "UNBOUNDED_STATE"


def test_an_outer_join_whose_bounds_no_time_satisfies_is_warned_of(analyze_sql):
    on = "v1.b = v2.b AND v2.a BETWEEN v1.a + 5 AND v1.a"
    [warning] = analyze_sql(f"{V} SELECT STREAM v1.a FROM v v1 LEFT ANTI JOIN v v2 ON {on};").warnings
    assert "every row of the LEFT ANTI JOIN is unmatched" in warning.message


def test_chained_joins_use_the_times_of_every_source_of_a_side(analyze_sql):
    sql = (
        "CREATE STREAM a (t BIGINT, WATERMARK FOR t AS t - 0); CREATE STREAM b (t BIGINT, WATERMARK FOR t AS t - 0);"
        "CREATE STREAM c (t BIGINT, WATERMARK FOR t AS t - 0);"
        "SELECT STREAM a.t FROM a JOIN b ON a.t = b.t LEFT JOIN c ON c.t BETWEEN b.t - 2 AND b.t + 3;"
    )
    outer = join_of(analyze_sql(sql))
    assert bound_texts(outer.bounds) == [("b.t", "c.t", 3), ("c.t", "b.t", 2)]
    assert isinstance(outer.left, AnalyzedIntervalJoin)
    assert bound_texts(outer.left.bounds) == [("a.t", "b.t", 0), ("b.t", "a.t", 0)]


TWO = (
    "CREATE STREAM l (o BIGINT, d BIGINT, WATERMARK FOR o AS o - 0, WATERMARK FOR d AS d - 0);"
    "CREATE STREAM r (s BIGINT, e BIGINT, WATERMARK FOR s AS s - 0, WATERMARK FOR e AS e - 0);"
)


@pytest.mark.parametrize(
    ("on", "bounds"),
    [
        ("r.s >= l.d - 1 AND l.d >= r.s - 4", [("l.d", "r.s", 4), ("r.s", "l.d", 1)]),
        ("r.s >= l.d - 1 AND l.o >= r.e - 4", [("l.o", "r.e", 4), ("r.s", "l.d", 1)]),
        (
            "r.s BETWEEN l.o - 1 AND l.d + 2 AND l.o <= r.e",
            [("l.d", "r.s", 2), ("r.s", "l.o", 1), ("r.e", "l.o", 0)],
        ),
    ],
)
def test_the_directions_may_come_from_different_pairs(analyze_sql, on, bounds):
    assert bound_texts(join_of(analyze_sql(f"{TWO} SELECT STREAM l.o FROM l JOIN r ON {on};")).bounds) == bounds


def test_two_pairs_in_one_direction_are_still_one_direction(refusals_of):
    [refusal] = refusals_of(f"{TWO} SELECT STREAM l.o FROM l JOIN r ON r.s >= l.o AND r.e >= l.d;")
    assert (refusal.condition, refusal.parameters["unbounded"]) == ("UNBOUNDED_STATE", "l")


ABCD = "".join(f"CREATE STREAM {s} (k INT, t BIGINT, WATERMARK FOR t AS t - 0);" for s in "abcd")


def chain(analyze_sql, relation: str) -> list[list[tuple[str, str, int]]]:
    """The bounds of the joins of a chain, innermost first."""
    join, found = analyze_sql(f"{ABCD} SELECT STREAM a.k FROM {relation};").relation, []
    while isinstance(join, AnalyzedIntervalJoin):
        found.insert(0, bound_texts(join.bounds))
        join = join.left
    return found


@pytest.mark.parametrize(("kind", "other"), [("", ""), ("LEFT", "LEFT"), ("FULL", ""), ("", "FULL"), ("LEFT", "RIGHT")])
def test_bounds_relate_any_two_streams_of_a_chain(analyze_sql, kind, other):
    relation = (
        f"a {kind} JOIN b ON b.t BETWEEN a.t - 1 AND a.t + 1"
        f" {other} JOIN c ON c.t >= a.t - 2 AND c.t <= b.t + 3"
        " JOIN d ON d.t BETWEEN c.t AND c.t + 4 AND d.t <= a.t + 9"
    )
    assert chain(analyze_sql, relation) == [
        [("a.t", "b.t", 1), ("b.t", "a.t", 1)],
        [("b.t", "c.t", 3), ("c.t", "a.t", 2)],
        [("c.t", "d.t", 4), ("a.t", "d.t", 9), ("d.t", "c.t", 0)],
    ]


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """For b, c and d in turn: the kind of the join and bounds ``(column, other, constant)`` with streams before it."""
    found, before = [], ["a"]
    for stream in "bcd"[: draw(st.integers(1, 3))]:
        pairs = st.sampled_from(before).flatmap(lambda s, r=stream: st.permutations([f"{s}.t", f"{r}.t"]))
        bounds = draw(st.lists(st.tuples(pairs, st.integers(-9, 9)), min_size=1, max_size=5))
        kind = draw(st.sampled_from(["INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"]))
        found.append((kind, [(*pair, constant) for pair, constant in bounds]))
        before += [] if kind in ("LEFT SEMI", "LEFT ANTI") else [stream]
    return found


def lowest(bounds: list[tuple[str, str, int]]) -> dict[tuple[str, str], int]:
    return {(a, b): min(c for x, y, c in bounds if (x, y) == (a, b)) for a, b, _ in bounds}


def refusals_of(stream: str, kind: str, bounds: dict[tuple[str, str], int]) -> list[str]:
    """The conditions of the refusals of a join of that stream."""
    if len({a[0] == stream for a, _ in bounds}) < 2:
        return ["UNBOUNDED_STATE"]
    if kind not in ("INNER", "LEFT SEMI"):
        return []
    both = [bounds[a, b] + bounds[b, a] for a, b in bounds if (b, a) in bounds and a < b]
    return ["NO_TIME_FITS"] * sum(width < 0 for width in both)


@given(joins=chains())
def test_a_chain_may_run_if_every_join_is_bounded_in_both_directions(joins):
    relation = "a" + "".join(
        f" {kind} JOIN {stream} ON " + " AND ".join(f"{a} >= {b} - ({constant})" for a, b, constant in bounds)
        for stream, (kind, bounds) in zip("bcd", joins, strict=False)
    )
    script = read_script(f"{ABCD} SELECT STREAM a.k FROM {relation};", "q.sql")
    expected = [
        condition
        for stream, (kind, bounds) in zip("bcd", joins, strict=False)
        for condition in refusals_of(stream, kind, lowest(bounds))
    ]
    if expected:
        with pytest.raises(WatersmeetError) as error:
            analyze(script)
        assert sorted(refusal.condition for refusal in error.value.refusals) == sorted(expected)
        return
    join = analyze(script)[0].relation
    for _, bounds in reversed(joins):
        assert isinstance(join, AnalyzedIntervalJoin)
        assert {(a, b): c for a, b, c in bound_texts(join.bounds)} == lowest(bounds)
        join = join.left


def test_a_stream_joins_itself_again_and_again(analyze_sql):
    relation = "a JOIN a AS x ON x.t BETWEEN a.t + 1 AND a.t + 2 LEFT JOIN a AS y ON y.t BETWEEN x.t + 1 AND a.t + 5"
    assert chain(analyze_sql, relation) == [
        [("a.t", "x.t", 2), ("x.t", "a.t", -1)],
        [("a.t", "y.t", 5), ("y.t", "x.t", -1)],
    ]


def test_a_chain_needs_both_directions_at_every_join(refusals_of):
    relation = "a JOIN b ON a.t = b.t LEFT JOIN c ON c.t >= a.t AND c.t >= b.t"
    [refusal] = refusals_of(f"{ABCD} SELECT STREAM a.k FROM {relation};")
    assert (refusal.condition, refusal.parameters["unbounded"]) == ("UNBOUNDED_STATE", "a and b")


def test_the_times_of_a_hidden_side_bound_nothing_further_on(analyze_sql):
    relation = "a SEMI JOIN b WITHIN 5 ON a.k = b.k JOIN c WITHIN 7 ON a.k = c.k"
    assert chain(analyze_sql, relation)[1] == [("a.t", "c.t", 7), ("c.t", "a.t", 7)]


BATCHES = "CREATE STREAM l (id BIGINT, t BIGINT, p BIGINT); CREATE STREAM r (id BIGINT, t BIGINT, p BIGINT);"


def test_batches_take_the_compared_times_as_watermarked(analyze_sql):
    on = "l.id = r.id AND l.p < r.p AND r.t BETWEEN l.t - 1 AND l.t + 4"
    join = join_of(analyze_sql(f"{BATCHES} SELECT l.id FROM l JOIN r ON {on};", inputs="batches"))
    assert bound_texts(join.bounds) == [("l.t", "r.t", 4), ("r.t", "l.t", 1)]
    assert [expression_in_words(part) for part in join.residual] == ["l.p < r.p"]
    assert len(join.keys) == 1


def test_batches_take_the_only_time_for_within(analyze_sql):
    sql = (
        "CREATE STREAM l (k INT, t TIMESTAMP); CREATE STREAM r (k INT, u TIMESTAMP);"
        "SELECT l.k FROM l JOIN r WITHIN 1m ON l.k < r.k;"
    )
    join = join_of(analyze_sql(sql, inputs="batches"))
    assert bound_texts(join.bounds) == [("l.t", "r.u", MINUTE), ("r.u", "l.t", MINUTE)]


def test_batches_still_need_a_bound(refusals_of):
    [refusal] = refusals_of(f"{BATCHES} SELECT l.id FROM l JOIN r ON l.id = r.id;", inputs="batches")
    assert refusal.condition == "UNBOUNDED_STATE"


def test_streams_need_the_watermark_that_batches_do_not(refusals_of):
    refusals = refusals_of(f"{BATCHES} SELECT l.id FROM l JOIN r ON r.t BETWEEN l.t - 1 AND l.t + 4;")
    assert [refusal.condition for refusal in refusals] == ["MISSING_WATERMARK"] * 2


def test_batches_may_compare_other_times_than_the_watermarked(analyze_sql):
    sql = f"{V} SELECT v1.b FROM v v1 JOIN v v2 ON v2.b BETWEEN v1.b - 1 AND v1.b + 4 AND v1.a < v2.a;"
    join = join_of(analyze_sql(sql, inputs="batches"))
    assert sorted(bound_texts(join.bounds)) == [("v1.b", "v2.b", 4), ("v2.a", "v1.a", 0), ("v2.b", "v1.b", 1)]


def test_batches_with_within_must_say_which_time(refusals_of):
    sql = "CREATE STREAM l (k INT); CREATE STREAM r (k INT); SELECT l.k FROM l JOIN r WITHIN 1 ON l.k = r.k;"
    assert [refusal.condition for refusal in refusals_of(sql, inputs="batches")] == ["MISSING_WATERMARK"] * 2


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """A comparison of v1.a and v2.a, in any arrangement of sums, signs and brackets."""
    one, other = draw(st.permutations(["v1.a", "v2.a"]))
    is_apart = draw(st.booleans())
    constants = st.lists(st.integers(0, 9).map(str), max_size=3)
    left = [one, *draw(constants)] if is_apart else [one, f"(-{other})", *draw(constants)]
    right = [other, *draw(constants)] if is_apart else [*draw(constants), "0"]
    operator = draw(st.sampled_from(["=", "<", "<=", ">", ">="]))
    sides = [_sum(draw, draw(st.permutations(side))) for side in (left, right)]
    return f"{sides[0]} {operator} {sides[1]}"


def _sum(draw: st.DrawFn, terms: list[str]) -> str:
    text = terms[0]
    for term in terms[1:]:
        if "v" in term:
            text = f"{term} + {text}"
        else:
            text = draw(st.sampled_from([f"{text} - {term}", f"({text}) + {term}", f"-(-({text}) + {term})"]))
    return text


@given(on=comparisons(), times=st.tuples(st.integers(-30, 30), st.integers(-30, 30)))
def test_a_bound_says_exactly_what_the_comparison_says(on, times):
    # The other direction is given by a bound so far away that it always holds.
    far = "v1.a >= v2.a - 1000 AND v2.a >= v1.a - 1000"
    [query] = analyze(read_script(select(f"{on} AND {far}"), "q.sql"))
    join = join_of(query)
    assert not join.residual
    value: dict[str, int] = dict(zip(("v1.a", "v2.a"), times, strict=True))
    python = on.replace("v1.a", f"({times[0]})").replace("v2.a", f"({times[1]})").replace(" = ", " == ")
    holds = [
        difference > 0 if bound.strict else difference >= 0
        for bound in join.bounds
        for difference in [value[str(bound.column)] - value[str(bound.other)] + bound.constant]
    ]
    assert all(holds) == eval(python)
