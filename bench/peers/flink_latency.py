"""The join of ``bench.latency`` on Flink, in an environment of its own: ``python flink_latency.py BROKER JAR``.

It runs until the standard input ends, and tells when it does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

SIDE = """CREATE TABLE {side}_side (
    id BIGINT, ts BIGINT, sent AS TO_TIMESTAMP_LTZ(ts, 3), WATERMARK FOR sent AS sent - INTERVAL '5' SECOND
) WITH (
    'connector' = 'kafka', 'topic' = 'flink-{side}', 'properties.bootstrap.servers' = '{address}',
    'scan.startup.mode' = 'earliest-offset', 'format' = 'json'
)"""
JOINED = """CREATE TABLE joined (id BIGINT, later BIGINT) WITH (
    'connector' = 'kafka', 'topic' = 'flink-joined', 'properties.bootstrap.servers' = '{address}', 'format' = 'json'
)"""
QUERY = """INSERT INTO joined
SELECT l.id, GREATEST(l.ts, r.ts) FROM left_side l JOIN right_side r
    ON l.id = r.id AND r.sent BETWEEN l.sent - INTERVAL '10' SECOND AND l.sent + INTERVAL '10' SECOND"""


def main() -> None:
    """Start the join, say so when it runs, and cancel it in the end."""
    address, jar = sys.argv[1:]
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    with tempfile.TemporaryDirectory(prefix="watersmeet-latency-", ignore_cleanup_errors=True) as checkpoints:
        settings = {
            "pipeline.jars": Path(jar).as_uri(), "parallelism.default": "2", "pipeline.object-reuse": "true",
            "state.backend.type": "hashmap", "execution.checkpointing.interval": "10s",
            "execution.checkpointing.dir": Path(checkpoints).as_uri(), "taskmanager.memory.network.max": "256mb",
        }  # fmt: skip
        for name, value in settings.items():
            tables.get_config().set(name, value)
        for side in ("left", "right"):
            tables.execute_sql(SIDE.format(side=side, address=address))
        tables.execute_sql(JOINED.format(address=address))
        job = tables.execute_sql(QUERY).get_job_client()
        while str(job.get_job_status().result()) not in ("JobStatus.RUNNING", "RUNNING"):
            time.sleep(0.2)
        print("ready", flush=True)
        sys.stdin.read()
        job.cancel().result()


if __name__ == "__main__":
    main()
