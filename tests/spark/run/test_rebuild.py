"""Queries whose state is made again: stopped, edited, rebuilt, continued, and what must come of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.cli.test_commands import watersmeet

from watersmeet.errors import WatersmeetError
from watersmeet.metrics.history import HistoryWriter
from watersmeet.queries import read_script
from watersmeet.spark.private.files import UnknownStateError
from watersmeet.spark.run import rebuild
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.starts import Accepting
from watersmeet.spark.run.watching import Listeners
from watersmeet.tools.testing import Case, CaseBatch
from watersmeet.tools.testing.execute import outcomes_of

pytestmark = pytest.mark.spark

STREAM = "CREATE STREAM {0} (id BIGINT, v BIGINT, t BIGINT, WATERMARK FOR t AS t - 0)"
WITHIN = "l.id = r.id AND r.t BETWEEN l.t AND l.t + 5"
BEFORE = {
    "kinds": f"SELECT STREAM l.id, r.t FROM l JOIN r ON {WITHIN}",
    "joins": f"SELECT STREAM l.id, l.v, r.t FROM l LEFT JOIN r ON {WITHIN}",
    "windows": "SELECT STREAM l.id, l.v, r.t FROM l WINDOW (COUNT 2) JOIN r WINDOW (COUNT 2) ON l.id = r.id",
    "frames": "SELECT STREAM l.id, sum(l.id) OVER (PARTITION BY l.v ORDER BY l.t ROWS 1 PRECEDING) AS s FROM l",
}
AFTER = {
    "kinds": f"SELECT STREAM l.id, r.t, l.v, r.v AS w FROM l FULL JOIN r ON l.v + 1 = r.v AND {WITHIN}",
    "joins": (
        f"SELECT STREAM l.id, l.v, r.t, z.t AS zt FROM l LEFT JOIN r ON {WITHIN} "
        "LEFT JOIN z ON l.id = z.id AND z.t BETWEEN l.t - 9 AND l.t + 9"
    ),
    "windows": "SELECT STREAM l.id, l.v, r.t FROM l WINDOW (COUNT 3) LEFT JOIN r WINDOW (COUNT 3) ON l.id = r.id",
    "frames": "SELECT STREAM l.id, sum(l.id) OVER (PARTITION BY l.v ORDER BY l.t) AS s FROM l",
}
Rows = list[tuple[int, int, int]]
ROWS: dict[str, list[Rows]] = {
    "l": [
        [(1, 1, 1), (2, 1, 4)], [(3, 1, 21), (4, 1, 22), (5, 2, 24), (6, 1, 25), (1, 1, 2)], [(7, 1, 27), (8, 1, 60)],
    ],
    "r": [[(1, 2, 3), (9, 9, 4)], [(3, 2, 22), (4, 1, 23), (9, 1, 25)], [(5, 3, 26), (6, 2, 27), (8, 2, 61)]],
    "z": [[], [], [(3, 0, 30), (5, 0, 25), (8, 0, 70)]],
}  # fmt: skip
STOP = 2


def arrive(folder: Path, batches: Sequence[int]) -> None:
    for stream, rows in ROWS.items():
        (folder / stream).mkdir(exist_ok=True)
        for batch in batches:
            if stream != "z" or batch >= STOP:
                text = "".join(json.dumps({"id": i, "v": v, "t": t}) + "\n" for i, v, t in rows[batch])
                file = folder / stream / f"{batch}.json"
                file.write_text(text)
                os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))


def text_of(folder: Path, queries: dict[str, str]) -> str:
    said = "USING json OPTIONS (path '{0}/{1}', maxFilesPerTrigger '1');\n"
    text = "".join(STREAM.format(name) + said.format(folder, name) for name in ROWS)
    for name, query in queries.items():
        text += f"CREATE SINK {name} USING json OPTIONS (path '{folder}/out/{name}');\nINSERT INTO {name} {query};\n"
    return text


def run(spark: SparkSession, folder: Path, queries: dict[str, str], accepting: Accepting = "refuse") -> list[str]:
    news: list[str] = []
    storage = folder / "storage"
    run_script(
        read_script(text_of(folder, queries)),
        spark=spark,
        storage=storage,
        trigger="available_now",
        options=StartOptions(accepting=accepting),
        listeners=Listeners(
            on_news=news.append, on_progress=lambda progress: HistoryWriter(storage, progress.query).append(progress)
        ),
    )
    return news


def sink_rows(folder: Path, sink: str) -> Counter[tuple[Any, ...]]:
    files = sorted((folder / "out" / sink).glob("*.json"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return Counter(tuple(sorted(row.items())) for row in rows)


def batches_by_definition(query: str) -> list[Counter[tuple[Any, ...]]]:
    """What comes of every batch, by the definition."""
    sql = "".join(f"{STREAM.format(name)};\n" for name in ROWS) + query + ";"
    batches = tuple(
        CaseBatch(rows={name: tuple(rows[batch]) for name, rows in ROWS.items() if name in f"{query} l r"})
        for batch in range(len(ROWS["l"]))
    )
    found = outcomes_of(Case("case", "past", sql, batches=batches), "reference")
    rows = [[row for table in one.out for row in table.to_pylist()] for one in found]
    return [Counter(tuple(sorted((k, v) for k, v in row.items() if v is not None)) for row in batch) for batch in rows]


def contents(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest() for file in files}


def total(parts: Sequence[Counter[tuple[Any, ...]]]) -> Counter[tuple[Any, ...]]:
    return sum(parts, Counter[tuple[Any, ...]]())


def states_are_made_anew_and_go_on(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrive(tmp_path, range(STOP))
    run(spark, tmp_path, BEFORE)
    for name, query in BEFORE.items():
        assert sink_rows(tmp_path, name) == total(batches_by_definition(query)[:STOP]), name
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, AFTER)
    assert {one.condition for one in raised.value.refusals} == {"CHECKPOINT_TO_REBUILD"}
    assert all("--rebuild" in one.hint for one in raised.value.refusals) and len(raised.value.refusals) == len(AFTER)

    checkpoints = tmp_path / "storage" / "checkpoints"
    before = contents(checkpoints)
    first = tmp_path / "l" / "0.json"
    first.rename(tmp_path / "away.json")
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, AFTER, "rebuild")
    # The joins in time no longer ask for the first batch; windows do, and a join that waits for rows never read.
    gone = {one.parameters["query"]: one for one in raised.value.refusals}
    assert gone.keys() == {"frames", "joins", "windows"} and all(
        one.condition == "PAST_IS_GONE" for one in gone.values()
    )
    assert f"the file {first} is gone" in gone["windows"].message
    (tmp_path / "away.json").rename(first)

    def fail(*told: object) -> None:
        raise UnknownStateError("it is stored otherwise")

    with monkeypatch.context() as patched:
        patched.setattr(rebuild, "renumber", fail)
        with pytest.raises(WatersmeetError, match="it is stored otherwise") as raised:
            run(spark, tmp_path, {"kinds": AFTER["kinds"]}, "rebuild")
    assert raised.value.refusals[0].condition == "NOT_REBUILT"
    assert contents(checkpoints) == before

    news = run(spark, tmp_path, AFTER, "rebuild")
    told = {
        name: [one for one in news if one.startswith(f"{name}: ") and "its state is rebuilt" in one] for name in AFTER
    }
    assert "batch 1 is read again" in told["kinds"][0]
    assert "batches 0 to 1" in told["windows"][0] and "z was not read before" in told["joins"][0]
    for name, query in BEFORE.items():
        # Nothing of the replay comes out.
        assert sink_rows(tmp_path, name) == total(batches_by_definition(query)[:STOP]), name
    arrive(tmp_path, range(STOP, len(ROWS["l"])))
    assert run(spark, tmp_path, AFTER) == []
    for name in AFTER:
        came = sink_rows(tmp_path, name) - total(batches_by_definition(BEFORE[name])[:STOP])
        assert came == total(batches_by_definition(AFTER[name])[STOP:]), name
    batches = [int(file.name) for file in (checkpoints / "kinds" / "commits").iterdir() if file.name.isdecimal()]
    assert max(batches) == len(ROWS["l"]) - 1

    (tmp_path / "told.sql").write_text(text_of(tmp_path, {"kinds": BEFORE["kinds"]}))
    found = watersmeet("check", tmp_path / "told.sql", "--against", tmp_path / "storage", "--format", "json")
    (edit,) = json.loads(found.stdout)["edits"]
    assert edit["class"] == "rebuilt"


def test_topics_are_read_again_by_their_offsets(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)
    for name in ("in", "out"):
        topics.create(kafka, f"rebuild-{name}", 2)
    arrive(tmp_path, range(STOP))
    storage = tmp_path / "storage"

    def go(query: str, accepting: Accepting = "refuse") -> list[str]:
        at, news = f"kafka.bootstrap.servers '{kafka}'", list[str]()
        text = (
            STREAM.format("l")
            + f"USING kafka OPTIONS ({at}, subscribe 'rebuild-in', startingOffsets 'earliest', value.format 'json');\n"
            f"{STREAM.format('r')} USING json OPTIONS (path '{tmp_path}/r');\n"
            f"CREATE SINK out USING kafka OPTIONS ({at}, topic 'rebuild-out', value.format 'json', "
            f"delivery 'exactly_once');\nINSERT INTO out {query};"
        )
        run_script(
            read_script(text),
            spark=spark,
            storage=storage,
            trigger="available_now",
            options=StartOptions(accepting=accepting),
            listeners=Listeners(on_news=news.append),
        )
        return news

    def send(batches: Sequence[int]) -> None:
        rows = [row for batch in batches for row in ROWS["l"][batch]]
        texts = [json.dumps({"id": i, "v": v, "t": t}).encode() for i, v, t in rows]
        topics.send(kafka, "rebuild-in", [topics.Record(None, text, n % 2) for n, text in enumerate(texts)])

    def came() -> Counter[tuple[Any, ...]]:
        found = [json.loads(record.value) for record in topics.read(kafka, "rebuild-out")]
        return Counter(tuple(sorted(row.items())) for row in found)

    send(range(STOP))
    go("SELECT STREAM l.id, r.t FROM l JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 5")
    before = came()
    told = go("SELECT STREAM l.id, r.t, l.v FROM l JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 5", "rebuild")
    assert "its state is rebuilt" in told[0] and came() == before and before
    arrive(tmp_path, range(STOP, len(ROWS["l"])))
    send(range(STOP, len(ROWS["l"])))
    go("SELECT STREAM l.id, r.t, l.v FROM l JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 5")
    # 5 and 6 came before the stop, and meet what comes after it: with a column that the old state did not have.
    new = came() - before
    assert {dict(row)["id"]: dict(row)["v"] for row in new} == {5: 2, 6: 1, 8: 1}


SEPARATED = """
CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) USING csv OPTIONS (path 'l', sep '${{env:SEPARATOR}}');
CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) USING csv OPTIONS (path 'r', sep '${{env:SEPARATOR}}');
CREATE SINK out USING json OPTIONS (path 'out');
INSERT INTO out SELECT STREAM l.id FROM l {kind} JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 5;
"""


@pytest.mark.usefixtures("spark")
def test_references_are_resolved_wherever_sources_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPARATOR", "|")
    for name, row in (("l", "1|3\n"), ("r", "1|4\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.csv").write_text(row)
    script = tmp_path / "query.sql"
    script.write_text(SEPARATED.format(kind=""))
    for command in (["check", script, "--deep"], ["advise", script], ["run", script, "--once"]):
        ended = watersmeet(*command)
        assert ended.exit_code == 0, ended.output
    script.write_text(SEPARATED.format(kind="LEFT"))
    rebuilt = watersmeet("run", script, "--once", "--rebuild")
    assert rebuilt.exit_code == 0, rebuilt.output
    result = watersmeet("why", script, "l", "id=1")
    assert result.exit_code == 0 and "matched" in result.stdout, result.output
    # What the query did with it before the rebuild is not known, and the verdict says so.
    assert "  uncertain  it is not known whether it was late" in result.stdout
    assert "  matched    batch 0 (uncertain): " in result.stdout
    assert "Unknown: The state was rebuilt after batch 0" in result.stdout
    assert "(uncertain up to batch 0)" in watersmeet("why", script, "--summary").stdout
    (tmp_path / "l" / "1.csv").write_text("2|9\n")
    assert watersmeet("run", script, "--once").exit_code == 0
    (answer,) = json.loads(watersmeet("why", script, "l", "id=2", "--format", "json").stdout)
    assert [row["is_certain"] for row in answer["rows"]] == [True]
    assert "${env:SEPARATOR}" in (tmp_path / "query.storage/checkpoints/out/watersmeet.json").read_text()
