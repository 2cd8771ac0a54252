"""``demo``: two made-up streams that keep arriving, joined on local Spark and compared with the expected result."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from watersmeet.cli.console import Format, interruptible, show_wait
from watersmeet.cli.demo_data import Streams, Truth, Writer, prepare_folders
from watersmeet.cli.init import copy_folder
from watersmeet.cli.progress import ProgressDisplay
from watersmeet.cli.run import Cluster, run_opened
from watersmeet.cli.script import open_script
from watersmeet.errors import refuse
from watersmeet.locations import location_of
from watersmeet.project import storage_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from watersmeet.metrics.progress import Progress


SQL = "sql/delivered.sql"
OUTPUT = "output/delivered"
BROKER = "DEMO_BROKER"
"""The variable by which the project of the demo over Kafka knows its broker."""
SECONDS = 10.0
"""The time that the files keep arriving."""

SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""In a JVM that runs for half a minute, the optimising compiler costs more than it saves."""


class _AllRead(BaseException):
    """Ends the run that follows the arriving files once all of them are read.

    As with KeyboardInterrupt, what keeps errors of observers from the query lets it through.
    """


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo: pairs of order and delivery, some sample rows, and the number of rows dropped as late."""

    pairs: Counter[tuple[int, int | None]]
    samples: tuple[Row, ...]
    late: int


@dataclass(frozen=True)
class DemoTransport:
    """The transport of the streams of the demo.

    ``project``: the folder with its project. ``arriving``: lets them arrive while it is entered, over so many seconds.
    ``rows``: those that came out. ``where``: what a sentence calls the place.
    """

    project: str
    where: str
    arriving: Callable[[Streams, float], AbstractContextManager[object]]
    rows: Callable[[SparkSession], DataFrame]


def run_demo(folder: Path, cluster: Cluster, streams: Streams, seconds: float = SECONDS) -> None:
    """Write the demo's project, run it while its data arrives, and compare; exits with 1 if the truth is another."""
    console = Console(soft_wrap=True)
    data, output = folder / "data", location_of(folder / OUTPUT)
    transport = DemoTransport(
        "folder",
        str(data),
        lambda streams, seconds: Writer(streams, data, seconds),
        lambda spark: spark.read.parquet(output),
    )
    is_right = _run_and_show(folder, cluster, streams, seconds, transport, console)
    console.print(f"\nThe output is in {folder / OUTPUT} (Parquet). Next:")
    console.print(f"  watersmeet explain {folder}      why the state of this join stays bounded")
    console.print(
        f"  edit {folder / SQL}, remove its storage and output, then run it again:\n"
        f"    rm -r {folder / 'storage'} {folder / 'output'}; watersmeet run {folder} --end"
    )
    raise typer.Exit(0 if is_right else 1)


def run_kafka_demo(folder: Path, cluster: Cluster, streams: Streams, seconds: float = SECONDS) -> None:
    """The same over topics of a Kafka broker that is started for it and ends with it."""
    if find_spec("confluent_kafka") is None:
        raise refuse("KAFKA_NOT_INSTALLED", package="confluent-kafka")
    from watersmeet.cli.demo_data import Sender, read_delivered
    from watersmeet.cli.servers import broker

    console = Console(soft_wrap=True)
    with ExitStack() as stack:
        with show_wait("Starting a Kafka broker; the first start downloads its jars"):
            address = stack.enter_context(broker()).address
        os.environ[BROKER] = address
        transport = DemoTransport(
            "kafka",
            f"topics of the broker at {address}",
            lambda streams, seconds: Sender(streams, address, seconds),
            lambda spark: read_delivered(spark, address),
        )
        is_right = _run_and_show(folder, cluster, streams, seconds, transport, console)
    console.print("\nThe broker has stopped, and its topics are deleted. Next:")
    console.print(f"  watersmeet explain {folder}      why the state of this join stays bounded")
    console.print(f"  {BROKER}=host:port watersmeet run {folder}      the same query on your own topics")
    raise typer.Exit(0 if is_right else 1)


def _run_and_show(
    folder: Path, cluster: Cluster, streams: Streams, seconds: float, transport: DemoTransport, console: Console
) -> bool:
    """Run the demo and show what came out; whether it is what must come out."""
    prepare_folder(folder, transport.project)
    console.print(
        f"Two streams arrive in {transport.where}: {streams.truth.orders:,} orders and {streams.truth.deliveries:,} "
        f"deliveries, out of order, some late.\n{folder / SQL} joins each order with its deliveries within two hours."
    )
    try:
        result = _run(folder, cluster, streams, seconds, transport, console)
    except KeyboardInterrupt:
        console.print(f"Stopped. `watersmeet run {folder}` continues with the rows that have arrived.")
        raise
    return show_result(result, streams.truth, console)


def prepare_folder(folder: Path, project: str = "folder") -> None:
    """Write the demo's project again; a folder with other files, or an edited query, is left alone."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        written = files("watersmeet.cli").joinpath("demo_projects", project, SQL).read_text("utf-8")
        if not (folder / SQL).is_file():
            hint = "name a new folder: `watersmeet demo DIR`."
            raise refuse("FOLDER_NOT_EMPTY", path=folder, what="is not a folder of the demo", hint=hint)
        if (folder / SQL).read_text("utf-8") != written:
            hint = f"run your query with `watersmeet run {folder}`, or the demo with `watersmeet demo DIR`."
            raise refuse("FOLDER_NOT_EMPTY", path=folder / SQL, what="was edited", hint=hint)
        for name in ("data", "storage", "output"):
            shutil.rmtree(folder / name, ignore_errors=True)
    copy_folder("watersmeet.cli", f"demo_projects/{project}", folder)
    if project == "folder":
        prepare_folders(folder / "data")


def _run(
    folder: Path, cluster: Cluster, streams: Streams, seconds: float, transport: DemoTransport, console: Console
) -> DemoResult:
    opened = open_script(folder, "absolute")
    storage = storage_folder(opened.project)
    cluster = replace(cluster, conf={**SHORT_RUN, **cluster.conf})
    expected = streams.truth.orders + streams.truth.deliveries

    class UntilAllRead(ProgressDisplay):
        """Ends the first run with the batch that read the last row."""

        def show(self, progress: Progress) -> None:
            super().show(progress)
            if self.rows_in >= expected and is_following:
                raise _AllRead

    with interruptible(), UntilAllRead(Format.text, console) as board:
        spark = cluster.session(opened.project, storage, opened.script)
        board.wait_for("Waiting for the first batch")
        # Entered again: a new session brings a handler that cancels the running jobs first.
        with interruptible(), transport.arriving(streams, seconds):
            is_following = True
            try:
                run_opened(opened, spark, storage, "continuous", board)
            except _AllRead:
                is_following = False
            # Continues from the checkpoint and declares the input finished, which closes every lifetime.
            run_opened(opened, spark, storage, "end", board)
    with show_wait("Comparing the result"):
        return _collect_result(transport.rows(spark), board.late)


def _collect_result(rows: DataFrame, late: int) -> DemoResult:
    pairs = Counter((row.order_id, row.delivery_id) for row in rows.select("order_id", "delivery_id").toLocalIterator())
    samples = (
        *rows.where("delivery_id IS NOT NULL").orderBy("order_id").take(5),
        *rows.where("delivery_id IS NULL").orderBy("order_id").take(3),
    )
    return DemoResult(pairs, tuple(samples), late)


def show_result(result: DemoResult, truth: Truth, console: Console) -> bool:
    """Print samples and compare the counts with the expected ones; True if all counts and all pairs are right."""
    console.print(_sample_table(result.samples))
    matched = sum(count for (_, delivery), count in result.pairs.items() if delivery is not None)
    counts = (
        ("matched", matched, truth.match_count),
        ("padded", result.pairs.total() - matched, truth.pad_count),
        ("late", result.late, truth.late),
    )
    table = Table("", "result", "expected", "", box=None, pad_edge=False)
    for name, count, expected in counts:
        table.add_row(name, f"{count:,}", f"{expected:,}", "[green]✓[/]" if count == expected else "[red]✗[/]")
    console.print(table)
    has_right_pairs = result.pairs == Counter(truth.pairs)
    console.print("All pairs are correct." if has_right_pairs else "[red]Some pairs are wrong.[/]")
    return has_right_pairs and all(count == expected for _, count, expected in counts)


def _sample_table(samples: tuple[Row, ...]) -> Table:
    table = Table(title="Some rows of the result", title_justify="left", box=None, pad_edge=False)
    for name in ("order", "customer", "item", "amount", "ordered", "courier", "delivered"):
        table.add_column(name)
    for row in samples:
        delivered = "NULL" if row.delivery_time is None else f"{row.delivery_time:%H:%M:%S}"
        table.add_row(
            str(row.order_id),
            row.customer,
            row.item,
            str(row.amount),
            f"{row.order_time:%H:%M:%S}",
            row.courier or "NULL",
            delivered,
        )
    return table
