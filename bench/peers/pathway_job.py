"""The interval join on Pathway, in an environment of its own: ``python pathway_job.py '{...}'``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import pathway as pw


class Side(pw.Schema):
    """A row of either side; its time in milliseconds."""

    key: int
    ts: int
    amount: float
    count: int


def main() -> None:
    """Run the join over the files of both sides, and print its duration or its rows."""
    request = json.loads(sys.argv[1])
    launched = float(os.environ["WATERSMEET_BENCH_LAUNCHED"])
    left, right = (
        pw.io.csv.read(f"{request['folder']}/{side}", schema=Side, mode="static") for side in ("left", "right")
    )
    within = request["within"] * 1000
    joined = left.interval_join(right, left.ts, right.ts, pw.temporal.interval(-within, within), left.key == right.key)
    shown = joined.select(left.key, left.amount, right_amount=right.amount)
    ready = time.time()
    result: dict[str, Any] = {"start": round(ready - launched, 2)}
    rows: list[list[str]] = []
    if request["collect"]:
        pw.io.subscribe(shown, lambda key, row, time, is_addition: rows.append([str(value) for value in row.values()]))
    else:
        pw.io.null.write(shown)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    if request["collect"]:
        result["rows"] = rows
    result["run"] = round(time.time() - ready, 2)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
