"""What only Spark knows of functions: whether they give another value when a row is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StringType

import watersmeet as ws
from watersmeet.errors import WatersmeetError

pytestmark = pytest.mark.spark

KEYED = "CREATE TABLE t (id BIGINT, v STRING, PRIMARY KEY (id));"
BAG = "CREATE TABLE t (id BIGINT, v STRING);"


@pytest.fixture
def changes(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of changes, and functions that Spark knows, of which one says that it is not deterministic."""

    def same(value: str) -> str:
        return value

    spark.udf.register("trusted", same, StringType())
    spark.udf.register("drawn", F.udf(same, StringType()).asNondeterministic())
    (tmp_path / "in").mkdir()
    return spark.readStream.schema("id BIGINT, v STRING, _change STRING").json(str(tmp_path / "in"))


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        ("SELECT TABLE id, drawn(v) AS d FROM t", "drawn(v)"),
        ("SELECT TABLE v, count(*) AS n FROM t WHERE drawn(v) = 'a' GROUP BY v", "drawn(v) = 'a'"),
        ("SELECT TABLE v, drawn(v) AS d, count(*) AS n FROM t GROUP BY v", "drawn(v)"),
        (
            "WITH w AS (SELECT TABLE v, max(id) AS m FROM t GROUP BY v) SELECT TABLE m FROM w WHERE drawn(v) = 'a'",
            "drawn(v) = 'a'",
        ),
        (
            "WITH w AS (SELECT TABLE v, drawn(v) AS d, max(id) AS m FROM t GROUP BY v) SELECT TABLE max(m) AS m FROM w",
            "drawn(v)",
        ),
        ("SELECT TABLE id, trusted(v) AS d, convert_timezone('UTC', timestamp_ntz'2026-01-01') AS z FROM t", None),
        ("SELECT TABLE v, collect_list(id) AS ids FROM t GROUP BY v", None),
        ("SELECT TABLE id FROM t WHERE CAST(v AS DATE) = 'today'", "CAST(v AS DATE) = 'today'"),
        ("SELECT TABLE id, year('Tomorrow UTC') AS y FROM t", "year('Tomorrow UTC')"),
        ("SELECT TABLE id, v = 'today' AS x, CAST(v AS DATE) > '2026-01-01' AS y FROM t", None),
    ],
)  # fmt: skip
def test_functions_that_users_add(query: str, refused: str | None, changes: DataFrame) -> None:
    if refused is None:
        assert ws.sql(f"{KEYED} {query}", t=changes).isStreaming
        return
    with pytest.raises(WatersmeetError) as raised:
        ws.sql(f"{KEYED} {query}", t=changes)
    assert [(one.condition, one.parameters["function"]) for one in raised.value.refusals] == [
        ("NON_DETERMINISTIC", refused)
    ]


@pytest.mark.parametrize("impure", ["concat(v, rand())", "concat(v, current_timestamp())", "drawn(v)"])
def test_changes_of_a_frame_that_are_drawn_each_time(impure: str, changes: DataFrame) -> None:
    query, frame = "SELECT TABLE id, v FROM t", changes.selectExpr("id", f"{impure} AS v", "_change")
    # By its key a table takes back the row that it keeps.
    assert ws.sql(f"{KEYED} {query}", t=frame).isStreaming
    with pytest.raises(WatersmeetError, match=r"NON_DETERMINISTIC.*`t` would make the result wrong"):
        ws.sql(f"{BAG} {query}", t=frame)
    assert ws.sql(f"{BAG} {query}", t=changes).isStreaming
