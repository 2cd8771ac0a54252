"""Substrait plans as scripts: what is read, under which names, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.tools.substrait.substrait_plans import COLUMNS, QUERIES, plan_of

from watersmeet.catalog import Field, Source
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.logical.nodes import Join, Query, Scan, Star, Union
from watersmeet.tools.substrait import messages as substrait_messages
from watersmeet.tools.substrait.relations import read_substrait

ID = {"i64": {"nullability": "NULLABILITY_NULLABLE"}}
TEXT = {"string": {"nullability": "NULLABILITY_REQUIRED"}}


def table(name: str, **columns: Any) -> dict[str, Any]:
    """A relation that reads a table."""
    schema = {"names": list(columns), "struct": {"types": list(columns.values())}}
    return {"read": {"namedTable": {"names": [name]}, "baseSchema": schema}}


A, B = table("a", id=ID, x=ID), table("b", id=ID, y=TEXT)


def at(number: int) -> dict[str, Any]:
    """A reference to a column."""
    return {"directReference": {"structField": {"field": number}}, "rootReference": {}}


def column(number: int) -> dict[str, Any]:
    return {"selection": at(number)}


def call(function: int, *args: Any, **more: Any) -> dict[str, Any]:
    return {"scalarFunction": {"functionReference": function, "arguments": [{"value": arg} for arg in args], **more}}


def plan(rel: dict[str, Any], names: list[str], *functions: str) -> str:
    """A plan of one relation as JSON; functions have the numbers from 1 on."""
    declared = [
        {"extensionFunction": {"functionAnchor": number, "name": name}}
        for number, name in enumerate(functions, start=1)
    ]
    return json.dumps({"extensions": declared, "relations": [{"root": {"input": rel, "names": names}}]})


def read(rel: dict[str, Any], names: list[str], *functions: str) -> Query:
    (query,) = read_substrait(plan(rel, names, *functions), "plan").queries
    return query


def refusal(text: bytes | str, declared: tuple[Source, ...] = ()) -> Refusal:
    with pytest.raises(WatersmeetError) as caught:
        read_substrait(text, "plan.substrait", declared)
    return caught.value.refusals[0]


def items(query: Query) -> list[str]:
    return [f"{item.expr.sql(join_parts)} AS {item.name}" for item in query.items if not isinstance(item, Star)]


def join_parts(ref: Any) -> str:
    return ".".join(ref.parts)


def test_a_join_of_filtered_tables_is_a_join_of_views() -> None:
    text = "SELECT o.id, c.name FROM orders o LEFT JOIN (SELECT * FROM customers WHERE city = 'Ulm') c "
    script = read_substrait(plan_of(text + "ON o.customer = c.customer_id WHERE o.id > 1"), "plan.substrait")
    (query,) = script.queries
    assert [(source.name, source.kind, source.primary_key) for source in script.sources] == [
        ("orders", "table", ()),
        ("customers", "table", ()),
    ]
    assert ", ".join(f"{field.name} {field.type}" for field in script.sources[0].fields) == COLUMNS["orders"]
    assert query.result == "table" and items(query) == ["orders_filtered.id AS id", "customers_filtered.name AS name"]
    assert isinstance(query.relation, Join) and query.relation.kind == "left" and query.relation.operator is None
    assert query.relation.on is not None
    assert query.relation.on.sql(join_parts) == "(orders_filtered.customer = customers_filtered.customer_id)"
    assert [view.name for view in query.views] == ["orders_filtered", "customers_filtered"]
    assert all(view.query.items == (Star(),) and view.query.where is not None for view in query.views)


def test_plain_tables_are_joined_as_they_are_and_names_are_distinguished() -> None:
    text = "SELECT a.id, b.id, i.sku FROM orders a JOIN orders b ON a.customer = b.customer "
    (query,) = read_substrait(plan_of(text + "JOIN items i ON i.order_id = b.id"), "plan").queries
    assert not query.views and query.where is None
    assert items(query) == ["orders.id AS id", "orders_2.id AS id_2", "items.sku AS sku"]


def test_a_merge_join_is_no_choice() -> None:
    keys = [{"left": at(0), "right": at(0), "comparison": {"simple": "SIMPLE_COMPARISON_TYPE_EQ"}}]
    rest = call(1, column(1), column(2))
    join = {"left": A, "right": B, "keys": keys, "residualExpression": rest, "type": "JOIN_TYPE_LEFT"}
    query = read({"mergeJoin": join}, ["a", "x", "b", "y"], "lt:any_any")
    assert isinstance(query.relation, Join) and query.relation.on is not None
    assert query.relation == Join(Scan("a", "a"), Scan("b", "b"), "left", query.relation.on, operator="merge")
    assert query.relation.on.sql(join_parts) == "((a.id = b.id) AND (a.x < b.id))"


def test_keys_as_older_plans_write_them() -> None:
    join = {"left": A, "right": B, "leftKeys": [at(0), at(1)], "rightKeys": [at(0), at(0)], "type": "JOIN_TYPE_INNER"}
    query = read({"hashJoin": join}, ["a", "x", "b", "y"])
    assert isinstance(query.relation, Join) and query.relation.on is not None and query.relation.operator is None
    assert query.relation.on.sql(join_parts) == "((a.id = b.id) AND (a.x = b.id))"


@pytest.mark.parametrize(
    ("type_", "kind", "left", "columns"),
    [
        ("INNER", "inner", "a", 4), ("OUTER", "full", "a", 4), ("LEFT", "left", "a", 4), ("RIGHT", "right", "a", 4),
        ("LEFT_SEMI", "semi", "a", 2), ("SEMI", "semi", "a", 2), ("LEFT_ANTI", "anti", "a", 2),
        ("RIGHT_SEMI", "semi", "b", 2), ("RIGHT_ANTI", "anti", "b", 2),
    ],
)  # fmt: skip
def test_kinds_of_joins(type_: str, kind: str, left: str, columns: int) -> None:
    join = {"left": A, "right": B, "expression": call(1, column(0), column(2)), "type": f"JOIN_TYPE_{type_}"}
    query = read({"join": join}, ["p", "q", "r", "s"][:columns], "equal:any_any")
    assert isinstance(query.relation, Join) and query.relation.left == Scan(left, left) and query.relation.kind == kind
    assert items(query)[0] == f"{left}.id AS p" and len(query.items) == columns
    assert query.relation.on is not None and query.relation.on.sql(join_parts) == "(a.id = b.id)"


def test_a_filter_after_the_join_is_no_part_of_it() -> None:
    is_null = call(2, column(2))
    join = {"left": A, "right": B, "expression": call(1, column(0), column(2)), "postJoinFilter": is_null}
    query = read({"join": {**join, "type": "JOIN_TYPE_LEFT"}}, ["a", "x", "b", "y"], "equal", "is_null")
    assert query.where is not None and query.where.sql(join_parts) == "(b.id IS NULL)"
    nested = {"join": {**join, "type": "JOIN_TYPE_LEFT"}}
    outer = {"cross": {"left": A, "right": nested}}
    query = read(outer, ["a", "b", "c", "d", "e", "f"], "equal", "is_null")
    assert [view.query.where is not None for view in query.views] == [True], "a join on the right is a view"
    assert isinstance(query.relation, Join) and query.relation.on is not None and query.relation.on.value is True


def test_a_projection_on_a_padded_side_is_a_view() -> None:
    twice = {"project": {"input": B, "expressions": [call(2, column(1), {"literal": {"string": "none"}})]}}
    join = {"left": A, "right": twice, "expression": call(1, column(0), column(2)), "type": "JOIN_TYPE_LEFT"}
    query = read({"join": join}, ["a", "x", "b", "y", "z"], "equal", "coalesce")
    (view,) = query.views
    assert items(view.query) == ["b.id AS id", "b.y AS y", "coalesce(b.y, 'none') AS c1"]
    assert items(query)[-1] == f"{view.name}.c1 AS z"


def test_a_union_has_views_of_one_shape() -> None:
    query = read({"set": {"inputs": [A, table("b", k=ID, x={"i32": {}})], "op": "SET_OP_UNION_ALL"}}, ["id", "x"])
    assert isinstance(query.relation, Union) and items(query) == ["union.id AS id", "union.x AS x"]
    assert [items(view.query) for view in query.views] == [
        ["a.id AS id", "a.x AS x"],
        ["b.k AS id", "CAST(b.x AS BIGINT) AS x"],
    ]


def test_a_view_never_has_the_name_of_a_table() -> None:
    filtered = {"filter": {"input": table("t", id=ID), "condition": call(1, column(0))}}
    join = {"left": filtered, "right": table("t_filtered", id=ID)}
    query = read({"cross": join}, ["a", "b"], "is_not_null")
    assert [view.name for view in query.views] == ["t_filtered_2"]
    assert isinstance(query.relation, Join) and query.relation.right == Scan("t_filtered", "t_filtered")


def test_reads_of_one_table_may_know_different_columns() -> None:
    script = read_substrait(plan({"cross": {"left": A, "right": table("a", y=TEXT, id=ID)}}, ["p", "q", "r", "s"]), "p")
    assert script.sources == (
        Source("a", (Field("id", "BIGINT"), Field("x", "BIGINT"), Field("y", "STRING")), kind="table"),
    )
    other = plan({"cross": {"left": A, "right": table("a", id=TEXT)}}, ["p", "q", "r"])
    assert "the table has `id` BIGINT" in refusal(other).message


def test_a_declared_table_stays_as_it_is_declared() -> None:
    declared = Source(
        "A", (Field("ID", "bigint"), Field("x", "BIGINT")), kind="table", primary_key=("ID",), format="csv"
    )
    script = read_substrait(plan(A, ["id", "x"]), "plan", (declared,))
    assert script.sources == (declared,) and script.queries[0].relation == Scan("A", "A")
    assert "no column of that name" in refusal(plan(table("a", z=ID), ["z"]), (declared,)).message


def test_columns_are_picked_and_put_in_order() -> None:
    mask = {"select": {"structItems": [{"field": 1}, {"field": 0}]}}
    masked = {"read": {**A["read"], "projection": mask, "common": {"emit": {"outputMapping": [0, 0, 1]}}}}
    assert items(read(masked, ["x", "again", "id"])) == ["a.x AS x", "a.x AS again", "a.id AS id"]


def test_fields_of_structs_are_found_by_position() -> None:
    inner = {"struct": {"types": [ID, {"struct": {"types": [TEXT]}}]}}
    nested = table("t", id=ID, s=inner)
    nested["read"]["baseSchema"]["names"] = ["id", "s", "a", "odd name", "c"]
    child = {"structField": {"field": 1, "child": {"structField": {"field": 1, "child": {"structField": {}}}}}}
    picked = {"project": {"input": nested, "expressions": [{"selection": {"directReference": child}}]}}
    script = read_substrait(plan(picked, ["id", "s", "a", "b", "c", "last"]), "plan")
    assert script.sources[0].fields[1].type == "STRUCT<a: BIGINT, `odd name`: STRUCT<c: STRING>>"
    assert items(script.queries[0])[1:] == ["t.s AS s", "t.s.odd name.c AS last"]


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ({"boolean": False}, "FALSE"), ({"i8": -1}, "-1Y"), ({"i16": 2}, "2S"), ({"i32": 3}, "3"), ({"i64": "4"}, "4L"),
        ({"fp32": 0.5}, "0.5F"), ({"fp64": 1e300}, "1E300D"), ({"fp64": "NaN"}, "CAST('NaN' AS DOUBLE)"),
        ({"string": "it's \\ \n"}, r"'it\'s \\ \u000a'"), ({"varChar": {"value": "a", "length": 3}}, "'a'"),
        ({"binary": "AQI="}, "X'0102'"), ({"date": -1}, "DATE '1969-12-31'"),
        ({"timestamp": "1500000"}, "TIMESTAMP_NTZ '1970-01-01 00:00:01.500000'"),
        ({"precisionTimestampTz": {"precision": 3, "value": "1"}}, "TIMESTAMP '1970-01-01 00:00:00.001000Z'"),
        ({"precisionTimestamp": {"precision": 9, "value": "5000"}}, "TIMESTAMP_NTZ '1970-01-01 00:00:00.000005'"),
        ({"decimal": {"value": base64.b64encode((-125).to_bytes(16, "little", signed=True)).decode(), "precision": 5,
                      "scale": 2}}, "CAST(-1.25BD AS DECIMAL(5,2))"),
        ({"intervalDayToSecond": {"days": 2}}, "INTERVAL '2' DAY"),
        ({"intervalDayToSecond": {"seconds": -1, "microseconds": 500000}}, "INTERVAL '-0.500000' SECOND"),
        ({"intervalYearToMonth": {"years": 1, "months": 2}}, "INTERVAL '14' MONTH"),
        ({"null": TEXT}, "CAST(NULL AS STRING)"),
    ],
)  # fmt: skip
def test_literals_keep_their_type(literal: dict[str, Any], text: str) -> None:
    query = read({"project": {"input": A, "expressions": [{"literal": literal}]}}, ["id", "x", "z"])
    assert items(query)[-1] == f"{text} AS z"


@pytest.mark.parametrize(
    ("function", "args", "more", "text"),
    [
        ("divide:i64_i64", (0, 1), {"outputType": ID}, "(a.id DIV a.x)"),
        ("divide:i32_i32", (0, 1), {"outputType": {"i32": {}}}, "CAST((a.id DIV a.x) AS INT)"),
        ("divide:fp32_fp32", (0, 1), {"outputType": {"fp32": {}}}, "CAST((a.id / a.x) AS FLOAT)"),
        ("add", (0, 1), {"outputType": ID}, "(a.id + a.x)"),
        ("multiply", (0, 1), {"outputType": {"decimal": {"precision": 9, "scale": 1}}},
         "CAST((a.id * a.x) AS DECIMAL(9,1))"),
        ("add", (0, 1), {"outputType": ID, "options": [{"name": "overflow", "preference": ["SILENT", "ERROR"]}]},
         "(a.id + a.x)"),
        ("is_distinct_from", (0, 1), {}, "(NOT (a.id <=> a.x))"),
        ("between", (0, 1, 0), {}, "((a.id >= a.x) AND (a.id <= a.id))"),
        ("and", (0, 1, 0), {}, "(a.id AND a.x AND a.id)"), ("or", (0,), {}, "a.id"),
        ("concat", (0,), {"outputType": TEXT, "options": [{"name": "null_handling", "preference": ["IGNORE_NULLS"]}]},
         None),
    ],
)  # fmt: skip
def test_functions(function: str, args: tuple[int, ...], more: dict[str, Any], text: str | None) -> None:
    project = {"project": {"input": A, "expressions": [call(1, *(column(n) for n in args), **more)]}}
    if text is None:
        assert "it is supported for strings only" in refusal(plan(project, ["id", "x", "z"], function)).message
        return
    assert items(read(project, ["id", "x", "z"], function))[-1] == f"{text} AS z"


def test_functions_of_text() -> None:
    text, one = column(1), {"literal": {"i32": 1}}
    skipping = {"options": [{"name": "null_handling", "preference": ["IGNORE_NULLS"]}]}
    escaped = call(1, text, {"literal": {"string": "a!%"}}, {"literal": {"string": "!"}})
    found = [escaped, call(2, text, text, **skipping), call(2, text, text), call(3, text, one, one)]
    year = {"enum": "YEAR"}
    extracted = {"scalarFunction": {"functionReference": 4, "arguments": [year, {"value": {"literal": {"date": 0}}}]}}
    project = {"project": {"input": B, "expressions": [*found, extracted]}}
    query = read(project, ["id", "y", "p", "q", "r", "s", "t"], "like:str_str", "concat:str", "substring", "extract")
    assert [item.rsplit(" AS ", 1)[0] for item in items(query)[2:]] == [
        "(b.y LIKE 'a!%' ESCAPE '!')", "concat_ws('', b.y, b.y)", "concat(b.y, b.y)", "substring(b.y, 1, 1)",
        "extract(YEAR FROM DATE '1970-01-01')",
    ]  # fmt: skip


FETCH = {"fetch": {"input": A, "count": "3"}}
SUBQUERY = {"filter": {"input": A, "condition": {"subquery": {"scalar": {"input": B}}}}}


@pytest.mark.parametrize(
    ("rel", "functions", "said", "place"),
    [
        (FETCH, (), "The relation fetch", "root > fetch"),
        ({"filter": {"input": {"aggregate": {"input": A}}, "condition": column(0)}}, (), "The relation aggregate",
         "root > filter > aggregate"),
        ({"cross": {"left": A, "right": {"sort": {"input": A}}}}, (), "has no order", "root > cross right > sort"),
        ({"extensionLeaf": {}}, (), "The relation extension_leaf", "root > extension_leaf"),
        ({}, (), "of an unknown kind", "root"),
        (SUBQUERY, (), "An expression subquery", "root > filter"),
        ({"set": {"inputs": [A, B], "op": "SET_OP_UNION_DISTINCT"}}, (), "UNION_DISTINCT", "root > set"),
        ({"set": {"inputs": [A, table("c", id=ID)], "op": "SET_OP_UNION_ALL"}}, (), "different numbers", "root > set"),
        ({"join": {"left": A, "right": B, "type": "JOIN_TYPE_LEFT_MARK"}}, (), "type LEFT_MARK", "root > join"),
        ({"join": {"left": A, "right": B, "type": "JOIN_TYPE_SINGLE"}}, (), "type LEFT_SINGLE", "root > join"),
        ({"mergeJoin": {"left": A, "right": B, "type": "JOIN_TYPE_INNER"}}, (), "without a key", "root > merge_join"),
        ({"mergeJoin": {"left": A, "right": B, "type": "JOIN_TYPE_INNER", "keys": [
            {"left": at(0), "right": at(0), "comparison": {"simple": "SIMPLE_COMPARISON_TYPE_IS_NOT_DISTINCT_FROM"}}]}},
         (), "not compared by equality", "root > merge_join"),
        ({"read": {"virtualTable": {}, "baseSchema": A["read"]["baseSchema"]}}, (), "virtual_table", "root > read"),
        ({"read": {**A["read"], "advancedExtension": {"enhancement": {}}}}, (), "An enhancement", "root > read"),
        ({"filter": {"input": A, "condition": column(7)}}, (), "column 7 where there are 2", "root > filter"),
        ({"filter": {"input": A, "condition": call(1, column(0))}}, ("soundex:str",), "`soundex:str`", "root > filter"),
        ({"filter": {"input": A, "condition": call(9, column(0))}}, (), "undeclared function 9", "root > filter"),
        ({"filter": {"input": A, "condition": call(1, column(0))}}, ("equal",), "with 1 arguments", "root > filter"),
        ({"project": {"input": A, "expressions": [call(1, column(0), column(1))]}}, ("divide",), "not say whether",
         "root > project"),
        ({"project": {"input": A, "expressions": [
            call(1, column(0), column(1), outputType=ID, options=[{"name": "overflow", "preference": ["SATURATE"]}])]}},
         ("add",), "overflow = SATURATE", "root > project"),
        ({"project": {"input": B, "expressions": [call(1, column(1), {"literal": {"i32": 0}})]}}, ("substring",),
         "at least 1", "root > project"),
        ({"project": {"input": A, "expressions": [{"literal": {"uuid": "AQI="}}]}}, (), "A literal uuid",
         "root > project"),
        ({"project": {"input": A, "expressions": [{"literal": {"precisionTime": {"precision": 9}}}]}}, (),
         "literal precision_time", "root > project"),
        ({"project": {"input": A, "expressions": [
            {"literal": {"precisionTimestamp": {"precision": 9, "value": "1"}}}]}}, (), "in microseconds",
         "root > project"),
        ({"project": {"input": A, "expressions": [{"ifThen": {}}]}}, (), "between no values", "root > project"),
        (table("t", id={"uuid": {}}), (), "The type uuid", "root > read"),
    ],
)  # fmt: skip
def test_refused(rel: dict[str, Any], functions: tuple[str, ...], said: str, place: str) -> None:
    found = refusal(plan(rel, ["id", "x"], *functions))
    assert found.condition == "UNSUPPORTED_SUBSTRAIT" and said in found.message, found.message
    assert found.label == f"at {place}" and found.hint


def test_plans_of_real_producers_are_refused_by_name() -> None:
    for text, name in [("SELECT id FROM orders LIMIT 3", "fetch"), ("SELECT count(*) FROM orders", "aggregate")]:
        assert f"The relation {name}" in refusal(plan_of(text)).message
    assert "`round`" in refusal(plan_of("SELECT round(amount) FROM orders")).message


def test_names_must_fit() -> None:
    found = refusal(plan(A, ["id"]))
    assert "1 names for 2 columns" in found.message and found.condition == "UNSUPPORTED_SUBSTRAIT"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\x0a\xff\xff", "as Protocol Buffers it is damaged"),
        (b"SELECT 1", "as Protocol Buffers it is damaged"),
        ("{", "as JSON it is damaged"),
        ("SELECT STREAM * FROM a", "as JSON it is damaged"),
        (b"", "it has 0 results"),
        (json.dumps({"relations": [{"root": {}}, {"root": {}}]}), "it has 2 results"),
        (json.dumps({"relations": [{"root": {"input": {"join": {"leftt": {}}}}}]}), "of join is not a known field"),
        (b"\xf8\x07\x01", "number 127 of the plan is not a known field"),
    ],
)  # fmt: skip
def test_malformed_plans_are_refused(text: bytes | str, said: str) -> None:
    found = refusal(text)
    assert found.condition == "WRONG_SUBSTRAIT" and said in found.message, found.message
    assert found.message.startswith("plan.substrait ") and found.hint


@given(st.sampled_from(sorted(QUERIES)), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_damaged_plan_is_read_or_refused_and_never_an_accident(about: str, data: st.DataObject) -> None:
    damaged = bytearray(plan_of(QUERIES[about]))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert read_substrait(bytes(damaged), "plan").queries
    except WatersmeetError as error:
        assert error.refusals[0].hint


def test_deep_plans_are_refused() -> None:
    texts = [
        "SELECT id FROM orders WHERE " + " AND ".join(f"amount <> {n}" for n in range(count)) for count in (28, 40)
    ]
    assert read_substrait(plan_of(texts[0]), "plan").queries
    assert "deeper than the 100 messages" in refusal(plan_of(texts[1])).message


@pytest.mark.parametrize("cut", range(1, 300, 23))
def test_a_plan_that_was_cut_off_is_refused(cut: int) -> None:
    whole = plan_of("SELECT o.id FROM orders o JOIN customers c ON o.customer = c.customer_id")
    assert refusal(whole[: len(whole) - cut]).condition in ("WRONG_SUBSTRAIT", "UNSUPPORTED_SUBSTRAIT")


def test_without_protobuf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substrait_messages, "find_spec", lambda name: None)
    found = refusal(plan(A, ["id", "x"]))
    assert found.condition == "SUBSTRAIT_NOT_INSTALLED" and "watersmeet[substrait]" in found.hint
