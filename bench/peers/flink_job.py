"""A query on Flink, in an environment of its own, without Watersmeet: ``python flink_job.py '{...}'``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyflink.common import RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "parallelism.default": "2",
    "state.backend.type": "hashmap",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.network.max": "256mb",
    # As Nexmark's own runs on Flink have it.
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
}


def main() -> None:
    """Declare what is asked, run it, and tell how long it took or, if asked to, what came out."""
    asked = json.loads(sys.argv[1])
    launched = float(os.environ["WATERSMEET_BENCH_LAUNCHED"])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    jars = {"pipeline.jars": ";".join(asked["jars"])} if asked["jars"] else {}
    for name, value in (SETTINGS | jars).items():
        tables.get_config().set(name, value)
    for statement in asked["declared"]:
        tables.execute_sql(statement)
    ready = time.time()
    result: dict[str, Any] = {"start": round(ready - launched, 2)}
    if asked["collect"]:
        result["rows"] = _collected(tables, asked["query"])
    else:
        shown = tables.sql_query(asked["query"])
        tables.create_temporary_view("result", shown)
        columns = ", ".join(f"`{name}` {kind}" for name, kind in _columns(shown))
        # No longer event times: a sink takes one of them at most.
        values = ", ".join(f"CAST(`{name}` AS {kind})" for name, kind in _columns(shown))
        tables.execute_sql(f"CREATE TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
        tables.execute_sql(f"INSERT INTO nowhere SELECT {values} FROM `result`").wait()
    result["run"] = round(time.time() - ready, 2)
    print("RESULT " + json.dumps(result), flush=True)


def _columns(table: Any) -> list[tuple[str, str]]:
    schema = table.get_resolved_schema()
    types = [kind._j_data_type if hasattr(kind, "_j_data_type") else kind for kind in schema.get_column_data_types()]
    return [(name, _sql(kind)) for name, kind in zip(schema.get_column_names(), types, strict=True)]


def _sql(kind: Any) -> str:
    text = str(kind).upper()
    for found in ("BIGINT", "DOUBLE", "INT"):
        if text.startswith(found):
            return found
    return "TIMESTAMP(3)" if text.startswith("TIMESTAMP") else "STRING"


def _collected(tables: Any, query: str) -> list[list[Any]]:
    """The rows that are there in the end."""
    kept: dict[tuple[Any, ...], int] = {}
    with tables.execute_sql(query).collect() as rows:
        for row in rows:
            gone = row.get_row_kind() in (RowKind.DELETE, RowKind.UPDATE_BEFORE)
            values = tuple(None if value is None else str(value) for value in row)
            kept[values] = kept.get(values, 0) + (-1 if gone else 1)
    return [list(values) for values, count in kept.items() for _ in range(count)]


if __name__ == "__main__":
    main()
