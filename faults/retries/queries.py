"""A query of every family over the same few sources, and their rows: a file of each source per batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

MINUTE = 60
STARTED = 1_714_557_600
"""The time at which the first batch begins, in seconds; each is a minute long."""
NAMES = ("ann", "bob", "cid", "dee", "eve", None)
CITIES = ("oslo", "rome", "bern", "lima")

SOURCES = """
CREATE STREAM orders (
  id BIGINT, customer STRING, amount DECIMAL(10, 2), score DOUBLE, tags ARRAY<STRING>, t TIMESTAMP,
  WATERMARK FOR t AS t - INTERVAL 10 SECONDS
) USING json OPTIONS (path '{data}/orders', maxFilesPerTrigger '1');
CREATE STREAM deliveries (
  id BIGINT, courier STRING, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 10 SECONDS
) USING json OPTIONS (path '{data}/deliveries', maxFilesPerTrigger '1');
CREATE STREAM payments (
  id BIGINT, paid DOUBLE, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 10 SECONDS
) USING json OPTIONS (path '{data}/payments', maxFilesPerTrigger '1');
CREATE TABLE customers (name STRING, city STRING, PRIMARY KEY (name))
  USING json OPTIONS (path '{data}/customers', maxFilesPerTrigger '1');
CREATE TABLE cities (city STRING, zone BIGINT, PRIMARY KEY (city))
  USING json OPTIONS (path '{data}/cities', maxFilesPerTrigger '1');
"""
QUERIES: Mapping[str, str] = {
    "interval": """SELECT STREAM o.id, o.customer, o.amount, o.tags, d.courier FROM orders o
LEFT JOIN deliveries d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + INTERVAL 2 MINUTES""",
    "interval full": """SELECT STREAM o.id, d.id AS delivery FROM orders o FULL JOIN deliveries d
ON o.customer = d.courier AND d.t BETWEEN o.t - INTERVAL 20 SECONDS AND o.t + INTERVAL 20 SECONDS""",
    "chain": """SELECT STREAM o.id, d.courier, p.paid FROM orders o
JOIN deliveries d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + INTERVAL 2 MINUTES
LEFT JOIN payments p ON o.id = p.id AND p.t BETWEEN d.t AND d.t + INTERVAL 2 MINUTES""",
    "window": """SELECT STREAM o.id, d.id AS delivery FROM orders o WINDOW (COUNT 20) LEFT JOIN deliveries d
WINDOW (COUNT 20) ON o.customer = d.courier""",
    "window of partitions": """SELECT STREAM o.id, d.id AS delivery FROM orders o
WINDOW (COUNT 2 PARTITION BY customer) JOIN deliveries d WINDOW (DELTA id 20) ON o.customer = d.courier""",
    "sync": "SELECT STREAM o.t, o.id, d.courier, p.paid FROM orders o SYNC JOIN deliveries d SYNC JOIN payments p",
    "asof": """SELECT STREAM o.id, o.t, d.id AS delivery FROM orders o
LEFT ASOF JOIN deliveries d MATCH_CONDITION (o.t >= d.t) ON o.customer = d.courier""",
    "lookup": "SELECT STREAM o.id, o.tags, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name",
    "changelog": "SELECT TABLE c.name, c.city, z.zone FROM customers c FULL JOIN cities z ON c.city = z.city",
    "nested": "SELECT TABLE c.name, z.city FROM customers c LEFT JOIN cities z ON c.city < z.city",
    "latest": "SELECT TABLE customer AS _key, id, amount FROM orders GROUP BY customer",
    "top": "SELECT TABLE id, amount, tags FROM orders ORDER BY amount DESC NULLS LAST LIMIT 5",
    "top of a table": "SELECT TABLE name, city FROM customers ORDER BY city, name LIMIT 2",
    "top of groups": """SELECT TABLE id, customer, amount FROM orders
QUALIFY ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount DESC) <= 2""",
    "group": """SELECT TABLE customer, count(*) AS orders, sum(amount) AS amount, avg(score) AS mean, min(t) AS first,
max_by(id, t) AS last, count(DISTINCT amount) AS amounts, collect_list(id) AS ids FROM orders GROUP BY customer""",
    "group of a table": """SELECT TABLE city, count(*) AS people, min(name) AS first, collect_list(name) AS names
FROM customers GROUP BY city""",
    "group of windows": """SELECT TABLE customer, window(t, '1 minute').start AS minute, count(*) AS orders,
sum(score) AS score FROM orders GROUP BY customer, window(t, '1 minute')""",
    "group once": """SELECT STREAM customer, window(t, '5 seconds').end AS until, count(*) AS orders,
sum(score) AS score FROM orders GROUP BY customer, window(t, '5 seconds')""",
    "first of each key": """SELECT STREAM id, customer, tags FROM orders
QUALIFY ROW_NUMBER() OVER (PARTITION BY customer ORDER BY t) = 1 WITHIN INTERVAL 3 SECONDS""",
    "group of sessions": """SELECT TABLE customer, session_window(t, '5 seconds').start AS began, count(*) AS orders,
collect_list(id) AS ids FROM orders GROUP BY customer, session_window(t, '5 seconds')""",
}
"""By family, or a kind of it."""
ONE_BATCH_PER_START = ("lookup",)
"""Queries with a clock among their sources: Spark then reads all available files in one batch."""
Rows = Mapping[str, list[dict[str, Any]]]


def script(query: str, data: Path) -> str:
    """The text of a query over the sources in a folder."""
    return f"SET watersmeet.shards = 2;\n{SOURCES.format(data=data)}\n{QUERIES[query]};\n"


def rows_of(batch: int, count: int) -> Rows:
    """The rows of a batch, by source: times are out of order, some are late, some have no key, some are duplicates."""
    random = Random(batch)
    begin = STARTED + batch * MINUTE

    def at(furthest: int = MINUTE) -> str:
        second = begin + random.randrange(-20, furthest)
        return f"2024-05-01T{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"

    orders = [
        {
            "id": batch * count + n,
            "customer": random.choice(NAMES),
            "amount": random.choice((None, random.randrange(1, 5_000) / 100)),
            "score": random.choice((None, random.random(), -0.0, 0.1)),
            "tags": random.choice((None, [], ["new"], ["new", None])),
            "t": at(),
        }
        for n in range(count)
    ]
    earlier = [max(0, batch * count + n - random.randrange(2 * count)) for n in range(count)]
    deliveries = [{"id": id_, "courier": random.choice(NAMES), "t": at()} for id_ in earlier]
    payments = [{"id": id_, "paid": random.random(), "t": at()} for id_ in earlier[::2]]
    people = [{"name": random.choice(NAMES[:-1]), "city": random.choice((*CITIES, None))} for _ in range(4)]
    gone = [{"name": random.choice(NAMES[:-1]), "_change": "-"}] if batch % 2 else []
    zones = [{"city": random.choice(CITIES), "zone": random.randrange(9)} for _ in range(2)]
    torn = [{"city": random.choice(CITIES), "_change": "-"}] if batch % 3 == 2 else []
    streams = {"orders": orders, "deliveries": deliveries, "payments": payments}
    return streams | {"customers": [*people, *gone], "cities": [*zones, *torn]}


def write_rows(data: Path, batches: range, count: int) -> None:
    """Write a file of each source per batch."""
    for batch in batches:
        for source, rows in rows_of(batch, count).items():
            folder = data / source
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{batch:04}.json"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            # Spark takes files in the order of their times.
            os.utime(file, (STARTED + batch, STARTED + batch))
