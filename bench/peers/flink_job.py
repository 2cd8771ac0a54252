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
    """Declare the query, run it, and print its duration and, on request, its rows."""
    request = json.loads(sys.argv[1])
    launched = float(os.environ["WATERSMEET_BENCH_LAUNCHED"])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    jars = {"pipeline.jars": ";".join(request["jars"])} if request["jars"] else {}
    for name, value in (SETTINGS | jars).items():
        tables.get_config().set(name, value)
    for statement in request["declared"]:
        tables.execute_sql(statement)
    ready = time.time()
    result: dict[str, Any] = {"start": round(ready - launched, 2)}
    if request["collect"]:
        result["rows"] = _collect(tables, request["query"])
    else:
        shown = tables.sql_query(request["query"])
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
    for name in ("BIGINT", "DOUBLE", "INT"):
        if text.startswith(name):
            return name
    return "TIMESTAMP(3)" if text.startswith("TIMESTAMP") else "STRING"


def _collect(tables: Any, query: str) -> list[list[Any]]:
    """The final rows."""
    counts: dict[tuple[Any, ...], int] = {}
    with tables.execute_sql(query).collect() as rows:
        for row in rows:
            gone = row.get_row_kind() in (RowKind.DELETE, RowKind.UPDATE_BEFORE)
            values = tuple(None if value is None else str(value) for value in row)
            counts[values] = counts.get(values, 0) + (-1 if gone else 1)
    return [list(values) for values, count in counts.items() for _ in range(count)]


if __name__ == "__main__":
    main()
