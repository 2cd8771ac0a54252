"""Wide rows go through a session with a small heap: no value, record or frame is as large as a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

HEAP = "480m"
"""Spark itself refuses less than 450 MB."""
ROWS, WIDTH, WIDEST = 60_000, 2_000, 8_000_000
RUN = """
import json, sys
import watersmeet as ws
from watersmeet.spark.session import session

root, heap = sys.argv[1:]
spark = session("local[2]", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": heap})
sources = "".join(
    f"CREATE STREAM {name} (id BIGINT, ts TIMESTAMP, v STRING, WATERMARK FOR ts AS ts - 10s) "
    f"USING parquet OPTIONS (path '{root}/{name}');"
    for name in "ab"
)
joined = ws.sql(sources + "SELECT STREAM a.id, a.v, b.v AS w FROM a JOIN b WITHIN 1h ON a.id = b.id", spark=spark)
found = []
query = (
    joined.selectExpr("id", "length(v) AS v", "length(w) AS w")
    .writeStream.foreachBatch(lambda rows, _: found.extend(map(list, rows.collect())))
    .option("checkpointLocation", f"{root}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
print(json.dumps([sorted(found), len(query.recentProgress)]))
spark.stop()
"""


def test_a_batch_of_wide_rows_needs_little_of_the_heap(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for name, first in (("a", 0), ("b", ROWS - 3)):
        (tmp_path / name).mkdir()
        ids = np.arange(first, first + ROWS)
        letters = random.bytes(ROWS * WIDTH // 2).hex()
        texts = pa.array([letters[start : start + WIDTH] for start in range(0, len(letters), WIDTH)])
        texts = pa.concat_arrays([texts.slice(0, ROWS - 1), pa.array(["x" * WIDEST])])
        table = pa.table({"id": ids, "ts": pa.array(ids, pa.timestamp("us", tz="UTC")), "v": texts})
        pq.write_table(table, tmp_path / name / "0.parquet", row_group_size=5_000, compression="none")
    ran = subprocess.run([sys.executable, "-c", RUN, tmp_path, HEAP], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    rows, batches = json.loads(ran.stdout.strip().splitlines()[-1])
    assert rows == [[ROWS - 3, WIDTH, WIDTH], [ROWS - 2, WIDTH, WIDTH], [ROWS - 1, WIDEST, WIDTH]]
    assert batches == 1, "all rows are one batch"
