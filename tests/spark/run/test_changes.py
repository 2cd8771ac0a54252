"""Queries that change while their state goes on: stopped, edited, accepted, continued, and what must come of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.cli.test_commands import watersmeet
from tests.spark.frames import add_file, run_all, stream_files

import watersmeet as ws
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.starts import Accepting
from watersmeet.spark.run.watching import Listeners
from watersmeet.spark.state.owner import last_change

pytestmark = pytest.mark.spark

TEXT = """{limits}
CREATE STREAM l (id BIGINT, v BIGINT, t BIGINT, WATERMARK FOR t AS t - 0)
    USING json OPTIONS (path '{folder}/l');
CREATE STREAM r (id BIGINT, w BIGINT, t BIGINT, WATERMARK FOR t AS t - 0)
    USING json OPTIONS (path '{folder}/r');
CREATE SINK longer USING json OPTIONS (path '{folder}/longer');
CREATE SINK shorter USING json OPTIONS (path '{folder}/shorter');
INSERT INTO longer SELECT STREAM l.id, l.v, r.w
FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + {longer};
INSERT INTO shorter SELECT STREAM l.id, {shown} r.w
FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + {shorter};
"""


def put(folder: Path, stream: str, name: int, rows: list[tuple[int, int, int]]) -> None:
    (folder / stream).mkdir(exist_ok=True)
    value = "v" if stream == "l" else "w"
    text = "".join(json.dumps({"id": i, value: x, "t": t}) + "\n" for i, x, t in rows)
    (folder / stream / f"{name}.json").write_text(text)


def sink_rows(folder: Path, sink: str) -> list[tuple[object, ...]]:
    lines = [line for file in sorted((folder / sink).glob("*.json")) for line in file.read_text().splitlines()]
    return sorted(((row["id"], row.get("w")) for row in map(json.loads, lines)), key=str)


ZONE = "SET spark.sql.session.timeZone = Europe/Berlin;"


def run(
    spark: SparkSession, folder: Path, accepting: Accepting, news: list[str], text: str = TEXT, **said: object
) -> None:
    text = text.format(folder=folder, **{"longer": 10, "shorter": 10, "shown": "l.v,", "limits": "", **said})
    script = read_script(text)
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        run_script(
            script,
            spark=spark,
            storage=folder / "storage",
            trigger="available_now",
            options=StartOptions(accepting=accepting),
            listeners=Listeners(on_news=news.append),
        )
    finally:
        # A script may set it, for the session.
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_bounds_and_columns_change_while_the_state_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    news: list[str] = []
    put(tmp_path, "l", 1, [(1, 10, 1), (2, 20, 15), (3, 30, 18), (4, 40, 19)])
    put(tmp_path, "r", 1, [(2, 5, 20), (9, 9, 20)])
    run(spark, tmp_path, "refuse", news)
    # The mark of r is 20: row 1 has expired and came out alone.
    assert sink_rows(tmp_path, "longer") == sink_rows(tmp_path, "shorter") == [(1, None), (2, 5)]
    changes: dict[str, Any] = {"longer": 40, "shorter": 3, "shown": ""}
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, "refuse", news, **changes)
    found = {refusal.condition for refusal in raised.value.refusals}
    assert (found, len(raised.value.refusals)) == ({"CHECKPOINT_OF_A_CHANGED_QUERY"}, 2)
    longer, shorter = raised.value.refusals
    assert "rows of `l` with `l.t` before 10 were removed and do not come back" in longer.message
    assert (
        "rows of `l` with `l.t` before 17 are removed with the next batch, and emitted if unmatched" in shorter.message
    )
    assert "--accept" in longer.hint
    text = TEXT.format(folder=tmp_path, limits="", **changes)
    (tmp_path / "changed.sql").write_text(text[: text.index("INSERT INTO shorter")])
    result = watersmeet("check", tmp_path / "changed.sql", "--against", tmp_path / "storage", "--format", "json")
    (edit,) = json.loads(result.stdout)["edits"]
    assert (edit["class"], edit["follows"][0]["consequence"] in longer.message) == ("continued", True)
    # A query that is refused does not hide what is said of the other.
    away = "USING kafka OPTIONS (kafka.bootstrap.servers '127.0.0.1:1', topic 'shorter', value.format 'json')"
    refused = text.replace(f"USING json OPTIONS (path '{tmp_path}/shorter')", away)
    (tmp_path / "refused.sql").write_text(refused)
    result = watersmeet("check", tmp_path / "refused.sql", "--against", tmp_path / "storage")
    assert result.exit_code == 4 and "longer: it would continue with its state if you accept this" in result.stdout
    assert "shorter" in result.stderr and "--accept" not in result.stderr
    put(tmp_path, "l", 2, [(5, 50, 21)])
    put(tmp_path, "r", 2, [(1, 6, 21), (3, 7, 40), (4, 8, 21), (5, 9, 60)])
    run(spark, tmp_path, "accept", news, **changes)
    assert len(news) == 3
    # Longer: row 1 is gone for good; 3 and 5 meet what the old bound would not have let them meet.
    assert sink_rows(tmp_path, "longer") == [(1, None), (2, 5), (3, 7), (4, 8), (5, 9)]
    # Shorter: 4 meets 21, within 3; 3 and 5 come out alone, and 2, which has matched, leaves unseen.
    assert sink_rows(tmp_path, "shorter") == [(1, None), (2, 5), (3, None), (4, 8), (5, None)]
    # What was accepted is the query now: it goes on without being asked, and the one of before is a change.
    run(spark, tmp_path, "refuse", news, **changes)
    assert len(news) == 3
    record = json.loads((tmp_path / "storage" / "checkpoints" / "longer" / "watersmeet.json").read_text())
    assert (len(record["accepted"]), record["changed"]) == (1, 0)
    # An edit that needs no consent is recorded, too, if it changes what becomes of rows.
    run(spark, tmp_path, "refuse", news, **changes, limits="SET watersmeet.state.max_rows = 1000;")
    longer_now = tmp_path / "storage" / "checkpoints" / "longer"
    assert (len(news), last_change(longer_now)) == (3, (1, "the query was changed"))
    (tmp_path / "changed.storage").symlink_to(tmp_path / "storage")
    why = ("why", tmp_path / "changed.sql", "l", "id=5")
    answers = json.loads(watersmeet(*why, "--format", "json").stdout)
    assert [row["is_certain"] for row in answers[0]["rows"]] == [False]
    # So are another expression in SELECT, and another time zone.
    for number, (edit, limits) in enumerate((("l.v + 1 AS v,", ""), ("l.v + 1 AS v,", ZONE)), start=3):
        put(tmp_path, "l", number, [(number, 0, 60 + number)])
        text = TEXT.replace("l.v,", edit)
        run(spark, tmp_path, "refuse", news, text=text, **changes, limits=limits)
        assert last_change(longer_now) == (number - 2, "the query was changed")


TABLE = """CREATE TABLE l (id BIGINT, v BIGINT, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/l');
CREATE TABLE r (id BIGINT, w BIGINT, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/r');
CREATE SINK joined USING json OPTIONS (path '{folder}/joined', changes 'log');
INSERT INTO joined SELECT TABLE l.id, l.v + {more} AS v, r.w FROM l LEFT JOIN r ON l.id = r.id;
"""


def test_table_is_shown_otherwise_only_if_accepted(spark: SparkSession, tmp_path: Path) -> None:
    news: list[str] = []
    put(tmp_path, "l", 1, [(1, 10, 1), (2, 20, 1)])
    put(tmp_path, "r", 1, [(1, 5, 1)])
    run(spark, tmp_path, "refuse", news, TABLE, more=0)
    put(tmp_path, "l", 2, [(1, 30, 1)])
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, "refuse", news, TABLE, more=1)
    (refusal,) = raised.value.refusals
    assert refusal.condition == "CHECKPOINT_OF_A_CHANGED_QUERY" and "rows that are in the sink stay" in refusal.message
    run(spark, tmp_path, "accept", news, TABLE, more=1)
    lines = [
        json.loads(line) for file in (tmp_path / "joined").rglob("*.json") for line in file.read_text().splitlines()
    ]
    # What was emitted was 10.
    assert [row["v"] for row in lines if row["_change"] == "-"] == [11]
    # It is the query now.
    run(spark, tmp_path, "refuse", news, TABLE, more=1)


def refusal_of(call: object) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        call()  # pyright: ignore
    (found,) = raised.value.refusals
    return found


def test_a_join_in_python_goes_on_with_another_lag_and_bound(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00Z' AS t, 5 AS v")
    left, right = (stream_files(tmp_path / name, [rows]) for name in ("left", "right"))
    checkpoint = tmp_path / "checkpoint"

    def join(lag: str, within: str, **idle: str) -> object:
        one, two = left.withWatermark("t", lag), right.withWatermark("t", lag)
        return ws.join(one, two, "left.id = right.id", within=within, **idle)  # pyright: ignore

    assert sum(map(len, run_all(join("1 hour", "1 hour"), checkpoint))) == 1  # pyright: ignore
    later = join("2 hours", "3 hours").writeStream.format("noop").option("checkpointLocation", str(checkpoint))  # pyright: ignore
    found = refusal_of(later.start)
    assert found.condition == "CHECKPOINT_OF_A_CHANGED_QUERY"
    assert "stays at 2024-01-01 11:00:00 until a row later than 2024-01-01 13:00:00 arrives" in found.message
    assert '.option("watersmeet.accept", "true")' in found.hint
    add_file(tmp_path / "left", rows.selectExpr("id", "t + INTERVAL 2 HOURS AS t", "v"))
    query = later.option("watersmeet.accept", "true").trigger(availableNow=True).start()
    query.processAllAvailable()
    assert sum(int(p.numInputRows) for p in query.recentProgress) == 1
    query.stop()
    assert ws.state(checkpoint, spark).rows("left").count() == 2
    # The clock is one source more, which Spark would refuse by itself.
    idle = join("2 hours", "3 hours", left_idle="1 minute").writeStream.format("noop")  # pyright: ignore
    idle = idle.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert "its later rows may be late" in refusal_of(idle.start).message
    query = idle.option("watersmeet.accept", "true").start()
    query.awaitTermination()
    assert query.exception() is None
    assert (checkpoint / "offsets" / str(ws.state(checkpoint, spark).batch)).read_text().count("\n") == 4


OTHERS = """
CREATE STREAM a (k BIGINT, t BIGINT, WATERMARK FOR t AS t - 20 {idle}) USING json OPTIONS (path '{folder}/a');
CREATE STREAM b (k BIGINT, t BIGINT, WATERMARK FOR t AS t - 20) USING json OPTIONS (path '{folder}/b');
CREATE STREAM c (k BIGINT, t BIGINT, WATERMARK FOR t AS t - 20) USING json OPTIONS (path '{folder}/c');
CREATE SINK chain USING json OPTIONS (path '{folder}/chain');
CREATE SINK windows USING json OPTIONS (path '{folder}/windows');
INSERT INTO chain SELECT STREAM a.k, b.t AS x, c.t AS y
FROM a JOIN b ON a.k = b.k AND b.t BETWEEN a.t AND a.t + 10 JOIN c ON a.k = c.k AND c.t BETWEEN a.t AND a.t + 10;
INSERT INTO windows SELECT STREAM a.k, a.t AS x, b.t AS y
FROM a WINDOW (COUNT {size}) LEFT JOIN b WINDOW (COUNT 5) ON a.k = b.k;
"""
BATCHES: list[dict[str, list[tuple[int, int]]]] = [
    {"a": [(1, 1), (2, 2), (3, 3)], "b": [(1, 4)], "c": [(7, 5)]},
    {"a": [(4, 6)], "b": [(2, 7), (3, 7), (4, 7)], "c": [(1, 8)]},
    {"a": [(5, 9)], "b": [(5, 9)], "c": [(5, 9), (2, 9)]},
]


def test_windows_and_clocks_change_while_the_state_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    def go_on(batch: int, accepting: Accepting, **said: object) -> None:
        for name, rows in BATCHES[batch].items():
            (tmp_path / name).mkdir(exist_ok=True)
            text = "".join(json.dumps({"k": k, "t": t}) + "\n" for k, t in rows)
            (tmp_path / name / f"{batch}.json").write_text(text)
        script = read_script(OTHERS.format(folder=tmp_path, **said))
        run_script(
            script,
            spark=spark,
            storage=tmp_path / "storage",
            trigger="available_now",
            options=StartOptions(accepting=accepting),
        )

    def rows(sink: str) -> list[tuple[object, ...]]:
        lines = [line for file in (tmp_path / sink).glob("*.json") for line in file.read_text().splitlines()]
        return sorted((row["k"], row["x"], row.get("y")) for row in map(json.loads, lines))

    def sources() -> int:
        plans = sorted((tmp_path / "storage" / "checkpoints" / "chain" / "offsets").glob("[0-9]*"))
        return len(plans[-1].read_text().split("\n")) - 2

    go_on(0, "refuse", idle="", size=3)
    before = sources()
    # The clock of the first join stands in the midst of Spark's sources.
    idle = {"idle": "IDLE AFTER 1 MINUTE", "size": 1}
    with pytest.raises(WatersmeetError) as raised:
        go_on(1, "refuse", **idle)
    chain, windows = (refusal.message for refusal in raised.value.refusals)
    assert "no longer holds the others back" in chain
    assert "rows of `a` beyond the new size are removed with the next batch, and emitted if unmatched" in windows
    go_on(1, "accept", **idle)
    assert sources() == before + 1
    assert rows("chain") == [(1, 4, 8)]
    # Of three rows the window keeps one: the first has matched, the second comes out alone, the third is evicted by 4.
    assert rows("windows") == [(1, 1, 4), (2, 2, None), (3, 3, None), (4, 6, 7)]
    with pytest.raises(WatersmeetError, match="a silent side now holds the others back"):
        go_on(2, "refuse", idle="", size=1)
    go_on(2, "accept", idle="", size=1)
    assert sources() == before
    assert rows("chain") == [(1, 4, 8), (2, 7, 9), (5, 9, 9)]
    assert rows("windows") == [(1, 1, 4), (2, 2, None), (3, 3, None), (4, 6, 7), (5, 9, 9)]
    assert ws.state(tmp_path / "storage" / "checkpoints" / "chain", spark).problems.count() == 0
