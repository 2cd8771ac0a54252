"""``demo``: two made-up streams that keep arriving, joined on local Spark and compared with the expected result.

Each row has an event time and an arrival time, and file ``k`` holds what arrives in the ``k``-th stretch of time. Which
rows are late, and so what comes out of the join, must not depend on how a run cuts the files into micro-batches:

- A punctual row arrives less than `JITTER` after its event time. Whatever arrived before it has an event time of at
  most its arrival, so it is less than ``JITTER`` behind the latest event time seen, and ``JITTER < LAG``: never
  late, under any cut.
- A late row arrives ``LAG`` and at least five files after its event time. It therefore lies in a file ``k`` such that
  the files up to ``k - 4`` already hold punctual rows more than ``LAG`` ahead of it. The sources are read one file per
  micro-batch (``maxFilesPerTrigger``), so those files are in earlier batches and their watermark has passed the row: it
  is late, and would be even if a batch took four files at once.
- Two punctual rows that satisfy the condition always meet: a side forgets a row only when the other side's watermark
  proves that every partner still to come would be late.

So the join of all punctual rows is what must come out, once the input is declared finished.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from watersmeet.cli.console import Format, interruptible, show_wait
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

R = TypeVar("R")

LAG = timedelta(minutes=10)
"""The lag of both watermarks in the demo's SQL."""
BOUND = timedelta(hours=2)
"""The bound in the demo's SQL: the time after the order in which a delivery counts; closed at both ends."""
JITTER = timedelta(minutes=8)
"""The longest time that a punctual row is under way."""
STRETCH = timedelta(minutes=30)
"""The time that one file covers."""
START = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)

CUSTOMERS = ("Ada", "Bo", "Chen", "Dara", "Emre", "Fatima", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena")
ITEMS = (("bread", 4), ("coffee", 9), ("lamp", 35), ("kettle", 42), ("book", 18), ("bicycle bell", 12), ("rug", 120))
COURIERS = ("north", "east", "south", "west", "river", "hill")


@dataclass(frozen=True)
class OrderRow:
    """A row of orders."""

    order_id: int
    customer: str
    item: str
    amount: Decimal
    order_time: datetime


@dataclass(frozen=True)
class DeliveryRow:
    """A row of deliveries."""

    delivery_id: int
    order_id: int
    courier: str
    delivery_time: datetime


@dataclass(frozen=True)
class TimedRow(Generic[R]):
    """A row and when it arrives."""

    row: R
    at: datetime
    is_late: bool


@dataclass(frozen=True)
class Truth:
    """The expected result: ``pairs`` of order and delivery (None: padded), and the number of rows dropped as late."""

    orders: int
    deliveries: int
    pairs: frozenset[tuple[int, int | None]]
    late: int

    @property
    def match_count(self) -> int:
        """The number of pairs in the result."""
        return sum(delivery is not None for _, delivery in self.pairs)

    @property
    def pad_count(self) -> int:
        """The number of orders without a pair."""
        return len(self.pairs) - self.match_count


@dataclass(frozen=True)
class Streams:
    """The rows of both streams file by file, and the truth."""

    orders: tuple[tuple[OrderRow, ...], ...]
    deliveries: tuple[tuple[DeliveryRow, ...], ...]
    truth: Truth


def make_streams(orders: int = 20_000, files: int = 12, seed: int = 7) -> Streams:
    """The same streams for the same arguments.

    >>> streams = make_streams(orders=200)
    >>> len(streams.orders), sum(map(len, streams.orders)), streams.truth.match_count + streams.truth.pad_count > 190
    (12, 200, True)
    """
    random = Random(seed)
    end = START + files * STRETCH
    made = [_order(random, number, end) for number in range(1, orders + 1)]
    sent = [arrival for order in made for arrival in _deliveries(random, order.row)]
    # What would arrive after the last file is still on the road.
    arrived = [arrival for arrival in sent if arrival.at < end]
    return Streams(
        _cut([(arrival.at, arrival.row) for arrival in made], files),
        _cut([(arrival.at, arrival.row) for arrival in arrived], files),
        _truth(made, arrived),
    )


def _order(random: Random, number: int, end: datetime) -> TimedRow[OrderRow]:
    item, price = random.choice(ITEMS)
    amount = Decimal(random.randint(1, 3) * price * 100 - random.choice((0, 1, 5))) / 100
    is_late = random.random() < 0.01
    delay = _delay(random, is_late)
    time = START + _part(random, end - START - delay)
    return TimedRow(OrderRow(number, random.choice(CUSTOMERS), item, amount, time), time + delay, is_late)


def _deliveries(random: Random, order: OrderRow) -> Iterable[TimedRow[DeliveryRow]]:
    """None for one order in twelve, two for one in twenty; one in twenty-five comes after more than two hours."""
    parts = random.choices((0, 1, 2), (0.08, 0.87, 0.05))[0]
    for part in range(1, parts + 1):
        is_slow = random.random() < 0.04
        least, most = (BOUND + timedelta(minutes=1), BOUND * 2) if is_slow else (timedelta(minutes=15), BOUND)
        time = order.order_time + least + _part(random, most - least)
        is_late = random.random() < 0.01
        row = DeliveryRow(order.order_id * 10 + part, order.order_id, random.choice(COURIERS), time)
        yield TimedRow(row, time + _delay(random, is_late), is_late)


def _delay(random: Random, is_late: bool) -> timedelta:
    return (LAG + 5 * STRETCH if is_late else timedelta()) + _part(random, JITTER)


def _part(random: Random, whole: timedelta) -> timedelta:
    """A random part of a length of time, in whole milliseconds, less than the whole."""
    return timedelta(milliseconds=random.randrange(whole // timedelta(milliseconds=1)))


def _cut(arrivals: Iterable[tuple[datetime, R]], files: int) -> tuple[tuple[R, ...], ...]:
    cut: list[list[R]] = [[] for _ in range(files)]
    for at, row in sorted(arrivals, key=lambda arrival: arrival[0]):
        cut[(at - START) // STRETCH].append(row)
    return tuple(map(tuple, cut))


def _truth(orders: Sequence[TimedRow[OrderRow]], deliveries: Sequence[TimedRow[DeliveryRow]]) -> Truth:
    by_order: dict[int, list[DeliveryRow]] = defaultdict(list)
    for arrival in deliveries:
        if not arrival.is_late:
            by_order[arrival.row.order_id].append(arrival.row)
    pairs: set[tuple[int, int | None]] = set()
    for order in (arrival.row for arrival in orders if not arrival.is_late):
        partners = [
            d for d in by_order[order.order_id] if order.order_time <= d.delivery_time <= order.order_time + BOUND
        ]
        pairs |= {(order.order_id, d.delivery_id) for d in partners} or {(order.order_id, None)}
    late = sum(arrival.is_late for arrival in (*orders, *deliveries))
    return Truth(len(orders), len(deliveries), frozenset(pairs), late)


class Writer:
    """Writes file after file of both streams into ``data``, over ``seconds``, in a thread of its own."""

    def __init__(self, streams: Streams, data: Path, seconds: float) -> None:
        self._streams = streams
        self._data = data
        self._pause = seconds / max(1, len(streams.orders))
        self._stopped = Event()
        self._thread = Thread(target=self._write_all, name="demo-writer", daemon=True)

    def __enter__(self) -> Writer:
        prepare_folders(self._data)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write_all(self) -> None:
        for number, (orders, deliveries) in enumerate(zip(self._streams.orders, self._streams.deliveries, strict=True)):
            write_file(self._data / "orders" / f"{number:04}.json", orders)
            write_file(self._data / "deliveries" / f"{number:04}.json", deliveries)
            if self._stopped.wait(self._pause):
                return


def prepare_folders(data: Path) -> None:
    """Make the folders of both sources."""
    for name in ("orders", "deliveries"):
        (data / name).mkdir(parents=True, exist_ok=True)


def write_file(path: Path, rows: Iterable[OrderRow | DeliveryRow]) -> None:
    """Write rows as lines of JSON. The file appears whole: Spark passes over names that begin with a dot."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("".join(f"{row_as_json(row)}\n" for row in rows), "utf-8")
    hidden.replace(path)


def row_as_json(row: OrderRow | DeliveryRow) -> str:
    """A row as a line of JSON.

    >>> row_as_json(DeliveryRow(11, 1, "north", datetime.fromisoformat("2026-03-02T06:00:00.250+00:00")))
    '{"delivery_id": 11, "order_id": 1, "courier": "north", "delivery_time": "2026-03-02T06:00:00.250Z"}'
    """
    return json.dumps({field.name: _plain(getattr(row, field.name)) for field in fields(row)})


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return float(value) if isinstance(value, Decimal) else value


PARTITIONS = 3
_ROW = (
    "order_id BIGINT, customer STRING, item STRING, amount DECIMAL(10,2), order_time TIMESTAMP, delivery_id BIGINT, "
    "courier STRING, delivery_time TIMESTAMP"
)


class Sender:
    """Sends both streams to the topics ``orders`` and ``deliveries``, over ``seconds``, in a thread of its own."""

    def __init__(self, streams: Streams, address: str, seconds: float) -> None:
        from confluent_kafka import Producer  # imported late: folders need neither Kafka nor Spark

        from watersmeet.spark.connectors.kafka import make_topic

        self._streams = streams
        self._producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", "log_level": "0"})
        self._pause = seconds / max(1, len(streams.orders))
        self._stopped = Event()
        self._thread = Thread(target=self._send_all, name="demo-sender", daemon=True)
        for name in ("orders", "deliveries"):
            make_topic({"kafka.bootstrap.servers": address}, name, PARTITIONS, 1)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _send_all(self) -> None:
        for orders, deliveries in zip(self._streams.orders, self._streams.deliveries, strict=True):
            for topic, rows in (("orders", orders), ("deliveries", deliveries)):
                for row in rows:
                    self._send(topic, row)
            self._producer.flush()
            if self._stopped.wait(self._pause):
                return

    def _send(self, topic: str, row: OrderRow | DeliveryRow) -> None:
        self._producer.produce(topic, row_as_json(row), str(row.order_id))
        self._producer.poll(0)


def read_delivered(spark: SparkSession, address: str) -> DataFrame:
    """The rows in the topic ``delivered`` that are committed."""
    options = {
        "kafka.bootstrap.servers": address, "subscribe": "delivered", "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    records = spark.read.format("kafka").options(**options).load()
    return records.selectExpr(f"from_json(CAST(value AS STRING), '{_ROW}') AS row").select("row.*")


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
    from watersmeet.cli.demo import Sender, read_delivered
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
