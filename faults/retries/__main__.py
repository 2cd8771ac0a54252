"""``make retries``: attempts of tasks that fail at every point of a batch, and the rows of an undisturbed run.

Two executors run a query of every family. In every batch the first attempt of its tasks fails, is so slow that another
one is started beside it, or loses its executor: around each kind of request to the state, before and after the state is
committed; and the sink fails before and after it has written. Failed tasks are repeated on the other executor. In the
middle the query is started again. All rows must be there once, and the state must be whole.

    .venv/bin/python -m faults.retries --only interval --kinds fail --batches 8
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import watersmeet as ws
from faults.retries.failing import POINTS, AfterCommit, FailingProcessor, Fault, Kind
from faults.retries.queries import ONE_BATCH_PER_START, QUERIES, script, write_rows
from watersmeet.spark.compile import compiler
from watersmeet.spark.session import session
from watersmeet.spark.state.inspect import open_state

KINDS: tuple[Kind, ...] = ("fail", "slow", "lose")
ROWS = 40
"""Rows of a stream in a batch."""
STARTS = 12
"""So often a query is started at most: a sink that fails ends it."""
HOST = "127.0.0.1"
CONF = {
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # An executor that was lost is started again, however often.
    "spark.deploy.maxExecutorRetries": "-1",
}
EXCLUDED = {
    "spark.excludeOnFailure.enabled": "true",
    # A task that failed is repeated elsewhere, on the same machine; an executor on which many have failed is still one
    # of two.
    "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "7",
    "spark.task.maxFailures": "8",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "1000000",
    "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode": "1000000",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1000000",
    "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": "1000000",
}
SPECULATED = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "2",
    "spark.speculation.quantile": "0.4",
}


@dataclass
class Outcome:
    """The outcome of a query: the rows of an undisturbed run, lost or doubled rows, and rows missing in the state."""

    query: str
    kind: Kind
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    starts: int = 0
    struck: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])

    @property
    def is_right(self) -> bool:
        """Whether every row is there once and the state is whole, though something happened."""
        return self.rows > 0 and not self.lost and not self.doubled and not self.problems and self.struck.total() > 0


class Sink:
    """Writes each batch to a folder of its own; with a fault, it fails before or after that, once per batch."""

    def __init__(self, folder: Path, *, is_failing: bool) -> None:
        self.folder = folder
        self.is_failing = is_failing
        self.failed: list[tuple[int, str]] = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch."""
        if batch % 5 == 3:
            self._fail(batch, "before the sink")
        frame.write.mode("overwrite").json(str(self.folder / str(batch)))
        if batch % 5 == 4:
            self._fail(batch, "after the sink")

    def _fail(self, batch: int, point: str) -> None:
        if self.is_failing and (batch, point) not in self.failed:
            self.failed.append((batch, point))
            raise OSError(f"a sink that was to fail, {point}")

    def rows(self) -> Counter[str]:
        """All rows that were written."""
        lines = (line for file in self.folder.glob("*/*.json") for line in file.read_text().splitlines())
        return Counter(json.dumps(json.loads(line), sort_keys=True) for line in lines)


class Retries:
    """Runs queries over the same rows, undisturbed and disturbed, in one application.

    ``expected``: the rows of undisturbed runs so far, by query.
    """

    def __init__(self, spark: SparkSession, folder: Path, batches: int, expected: dict[str, Counter[str]]) -> None:
        self.spark = spark
        self.folder = folder
        self.batches = batches
        self.expected = expected

    def outcome(self, query: str, kind: Kind, number: int) -> Outcome:
        """Run a query; ``number`` decides at which points first attempts are disturbed."""
        found = Outcome(query, kind)
        # To start an executor takes as long as some batches.
        every = {"none": 1, "fail": 1, "slow": 2, "lose": 4}[kind]
        name = query.replace(" ", "-")
        log = self.folder / f"{kind}-{name}.log"
        if query not in self.expected:
            self.expected[query] = self._run(query, Fault("none", log), f"none-{name}", found)
        expected = self.expected[query]
        actual = self._run(query, Fault(kind, log, number, every), f"{kind}-{name}", found)
        found.rows, found.lost, found.doubled = (
            expected.total(),
            (expected - actual).total(),
            (actual - expected).total(),
        )
        found.struck.update(log.read_text().splitlines() if log.exists() else ())
        return found

    def _run(self, query: str, fault: Fault, name: str, found: Outcome) -> Counter[str]:
        """The rows of a query that is stopped in the middle; what its state lacks goes into the outcome."""
        work = self.folder / name
        sink = Sink(work / "rows", is_failing=fault.kind == "fail")
        half = self.batches // 2 + 1
        cuts = [*range(self.batches), self.batches] if query in ONE_BATCH_PER_START else [0, half, self.batches]
        for batches in starmap(range, pairwise(cuts)):
            write_rows(work / "data", batches, ROWS)
            starts = self._start(query, fault, work, sink)
            if fault.kind != "none":
                found.starts += starts
        found.problems += [
            str(row.problem) for row in open_state(str(work / "checkpoint"), self.spark).problems.collect()
        ]
        found.struck.update(f"{fault.kind} {point}" for _, point in sink.failed)
        return sink.rows()

    def _start(self, query: str, fault: Fault, work: Path, sink: Sink) -> int:
        """Let a query take all that is there; gives how often it was started."""
        for start in range(1, STARTS + 1):
            FailingProcessor.current = fault
            frame = ws.sql(script(query, work / "data"), spark=self.spark)
            frame = frame.mapInArrow(AfterCommit(fault), frame.schema)
            writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
            try:
                writer.option("checkpointLocation", str(work / "checkpoint")).start().awaitTermination()
            except PySparkException as error:
                if "a sink that was to fail" not in str(error):
                    raise
            else:
                return start
        raise RuntimeError(f"{query} did not end after {STARTS} starts")


def disturbed(
    queries: Sequence[str], kind: Kind, batches: int, folder: Path, expected: dict[str, Counter[str]]
) -> Iterator[Outcome]:
    """Run queries with disturbed first attempts, in an application of their own."""
    # Executors run elsewhere, and must find this package.
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    conf = CONF | (SPECULATED if kind == "slow" else EXCLUDED) | {"spark.executorEnv.PYTHONPATH": paths}
    spark = session("local-cluster[2,1,640]", conf=conf, log=folder / f"{kind}.spark.log")
    try:
        runs = Retries(spark, folder, batches, expected)
        yield from (runs.outcome(query, kind, number) for number, query in enumerate(queries))
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Disturb what is asked for, and show what became of it."""
    options = _options(arguments)
    compiler.ShardProcessor = FailingProcessor
    with TemporaryDirectory(prefix="watersmeet-retries-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) if options.folder is None else options.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        outcomes: list[Outcome] = []
        expected: dict[str, Counter[str]] = {}
        for kind in options.kinds:
            for one in disturbed(options.only, kind, options.batches, folder, expected):
                outcomes.append(one)
                verdict = "right" if one.is_right else "WRONG" if one.struck.total() else "never struck, more --batches"
                print(f"{one.query}, {one.kind}: {verdict}", flush=True)
    Console(width=150).print(table(outcomes))
    struck = Counter(point for one in outcomes for point in one.struck.elements())
    for point, times in sorted(struck.items()):
        print(f"{times} x {point}")
    sys.exit(0 if all(one.is_right for one in outcomes) else 1)


def table(outcomes: Sequence[Outcome]) -> Table:
    """The outcomes, a row each."""
    found = Table("query", "faults", "starts", "rows", "lost", "doubled", "state")
    for one in outcomes:
        numbers = (one.struck.total(), one.starts, one.rows, one.lost, one.doubled)
        problems = "; ".join(one.problems) or "whole"
        found.add_row(f"{one.query}, {one.kind}", *map(str, numbers), problems, style="" if one.is_right else "red")
    return found


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m faults.retries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="QUERY")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batches", type=int, default=len(POINTS) + 2)
    parser.add_argument("--folder", type=Path, help="where all of it is done, and stays; else in a temporary folder")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
