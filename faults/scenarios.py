"""Queries of three families, each into three kinds of sink, and readers of their rows.

A batch is one file of each source and all files are there from the start, so that every run has the same batches and
must have the same result, wherever it was interrupted. An undisturbed run has larger batches where the result does not
depend on them. Some scenarios have malformed lines in their data. These are dropped, or written to a side output, each
once, and the rows are those of a run without them.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb
import psycopg

Rows = Counter[tuple[object, ...]]

SECONDS = 60
"""The event time that a file holds."""

ORDERS = """CREATE STREAM orders (id BIGINT, t BIGINT, n INT, WATERMARK FOR t AS t - 30)
    USING json OPTIONS (path 'data/orders', maxFilesPerTrigger '1');
CREATE STREAM deliveries (order_id BIGINT, t BIGINT, n INT, WATERMARK FOR t AS t - 30)
    USING json OPTIONS (path 'data/deliveries', maxFilesPerTrigger '1');
"""
TABLES = """CREATE TABLE orders (id BIGINT, t BIGINT, n INT, PRIMARY KEY (id))
    USING json OPTIONS (path 'data/orders', maxFilesPerTrigger '1');
CREATE TABLE deliveries (order_id BIGINT, t BIGINT, n INT, PRIMARY KEY (order_id))
    USING json OPTIONS (path 'data/deliveries', maxFilesPerTrigger '1');
"""
DEBEZIUM = """CREATE TABLE orders (id BIGINT, t BIGINT, n INT, day DATE, at TIMESTAMP, PRIMARY KEY (id))
    CHANGES FROM debezium
    USING text OPTIONS (path 'data/orders', debezium.time 'millis', maxFilesPerTrigger '1');
CREATE TABLE deliveries (order_id BIGINT, t BIGINT, n INT, day DATE, at TIMESTAMP, PRIMARY KEY (order_id))
    CHANGES FROM debezium
    USING text OPTIONS (path 'data/deliveries', debezium.time 'millis', maxFilesPerTrigger '1');
"""
QUERIES: Mapping[str, str] = {
    "interval": f"""{ORDERS}
INSERT INTO result SELECT STREAM o.id, o.n AS a, d.n AS b
FROM orders o LEFT JOIN deliveries d ON o.id = d.order_id AND d.t BETWEEN o.t AND o.t + 90;
""",
    "window": f"""{ORDERS}
INSERT INTO result SELECT STREAM o.id, o.n AS a, d.n AS b
FROM orders o WINDOW (COUNT 20) JOIN deliveries d WINDOW (COUNT 20) ON o.id = d.order_id;
""",
    "table": f"""{TABLES}
INSERT INTO result SELECT TABLE o.id, o.n AS a, d.n AS b FROM orders o LEFT JOIN deliveries d ON o.id = d.order_id;
""",
    "group": f"""{ORDERS}
INSERT INTO result SELECT TABLE o.id, count(*) AS a, sum(o.n) AS b FROM orders o GROUP BY o.id;
""",
    "debezium": f"""{DEBEZIUM}
INSERT INTO result SELECT TABLE o.id, o.n AS a, d.n AS b, o.day, o.at, d.day AS delivery_day, d.at AS delivered_at
FROM orders o LEFT JOIN deliveries d ON o.id = d.order_id;
""",
}
TABLE_QUERIES = ("table", "group", "debezium")
SINKS = ("files", "postgres", "kafka")
POISON = ('{"id": 1, "t": ', "not JSON", '{"id": "x", "order_id": "x", "t": 1, "n": 1}', '{"n": 99999999999, "t": 1}')
"""Lines, and values of records, that are not rows."""
DEBEZIUM_POISON = (
    "not JSON", '{"op": "c", "after": {"id": 1, "order_id": 1, "n": 1, "day": 99999999999}}',
    '{"op": "c", "after": {"id": 1, "order_id": 1, "n": 1, "at": 9223372036854775807}}',
    '{"op": "c", "after": {"id": "x", "order_id": "x", "n": 1}}',
)  # fmt: skip
"""Records that are not changes, or whose dates and times are out of range."""
POISON_SINK = "CREATE SINK poison USING json OPTIONS (path 'poison');\n"


@dataclass(frozen=True)
class Scenario:
    """A query into a sink."""

    query: str
    sink: str
    malformed: Literal["", "drop", "into"] = ""
    """The policy for malformed lines; if it is empty, the data have none."""
    source: Literal["files", "topics"] = "files"

    @property
    def name(self) -> str:
        """The display name."""
        source = " from topics" if self.source == "topics" else ""
        return f"{'poisoned ' if self.is_poisoned else ''}{self.query}{source} into {self.sink}"

    @property
    def is_poisoned(self) -> bool:
        """Whether the data have malformed lines."""
        return self.malformed != ""

    @property
    def has_snapshot(self) -> bool:
        """Whether the sink is a folder that holds a table as it is."""
        return self.sink == "files" and self.query in TABLE_QUERIES

    @property
    def refuses_older_checkpoint(self) -> bool:
        """Whether the sink refuses a restored checkpoint; files of rows are written again."""
        return self.sink != "files" or self.has_snapshot

    @property
    def can_merge_batches(self) -> bool:
        """Whether two batches may become one: the rows in a window depend on the batches."""
        return self.query != "window"

    @property
    def can_write_again(self) -> bool:
        """Whether batches can be written again, or by two drivers: the sink refuses it, or replaces what it wrote."""
        # A topic that gets records by key, at least once, keeps an old record of a key that does not change again.
        return self.query not in TABLE_QUERIES or self.sink != "kafka"

    @property
    def poison_lines(self) -> tuple[str, ...]:
        """The malformed lines, which are in every file."""
        return DEBEZIUM_POISON if self.query == "debezium" else POISON

    def make(self, folder: Path, files: int, address: str, table: str, *, is_calm: bool) -> None:
        """Write the project and its data into a folder; a calm one has large batches and no malformed lines."""
        _write_data(folder / "data", files)
        query = QUERIES[self.query]
        if self.query == "debezium":
            _wrap_in_debezium(folder / "data")
        if self.is_poisoned:
            query = query.replace("data/deliveries',", "data/deliveries', malformed 'drop',")
        if self.malformed == "drop":
            query = query.replace("data/orders',", "data/orders', malformed 'drop',")
        if self.malformed == "into":
            # One source declares it, for the other the side output is enough: malformed lines of both go there.
            query = f"{POISON_SINK}{query.rstrip().removesuffix(';')}\nMALFORMED INTO poison;\n"
        if self.is_poisoned and not is_calm:
            _poison(folder / "data", self.poison_lines)
        if self.source == "topics":
            query = _read_from_topics(query, folder / "data", address, table)
        if is_calm and self.can_merge_batches:
            # 11 files, or 130 records. Rows of a batch arrive in the order of their files.
            query = query.replace("PerTrigger '", "PerTrigger '1")
        (folder / "sql").mkdir()
        (folder / "watersmeet.yml").write_text("name: faults\n")
        (folder / "sql" / "query.sql").write_text(f"{self._sink(address, table)}{query}")

    def poison(self, folder: Path) -> Rows:
        """The malformed lines in the output for them, with their sources."""
        lines = (line for file in (folder / "poison").glob("*.json") for line in file.read_text().splitlines())
        return Counter((row["source"], row["value"]) for row in map(json.loads, lines))

    def input_poison(self, folder: Path) -> Rows:
        """The malformed lines that are in the data, with their sources."""
        if self.malformed != "into":
            return Counter()
        files = (folder / "data").glob("*/*.json")
        lines = ((file.parent.name, line) for file in files for line in file.read_text().splitlines())
        return Counter((source, line) for source, line in lines if line in self.poison_lines)

    def _sink(self, address: str, table: str) -> str:
        if self.sink == "postgres":
            return f"CREATE SINK result USING postgres OPTIONS (dsn '{address}', table '{table}');\n"
        if self.sink == "kafka":
            # The latest record of a key counts, so a batch of a table may be written again.
            how = "changes 'upsert'" if self.query in TABLE_QUERIES else "delivery 'exactly_once', value.format 'json'"
            where = f"kafka.bootstrap.servers '{address}', topic '{table}', partitions '2'"
            return f"CREATE SINK result USING kafka OPTIONS ({where}, {how});\n"
        changes = ", changes 'snapshot'" if self.query in TABLE_QUERIES else ""
        return f"CREATE SINK result USING parquet OPTIONS (path 'result'{changes});\n"

    def rows(self, folder: Path, address: str, table: str) -> Rows:
        """The rows that an independent reader finds."""
        if self.sink == "postgres":
            with psycopg.connect(address) as connection:
                return Counter(connection.execute(f'SELECT id, a, b FROM "{table}"').fetchall())  # pyright: ignore
        if self.sink == "kafka":
            from faults.topics import read

            records = read(address, table)
            latest = {record.key: record for record in records}.values() if self.query in TABLE_QUERIES else records
            return Counter(
                tuple(record.row[name] for name in ("id", "a", "b")) for record in latest if record.value is not None
            )
        within = "current/*.parquet" if self.query in TABLE_QUERIES else "*.parquet"
        relation = duckdb.sql(f"SELECT id, a, b FROM read_parquet('{folder / 'result' / within}')")
        return Counter(relation.fetchall())


SCENARIOS = (
    *(Scenario(query, sink) for query in ("interval", "window", "table") for sink in SINKS),
    *(Scenario("interval", sink, malformed="into") for sink in SINKS),
    Scenario("interval", "kafka", malformed="into", source="topics"),
    Scenario("debezium", "postgres", malformed="into"),
    Scenario("debezium", "files", malformed="drop"),
)


def _poison(data: Path, poison: Sequence[str]) -> None:
    """Add malformed lines to every file: truncated ones, values of other types, numbers out of range."""
    _rewrite(data, lambda lines: [*lines, *poison])


def _wrap_in_debezium(data: Path) -> None:
    """Turn all rows into changes, with a date and a time each."""
    _rewrite(data, lambda lines: [f'{{"op": "c", "after": {{"day": 20000, "at": 1000, {line[1:]}}}' for line in lines])


def _rewrite(data: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of every file, and keep its modification time."""
    for file in data.glob("*/*.json"):
        moment = file.stat().st_mtime
        file.write_text("".join(f"{line}\n" for line in change(file.read_text().splitlines())))
        os.utime(file, (moment, moment))


def _read_from_topics(query: str, data: Path, address: str, table: str) -> str:
    """Send the lines of all files to topics, in order; returns the query over these, with some records per batch."""
    from faults.topics import Record, create, send

    for source in ("orders", "deliveries"):
        topic = f"{table}_{source}"
        create(address, topic)
        lines = (line for file in sorted((data / source).glob("*.json")) for line in file.read_text().splitlines())
        send(address, topic, [Record(None, line.encode()) for line in lines])
        options = f"kafka.bootstrap.servers '{address}', subscribe '{topic}', value.format 'json'"
        query = query.replace(f"path 'data/{source}'", f"{options}, startingOffsets 'earliest'")
    return query.replace("USING json OPTIONS (kafka", "USING kafka OPTIONS (kafka").replace(
        "maxFilesPerTrigger '1'", "maxOffsetsPerTrigger '30'"
    )


def _write_data(data: Path, files: int, seed: int = 7) -> None:
    """Files of both sources: rows are out of order by less than the lag, and one in four has no partner.

    Consecutive files have rows of the same keys: in a table those of the later file count, also if both are in one
    batch, as they are if a driver died while Spark planned a batch.
    """
    chance = random.Random(seed)
    for name, key in (("orders", "id"), ("deliveries", "order_id")):
        (data / name).mkdir(parents=True)
        for number in range(files):
            moments = sorted(chance.randrange(SECONDS) for _ in range(40))
            rows = [
                {
                    key: chance.randrange(60),
                    "t": number * SECONDS + moment - chance.randrange(20),
                    "n": number * 100 + i,
                }
                for i, moment in enumerate(moments)
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows if chance.random() < 0.75)
            file = data / name / f"{number:04}.json"
            file.write_text(text)
            # Spark takes files in the order of their times.
            os.utime(file, (1_700_000_000 + number,) * 2)
