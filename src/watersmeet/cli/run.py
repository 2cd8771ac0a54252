"""``run``: the queries of a project on Spark, until they end or are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import typer

from watersmeet.cli.failure import Format
from watersmeet.cli.progress import Board
from watersmeet.cli.script import Opened, check_outside, open_script
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.observe.endpoint import LOOPBACK, served
from watersmeet.observe.prometheus import Metrics
from watersmeet.project import Project, absolute_path
from watersmeet.references import resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.observe.progress import Progress

Trigger = Literal["continuous", "available_now", "end"]
"""``continuous``: until stopped. ``available_now``: what is there. ``end``: that, and the input counts as finished."""


@dataclass(frozen=True)
class Cluster:
    """Where Spark runs and with which settings, as given on the command line."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    packages: tuple[str, ...] = ()

    @classmethod
    def of(cls, master: str | None, remote: str | None, conf: Sequence[str], packages: str | None) -> Cluster:
        """The cluster that options name; a setting that is not ``NAME=VALUE`` is a wrong option."""
        if master and remote:
            raise typer.BadParameter("--master and --remote exclude each other")
        for setting in conf:
            if "=" not in setting:
                raise typer.BadParameter(f"--conf {setting}: write NAME=VALUE")
        pairs = dict(setting.split("=", 1) for setting in conf)
        return cls(master, remote, pairs, tuple(filter(None, (packages or "").split(","))))

    def session(self, project: Project, storage: Path) -> SparkSession:
        """A session with the settings of the project and, before them, those of the command line."""
        from watersmeet.spark.session import session

        conf = resolved({**project.rooted_settings, **self.conf})
        spark = session(self.master, self.remote, conf, self.packages, log=storage / "spark.log")
        if project.catalog:
            spark.catalog.setCurrentCatalog(project.catalog)
        if project.database:
            spark.catalog.setCurrentDatabase(project.database)
        return spark


@dataclass(frozen=True)
class Endpoint:
    """Where the metrics are served; without a port, nowhere."""

    port: int | None = None
    host: str = LOOPBACK

    @contextmanager
    def serving(self, metrics: Metrics) -> Generator[None]:
        """Serve them while this is entered, and say where."""
        with nullcontext() if self.port is None else served(metrics, self.port, self.host) as address:
            if address is not None:
                typer.echo(f"Metrics are at {address}/metrics.", err=True)
            yield


def run_project(path: Path, trigger: Trigger, cluster: Cluster, format: Format, endpoint: Endpoint) -> None:
    """Run all queries of a project and show their progress; Ctrl-C stops them cleanly."""
    # A remote server has files of its own: there, relative paths are left to it.
    opened = open_script(path, "absolute" if cluster.remote is None else "written")
    check_outside(opened)
    storage = storage_folder(opened.project)
    again = f"watersmeet run {path}"
    board, metrics = Board(format), Metrics()
    try:
        with endpoint.serving(metrics):
            spark = cluster.session(opened.project, storage)
            with interruptible(), board:
                run_opened(opened, spark, storage, trigger, board, metrics)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Nothing is lost: `{again}` continues from {storage}.", err=True)
        return
    later = "what arrives later is late" if trigger == "end" else f"`{again}` continues with what arrives later"
    typer.echo(f"Done: {_outputs(opened)}; {later}.", err=True)


def run_opened(
    opened: Opened,
    spark: SparkSession,
    storage: Path,
    trigger: Trigger,
    board: Board,
    metrics: Metrics | None = None,
) -> None:
    """Run what was opened; refusals have their places in the user's files.

    An interruption waits until no call to Spark is under way: one that is cut off would be reported as an error.
    """
    from watersmeet.spark.run.running import run_script

    taken = metrics or Metrics()

    def show(progress: Progress) -> None:
        taken.take(progress)
        board.show(progress)

    try:
        with interruptions_noted() as is_interrupted:
            run_script(
                opened.script,
                analyzed=opened.queries,
                spark=spark,
                storage=storage,
                trigger=trigger,
                on_progress=show,
                on_failure=taken.fail,
                on_news=lambda text: typer.echo(text, err=True),
                is_interrupted=is_interrupted,
            )
    except WatersmeetError as error:
        raise opened.project.relocate(error) from error


def storage_folder(project: Project) -> Path:
    """Where the project's checkpoints lie, as a folder of this machine."""
    location = absolute_path(project.storage, project.root).removeprefix("file://").removeprefix("file:")
    if not location.startswith("/"):
        hint = "name a folder, for example `storage: storage`."
        raise refuse(
            "WRONG_PROJECT", path=project.root, reason=f"`storage` is {location}, not a folder here", hint=hint
        )
    return Path(location)


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C and a polite kill raise KeyboardInterrupt.

    A new session brings a handler that cancels the running jobs first, and queries would fail instead of stopping; so
    this is to be entered once the session is there.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def interruptions_noted() -> Generator[Callable[[], bool]]:
    """Note Ctrl-C and a polite kill instead of acting on them; what is given tells whether there was one."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    with _handled(note):
        yield lambda: bool(noted)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in wanted]
    try:
        yield
    finally:
        for number, former in zip(wanted, before, strict=True):
            signal.signal(number, former)


def _outputs(opened: Opened) -> str:
    wanted = [query.into for query in opened.queries]
    sinks = [sink for sink in opened.script.sinks if sink.name in wanted]
    places = [
        f"{sink.name} is in {absolute_path(sink.options['path'], opened.project.root)}"
        for sink in sinks
        if "path" in sink.options
    ]
    return ", ".join(places) or "all queries have ended"
