"""The join of two topics into a third on Flink, in an environment of its own: ``python flink_topics.py '{...}'``.

It runs until the standard input ends, and prints ``ready`` when it has started.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

SIDE = """CREATE TABLE {side}_side (
    id BIGINT, ts BIGINT, amount DOUBLE, happened AS TO_TIMESTAMP_LTZ(ts, 3),
    WATERMARK FOR happened AS happened - INTERVAL '{lag}' SECOND
) WITH (
    'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{address}',
    'scan.startup.mode' = 'earliest-offset', 'format' = 'json'
)"""
JOINED = """CREATE TABLE joined (id BIGINT, ts BIGINT, amount DOUBLE, right_ts BIGINT, right_amount DOUBLE) WITH (
    'connector' = 'kafka', 'topic' = '{joined}', 'properties.bootstrap.servers' = '{address}', 'format' = 'json'
)"""
QUERY = """INSERT INTO joined
SELECT l.id, l.ts, l.amount, r.ts, r.amount FROM left_side l JOIN right_side r ON l.id = r.id
    AND r.happened BETWEEN l.happened - INTERVAL '{within}' SECOND AND l.happened + INTERVAL '{within}' SECOND"""


def main() -> None:
    """Start the join, print ``ready`` when it runs, and cancel it at the end."""
    request = json.loads(sys.argv[1])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    with tempfile.TemporaryDirectory(prefix="watersmeet-topics-", ignore_cleanup_errors=True) as checkpoints:
        settings = {
            "pipeline.jars": Path(request["jar"]).as_uri(), "parallelism.default": "2", "pipeline.object-reuse": "true",
            "state.backend.type": "hashmap", "execution.checkpointing.interval": "10s",
            "execution.checkpointing.dir": Path(checkpoints).as_uri(), "taskmanager.memory.network.max": "256mb",
        }  # fmt: skip
        for name, value in settings.items():
            tables.get_config().set(name, value)
        for side in ("left", "right"):
            tables.execute_sql(SIDE.format(**request, side=side, topic=request[side]))
        tables.execute_sql(JOINED.format(**request))
        job = tables.execute_sql(QUERY.format(**request)).get_job_client()
        while str(job.get_job_status().result()) not in ("JobStatus.RUNNING", "RUNNING"):
            time.sleep(0.2)
        print("ready", flush=True)
        sys.stdin.read()
        job.cancel().result()


if __name__ == "__main__":
    main()
