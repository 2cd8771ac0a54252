"""Cases that name a query of their project."""

from __future__ import annotations

from pathlib import Path

import pytest

from watersmeet.cli.init import init_project
from watersmeet.errors import WatersmeetError
from watersmeet.tools.testing import Result, read_case, run_case

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
