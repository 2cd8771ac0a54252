"""``make retries``: fail attempts of tasks at every point of a batch, and compare the rows with an undisturbed run.

Two executors run a query of every family. In every batch the first attempt of its tasks fails, is so slow that another
one is started in parallel, or loses its executor: around each kind of request to the state, and before and after the
commit of the state; the sink fails before and after it has written. Failed tasks are retried on the other executor. The
query is restarted halfway. Every row must be there exactly once, and the state must be complete.

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
"""The most starts of a query: a sink that fails ends it."""
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
    # A failed task is retried on the other executor of the same machine; an executor with many failed tasks is still
    # used, because there are only two.
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
        """Whether every row is there once and the state is complete, and at least one fault happened."""
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
        """Run a query; ``number`` chooses the points at which first attempts fail."""
        outcome = Outcome(query, kind)
        # The start of an executor takes as long as several batches.
        every = {"none": 1, "fail": 1, "slow": 2, "lose": 4}[kind]
        name = query.replace(" ", "-")
        log = self.folder / f"{kind}-{name}.log"
        if query not in self.expected:
            self.expected[query] = self._run(query, Fault("none", log), f"none-{name}", outcome)
        expected = self.expected[query]
        actual = self._run(query, Fault(kind, log, number, every), f"{kind}-{name}", outcome)
        outcome.rows, outcome.lost, outcome.doubled = (
            expected.total(),
            (expected - actual).total(),
            (actual - expected).total(),
        )
        outcome.struck.update(log.read_text().splitlines() if log.exists() else ())
        return outcome

    def _run(self, query: str, fault: Fault, name: str, outcome: Outcome) -> Counter[str]:
        """The rows of a query that is stopped halfway; rows missing in its state are added to the outcome."""
        work = self.folder / name
        sink = Sink(work / "rows", is_failing=fault.kind == "fail")
        half = self.batches // 2 + 1
        cuts = [*range(self.batches), self.batches] if query in ONE_BATCH_PER_START else [0, half, self.batches]
        for batches in starmap(range, pairwise(cuts)):
            write_rows(work / "data", batches, ROWS)
            starts = self._start(query, fault, work, sink)
            if fault.kind != "none":
                outcome.starts += starts
        outcome.problems += [
            str(row.problem) for row in open_state(str(work / "checkpoint"), self.spark).problems.collect()
        ]
        outcome.struck.update(f"{fault.kind} {point}" for _, point in sink.failed)
        return sink.rows()

    def _start(self, query: str, fault: Fault, work: Path, sink: Sink) -> int:
        """Run a query over all available input; returns how often it was started."""
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


def run_queries(
    queries: Sequence[str], kind: Kind, batches: int, folder: Path, expected: dict[str, Counter[str]]
) -> Iterator[Outcome]:
    """Run queries with failing first attempts, in their own application."""
    # Executors run in other folders, and must find this package.
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    conf = CONF | (SPECULATED if kind == "slow" else EXCLUDED) | {"spark.executorEnv.PYTHONPATH": paths}
    spark = session("local-cluster[2,1,640]", conf=conf, log=folder / f"{kind}.spark.log")
    try:
        runs = Retries(spark, folder, batches, expected)
        yield from (runs.outcome(query, kind, number) for number, query in enumerate(queries))
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested queries with faults, and print their outcomes."""
    options = _options(arguments)
    compiler.ShardProcessor = FailingProcessor
    with TemporaryDirectory(prefix="watersmeet-retries-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) if options.folder is None else options.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        outcomes: list[Outcome] = []
        expected: dict[str, Counter[str]] = {}
        for kind in options.kinds:
            for outcome in run_queries(options.only, kind, options.batches, folder, expected):
                outcomes.append(outcome)
                failure = "WRONG" if outcome.struck.total() else "never struck, more --batches"
                verdict = "right" if outcome.is_right else failure
                print(f"{outcome.query}, {outcome.kind}: {verdict}", flush=True)
    Console(width=150).print(table(outcomes))
    struck = Counter(point for outcome in outcomes for point in outcome.struck.elements())
    for point, times in sorted(struck.items()):
        print(f"{times} x {point}")
    sys.exit(0 if all(outcome.is_right for outcome in outcomes) else 1)


def table(outcomes: Sequence[Outcome]) -> Table:
    """The outcomes, a row each."""
    result = Table("query", "faults", "starts", "rows", "lost", "doubled", "state")
    for outcome in outcomes:
        numbers = (outcome.struck.total(), outcome.starts, outcome.rows, outcome.lost, outcome.doubled)
        problems = "; ".join(outcome.problems) or "whole"
        result.add_row(
            f"{outcome.query}, {outcome.kind}", *map(str, numbers), problems, style="" if outcome.is_right else "red"
        )
    return result


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m faults.retries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="QUERY")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batches", type=int, default=len(POINTS) + 2)
    parser.add_argument(
        "--folder", type=Path, help="a folder for all files, which stay there; default: a temporary folder"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
