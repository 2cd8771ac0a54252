"""What workers do to rows on their way to an exchange, over columns, is what Spark does to them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.spark.frames import all_rows

import watersmeet as ws
from watersmeet.operators.core.routing import code_of, is_hashable
from watersmeet.spark.compile import compiler

pytestmark = pytest.mark.spark

BATCHES, ROWS = 3, 60
START = datetime(1969, 12, 31, 23, 59, 30)
"""Windows before 1970 are counted from there, too."""
SCRIPT = """
CREATE STREAM a (id BIGINT, k STRING, c INT, s SMALLINT, t TIMESTAMP, v BIGINT, d DATE,
    WATERMARK FOR t AS t - INTERVAL 20 SECONDS) USING parquet OPTIONS (path '{folder}/a', maxFilesPerTrigger '1');
CREATE STREAM b (id BIGINT, k STRING, t TIMESTAMP, w STRING, WATERMARK FOR t AS t - INTERVAL 20 SECONDS)
    USING parquet OPTIONS (path '{folder}/b', maxFilesPerTrigger '1');
CREATE TABLE u (id BIGINT, k STRING, w STRING, PRIMARY KEY (id))
    USING parquet OPTIONS (path '{folder}/u', maxFilesPerTrigger '1');
CREATE TABLE bag (id BIGINT, k STRING, w STRING) USING parquet OPTIONS (path '{folder}/u', maxFilesPerTrigger '1');
CREATE TABLE fixed (id BIGINT, w STRING) USING parquet OPTIONS (path '{folder}/fixed', static 'true');
"""
WITHIN = "b.t BETWEEN a.t - INTERVAL 8 SECONDS AND a.t + INTERVAL 5 SECONDS"
QUERIES = {
    "filters of streams": (
        "SELECT STREAM a.id, a.k, a.v, b.w FROM a LEFT JOIN b ON a.id = b.id AND " + WITHIN
        + " WHERE a.c <> 2 AND (a.k IN ('x', 'é') OR a.k IS NULL OR NOT a.s >= -1) AND a.k < 'zz'",
        {"PackFiles": 2},
    ),
    "conditions of one side": (
        f"SELECT STREAM a.id, a.v, b.w FROM a FULL JOIN b ON a.id = b.id AND {WITHIN} AND a.c > 1 AND b.w = 'w'",
        {"PackFiles": 2},
    ),
    "keys that are hashed": (
        f"SELECT STREAM a.id, a.k, b.w FROM a JOIN b ON a.k = b.k AND a.id % 3 = b.id AND {WITHIN}",
        {"PackFiles": 2},
    ),
    "a comparison in which Spark casts": (
        f"SELECT STREAM a.id, b.w FROM a JOIN b ON a.id = b.id AND {WITHIN} WHERE a.c > 1.5 OR a.d < '1970-01-01'",
        {"PackFiles": 1, "Pack": 1},
    ),
    "a table that is looked up": (
        "SELECT STREAM a.id, a.v, u.w FROM a LEFT JOIN u ON a.id = u.id WHERE a.c < 3 AND u.k = 'x'",
        {"PackFiles": 2},
    ),
    "tables": ("SELECT TABLE u.id, u.w, bag.w AS o FROM u JOIN bag ON u.id = bag.id WHERE u.k = 'x'", {"PackFiles": 2}),
    "a table that never changes": (
        "SELECT STREAM a.id, a.v, f.w FROM a LEFT JOIN fixed f ON a.id % 5 = f.id AND a.k = f.w", {},
    ),
    "windows of groups": (
        ("SELECT TABLE k, window_start, count(*) AS n, max_by(v, c) AS m"
        " FROM TABLE(HOP(TABLE a, DESCRIPTOR(t), INTERVAL '4' SECONDS, INTERVAL '10' SECONDS))"
        " WHERE c > 0 GROUP BY k, window_start, window_end"),
        {"PackFiles": 1},
    ),
    "sums of rows that are alike": (
        (
            "SELECT TABLE c, window_end, count(*) AS n, count(k) AS known, sum(s) AS total, avg(s) AS mean,"
            " var_pop(s) AS spread, max(k) AS last FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(t), INTERVAL '7' SECONDS))"
            " GROUP BY c, window_start, window_end"
        ),
        {"PackFiles": 1},
    ),
    "times that a grouping asks for": (
        (
            "SELECT TABLE c, t, count(*) AS n, max(t) AS last, min(t) AS first FROM a"
            " GROUP BY c, t, window(t, '10 seconds', '4 seconds')"
        ),
        {"PackFiles": 1},
    ),
    "the latest of each window": (
        "SELECT TABLE c, max(t) AS last, count(*) AS n FROM a GROUP BY c, window(t, '10 seconds')",
        {"PackFiles": 1},
    ),
    "one source in two ways": (
        f"SELECT STREAM a.id, b.c FROM a JOIN a b ON a.id = b.id AND {WITHIN} WHERE upper(b.k) = 'X' AND a.c > 1",
        {"Pack": 2},
    ),
    "a table that never changes, all of it": (
        "SELECT TABLE f.w, count(*) AS n, max_by(a.v, a.c) AS v FROM a JOIN fixed f ON TRUE GROUP BY f.w", {}
    ),
    "no column at all": ("SELECT TABLE count(*) AS n FROM bag JOIN u ON TRUE", {}),
    "counts in windows that overlap": (
        (
            "SELECT TABLE c, window_start, count(*) AS n"
            " FROM TABLE(HOP(TABLE a, DESCRIPTOR(t), INTERVAL '4' SECONDS, INTERVAL '10' SECONDS))"
            " WHERE k = 'x' GROUP BY c, window_start, window_end"
        ),
        {"PackFiles": 1},
    ),
    "the first of groups": (
        (
            "SELECT TABLE k, n FROM (SELECT TABLE k, c, count(*) AS n FROM a GROUP BY k, c) AS counted"
            " QUALIFY RANK() OVER (PARTITION BY k ORDER BY n DESC) <= 2"
        ),
        {"PackFiles": 1, "Repack": 1},
    ),
    "windows that are joined": (
        ("SELECT STREAM x.id, x.v, y.w, x.window_end"
        " FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(t), INTERVAL '7' SECONDS)) x"
        " LEFT JOIN TABLE(CUMULATE(TABLE b, DESCRIPTOR(t), INTERVAL '7' SECONDS, INTERVAL '14' SECONDS)) y"
        " ON x.id = y.id AND x.window_start = y.window_start AND x.window_end = y.window_end"),
        {"PackFiles": 2},
    ),
    "groups behind a join": (
        ("SELECT TABLE c, sum(top) AS total FROM (SELECT TABLE a.id, a.c, max(a.v) AS top FROM a JOIN b ON a.id = b.id"
        f" AND {WITHIN} GROUP BY a.id, a.c) g GROUP BY c"),
        {"PackFiles": 2, "Repack": 2},
    ),
    "a join of groups": (
        ("CREATE VIEW n AS SELECT TABLE k, window(t, '10 seconds') AS w, count(*) AS n FROM a"
        " GROUP BY k, window(t, '10 seconds');"
        " CREATE VIEW most AS SELECT TABLE w.start AS since, max(n) AS n FROM n GROUP BY w.start;"
        " SELECT TABLE n.k, n.n FROM n JOIN most m ON n.w.start = m.since AND n.n = m.n"),
        {"PackFiles": 2},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with NULLs everywhere, in files of which each is a batch."""
    found, rng = tmp_path_factory.mktemp("rows"), random.Random(7)
    for number in range(BATCHES):
        moments = [START + timedelta(seconds=number * 20 + rng.uniform(0, 25)) for _ in range(ROWS)]
        ids, texts = _some(rng, range(9)), _some(rng, ("x", "y", "é", "a text that is long enough for a stripe", ""))
        left = {
            "id": ids, "k": texts, "c": pa.array(_some(rng, range(4)), pa.int32()),
            "s": pa.array(_some(rng, range(-3, 3)), pa.int16()), "t": _times(_some(rng, moments)),
            "v": _some(rng, range(100)), "d": _some(rng, [date(1969, 5, 5), date(2020, 1, 1)]),
        }  # fmt: skip
        right = {"id": _some(rng, range(9)), "k": texts, "t": _times(moments), "w": _some(rng, ("w", "z"))}
        table = {"id": ids[:20], "k": texts[:20], "w": _some(rng, ("w", "z"))[:20]}
        _write(found / "a" / f"{number}.parquet", left, number)
        _write(found / "b" / f"{number}.parquet", right, number)
        told = {"_change": _some(rng, "+-")[:20]} if number == 1 else {}
        _write(found / "u" / f"{number}.parquet", table | told, number)
    _write(found / "fixed" / "0.parquet", {"id": [0, 1, 1, None], "w": ["x", "y", "x", "x"]}, 0)
    return found


def _some(rng: random.Random, values: Any) -> list[Any]:
    return [rng.choice([*values, None]) for _ in range(ROWS)]


def _times(times: Sequence[datetime | None]) -> pa.Array:
    return pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))


def _write(path: Path, columns: dict[str, Any], number: int) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def packs(frame: DataFrame) -> Counter[str]:
    """How rows get to the exchanges of a query."""
    plan = cast("Any", frame)._jdf.queryExecution().logical().toString()
    lines = [line.split("MapInArrow ")[1] for line in plan.splitlines() if "MapInArrow " in line]
    found = Counter(line.split("(")[0] for line in lines)
    return Counter({name: found[name] for name in ("PackFiles", "Repack", "Pack") if found[name]})


@pytest.mark.parametrize("name", QUERIES)
def test_columns_give_what_rows_give(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    query, expected = QUERIES[name]
    text = SCRIPT.format(folder=folder) + query + ";"
    by_columns = ws.sql(text, spark=spark)
    monkeypatch.setattr(compiler, "columnar_path", lambda *_: None)
    by_rows = ws.sql(text, spark=spark)
    shown = packs(by_columns)
    assert expected.items() <= shown.items(), shown
    assert "PackFiles" not in packs(by_rows) and "Repack" not in packs(by_rows)
    if name == "one source in two ways":
        # One stream to Spark, as it has always been: a checkpoint counts its sources.
        return
    assert by_columns.schema == by_rows.schema
    found = all_rows(by_columns, tmp_path / "columns")
    assert found == all_rows(by_rows, tmp_path / "rows") and found


DDL = (
    "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f DATE, g TIMESTAMP_NTZ, h STRING, i BINARY, j DECIMAL(18,3),"
    " k STRUCT<x: BIGINT, y: STRING>, l TIMESTAMP"
)


def test_codes_are_those_of_spark(spark: SparkSession) -> None:
    rng = random.Random(11)
    moment = datetime(1900, 1, 1)

    def one() -> tuple[Any, ...]:
        time = moment + timedelta(microseconds=rng.randrange(2**52))
        values = (
            rng.random() < 0.5, *(rng.randrange(-(2**bits), 2**bits) for bits in (7, 15, 31, 63)), time.date(), time,
            "".join(rng.choice("aé漢z") for _ in range(rng.randrange(50))), rng.randbytes(rng.randrange(100)),
            Decimal(rng.randrange(-(10**17), 10**17)).scaleb(-3), (rng.choice([None, 3]), rng.choice([None, "y"])),
            time,
        )  # fmt: skip
        return tuple(None if rng.random() < 0.1 else value for value in values)

    frame = spark.createDataFrame([one() for _ in range(500)], DDL)
    rows = frame.toArrow().slice(13).combine_chunks().to_batches()[0]
    hashes = [F.xxhash64(name).alias(name) for name in frame.columns]
    expected = frame.select(*hashes, F.xxhash64(*frame.columns).alias("all")).toArrow().slice(13)
    assert all(is_hashable(field.type) for field in rows.schema)
    for name in frame.columns:
        assert code_of([rows.column(name)]).tolist() == expected[name].to_pylist(), name
    assert code_of(rows.columns).tolist() == expected["all"].to_pylist()
    assert (
        not is_hashable(pa.float64()) and not is_hashable(pa.decimal128(19, 2)) and not is_hashable(pa.list_(pa.int8()))
    )
