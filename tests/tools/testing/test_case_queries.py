"""Cases that name a query of their project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.cli.init import init_project
from watersmeet.errors import WatersmeetError
from watersmeet.tools.testing import Result, parse_case, read_case, run_case

CASE = """
name: orders above a price
query: {query}
batches:
- in: {{orders: [[1, 5], [2, 50]]}}
  out: [[2]]
"""
SOURCES = "CREATE STREAM orders (id BIGINT, price BIGINT) USING json OPTIONS (path 'data');\nCREATE SINK {0} USING json"
QUERIES = """ OPTIONS (path 'out/dear');
CREATE SINK cheap USING json OPTIONS (path 'out/cheap');
INSERT INTO dear SELECT STREAM id FROM orders WHERE price > 10;
INSERT INTO cheap SELECT STREAM id FROM orders WHERE price <= 10;
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    shop = tmp_path / "shop"
    (shop / "sql").mkdir(parents=True)
    (shop / "cases").mkdir()
    (shop / "watersmeet.yml").write_text("name: shop\n")
    (shop / "sql" / "1_sources.sql").write_text(SOURCES.format("dear") + " OPTIONS (path 'out/dear');\n")
    (shop / "sql" / "2_queries.sql").write_text(QUERIES.split("\n", 1)[1])
    return shop


def ran(folder: Path, query: str) -> Result:
    case = folder / "case.yaml"
    case.write_text(CASE.format(query=query))
    return run_case(read_case(case), "kernel")


def test_a_query_is_run_with_all_that_its_project_declares(shop: Path) -> None:
    assert ran(shop / "cases", "sql/2_queries.sql#dear").status == "passed"
    changed = ran(shop / "cases", "sql/2_queries.sql#CHEAP")
    assert changed.status == "failed" and "1" in changed.detail
    # It is the query that runs, not what it was when the case was written.
    queries = shop / "sql" / "2_queries.sql"
    queries.write_text(queries.read_text().replace("price > 10", "price > 100"))
    assert ran(shop / "cases", "sql/2_queries.sql#dear").status == "failed"


def test_without_a_project_paths_start_at_the_case(tmp_path: Path) -> None:
    (tmp_path / "dear.sql").write_text(
        "CREATE STREAM orders (id BIGINT, price BIGINT); SELECT STREAM id FROM orders WHERE price > 10;"
    )
    assert ran(tmp_path, "dear.sql").status == "passed"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("sql/2_queries.sql", "has 2 queries, not one"),
        ("sql/2_queries.sql#deer", "did you mean `dear`"),
        ("sql/1_sources.sql#dear", "has 0 queries into `dear`"),
        ("2_queries.sql#dear", "there is no file `2_queries.sql`"),
    ],
)
def test_cases_that_name_no_query_are_refused(shop: Path, query: str, reason: str) -> None:
    try:
        found = ran(shop / "cases", query).detail
    except WatersmeetError as error:
        found = str(error)
    assert "[WRONG_CASE]" in found and reason in found


def test_a_case_has_a_script_or_names_a_query(tmp_path: Path) -> None:
    for given in ("", "sql: SELECT STREAM id FROM a\nquery: a.sql"):
        (tmp_path / "case.yaml").write_text(f"name: both or none\n{given}\nbatches: []\n")
        with pytest.raises(WatersmeetError, match="either `sql` or `query`"):
            read_case(tmp_path / "case.yaml")


def test_the_case_that_init_writes_names_the_query_of_the_project(tmp_path: Path) -> None:
    init_project(tmp_path / "shop")
    case = read_case(tmp_path / "shop" / "cases" / "joined.yaml")
    assert case.query == "sql/joined.sql#joined"
    assert run_case(case, "kernel").status == run_case(case, "reference").status == "passed"


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("|\n  CREATE STREAM a (id BIGINT);\n\n  SELECT STREAM\n      idd FROM a;", "case.yaml:6:7"),
        ("'CREATE STREAM a (id BIGINT); SELECT STREAM idd FROM a;'", "case.yaml:2:50"),
        ("CREATE STREAM a (id BIGINT); SELECT STREAM idd FROM a;", "case.yaml:2:49"),
        ("|2-\n    CREATE STREAM a (id BIGINT);\n  SELECT STREAM idd FROM a;", "case.yaml:4:17"),
        # Other words than those of the file: the place is that of the SQL itself.
        (">\n  CREATE STREAM a (id BIGINT);\n  SELECT STREAM idd FROM a;", "case.yaml:1:44"),
        ('"CREATE STREAM a (id BIGINT);\\n SELECT STREAM idd FROM a;"', "case.yaml:2:16"),
    ],
)
def test_errors_have_their_places_in_the_file(sql: str, place: str) -> None:
    text = f"name: a mistake\nsql: {sql}\nbatches: []\n"
    assert f"--> {place}\n" in run_case(parse_case(text, "case.yaml"), "kernel").detail
    syntax = run_case(parse_case(text.replace("idd", "id id id"), "case.yaml"), "kernel").detail
    assert f"--> {place.rpartition(':')[0]}:" in syntax


def test_tables_and_totals_need_what_they_expect() -> None:
    stream = "name: a\nsql: CREATE STREAM a (id BIGINT); SELECT STREAM id FROM a;\nbatches:\n- {in: {a: [[1]]}, %s}\n"
    with pytest.raises(WatersmeetError, match="`table` needs a result that is a table"):
        run_case(parse_case(stream % "table: [[1]]"), "kernel")
    with pytest.raises(WatersmeetError, match="`total` has no meaning together with `fails`"):
        parse_case("name: a\nsql: SELECT\nfails: NO_QUERY\ntotal: []")
    with pytest.raises(WatersmeetError, match="there is no field `text`"):
        parse_case("name: a\nsql: SELECT\ntext: b\nbatches: []")
    total = parse_case(stream.replace("%s", "late: []") + "total: [[1], [2]]")
    assert run_case(total, "kernel").detail == "total:\n  - [2]"
    with pytest.raises(WatersmeetError, match="`idd` is not a column of the result"):
        run_case(replace(total, total=({"idd": 1},)), "kernel")
