"""How an OR beside AND without brackets is read (spec/lenses.md 5.4-4), and which dialects there are."""

from __future__ import annotations

import pytest

from watersmeet.logical.words import expression_in_words

SOURCES = """\
CREATE STREAM c (_key INT, id INT, name STRING, t BIGINT, WATERMARK FOR t AS t);
CREATE STREAM o (id INT, item STRING, t BIGINT, WATERMARK FOR t AS t);
CREATE STREAM d (id INT, item STRING, t BIGINT, WATERMARK FOR t AS t);
"""

PUZZLE = "substr(c.name, 5) = o.item AND len(c.name) > 10 OR c._key > 1"
OTHER = "substr(c.name, 5) = o.item AND (len(c.name) > 10 OR c._key > 1)"


def script(on: str, dialect: str = "watersmeet", within: str = "WITHIN 5") -> str:
    return f"{SOURCES}SET watersmeet.dialect = {dialect};\nSELECT c.id FROM c JOIN o {within} ON {on};"


def texts(parts) -> list[str]:
    return [expression_in_words(part) for part in parts]


def test_ours_keeps_the_order_of_standard_sql(analyze_sql):
    query = analyze_sql(script(PUZZLE))
    assert texts(query.relation.residual) == [PUZZLE]
    assert query.relation.keys == ()
    first, second = query.warnings
    assert first.message == (
        f"AND goes before OR, as in standard SQL: `{PUZZLE}`. Lenses would read `{OTHER}`; add brackets to say which."
    )
    assert "No equality" in second.message


def test_lenses_reads_it_the_other_way(analyze_sql):
    query = analyze_sql(script(PUZZLE, "lenses"))
    assert len(query.relation.keys) == 1
    assert texts(query.relation.left_only) == ["len(c.name) > 10 OR c._key > 1"]
    [warned] = query.warnings
    assert warned.message == (
        "AND before OR would be refused here, so the condition is read as Lenses does: "
        f"`{OTHER}`; write these brackets."
    )


def test_strict_lenses_refuses_it(refusals_of):
    [refusal] = refusals_of(script(PUZZLE, "lenses-strict"))
    assert refusal.render().splitlines() == [
        f"[NOT_IN_DIALECT] The dialect lenses-strict cannot join c with o by `{PUZZLE}`. SQLSTATE: 0A000",
        "  --> query.sql:5:39",
        "   |",
        f" 5 | SELECT c.id FROM c JOIN o WITHIN 5 ON {PUZZLE};",
        f"   | {' ' * 38}{'^' * len(PUZZLE)} OR over both sides: only AND may combine conditions on different sides",
        "   |",
        f"Hint: write `{OTHER}`, or `SET watersmeet.dialect = watersmeet`, which can run it.",
    ]


@pytest.mark.parametrize("dialect", ["watersmeet", "lenses", "lenses-strict"])
@pytest.mark.parametrize("on", [OTHER, "len(c.name) > 10 AND c.id = 1 OR c._key > 1"])
def test_conditions_of_one_reading_or_one_side_are_not_warned_of(analyze_sql, dialect, on):
    query = analyze_sql(script(on, dialect))
    assert [warned.message for warned in query.warnings if "No equality" not in warned.message] == []


@pytest.mark.parametrize("dialect", ["lenses", "lenses-strict"])
def test_brackets_leave_no_choice(refusals_of, dialect):
    on = "(substr(c.name, 5) = o.item AND len(c.name) > 10) OR c._key > 1"
    assert [refusal.condition for refusal in refusals_of(script(on, dialect))] == ["NOT_IN_DIALECT"]


def test_ours_takes_the_other_reading_where_only_that_can_run(analyze_sql):
    """With AND first, the OR would hold for rows of any time."""
    on = "c.id = o.id AND c.t BETWEEN o.t - 5 AND o.t + 5 AND c._key > 1 OR o.item = 'x'"
    query = analyze_sql(script(on, within=""))
    assert [bound.constant for bound in query.relation.bounds] == [5, 5]
    assert texts(query.relation.residual) == ["c._key > 1 OR o.item = 'x'"]
    [warned] = query.warnings
    assert warned.message.startswith("AND before OR would be refused here")


def test_query_that_runs_in_no_reading_is_refused_as_it_stands(refusals_of):
    [refusal] = refusals_of(script("c.id = o.id AND c._key > 1 OR o.item = 'x'", within=""))
    assert refusal.condition == "UNBOUNDED_STATE"


def test_each_join_of_a_chain_is_read_by_itself(analyze_sql):
    chain = f"c JOIN o WITHIN 5 ON {PUZZLE} JOIN d ON d.t = c.t AND d.id = 1 AND d.item = 'x' OR o.id = 2"
    query = analyze_sql(f"{SOURCES}SELECT c.id FROM {chain};")
    assert [warned.message[:15] for warned in query.warnings] == [
        "AND goes before",
        "AND before OR w",
        "No equality joi",
    ]
    assert texts(query.relation.residual) == ["d.item = 'x' OR o.id = 2"]


def test_dialects_that_there_are_not(refusals_of):
    [refusal] = refusals_of(script("c.id = o.id", "klingon"))
    assert refusal.condition == "WRONG_ARGUMENT"
    assert refusal.parameters["reason"] == "expected watersmeet, lenses or lenses-strict"
