"""``run``: the queries of a project on Spark, until they end or are stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from watersmeet.cli.failure import DIED, Format, Interrupted, exit_code
from watersmeet.cli.interruption import interruptible, interruptions_noted
from watersmeet.cli.output import print_text
from watersmeet.cli.page import Page, Shown
from watersmeet.cli.progress import Board, progress_in_short, progress_line
from watersmeet.cli.script import Opened, check_declared, check_outside, open_script
from watersmeet.cli.waiting import waiting
from watersmeet.control_characters import escape_controls
from watersmeet.errors import WatersmeetError
from watersmeet.formats.connectors import JARS, formats_in
from watersmeet.observe.departures import Forecasts
from watersmeet.observe.endpoint import LOOPBACK, NAMES, served
from watersmeet.observe.guarded import guarded
from watersmeet.observe.logs import Logging, log
from watersmeet.observe.prometheus import Metrics
from watersmeet.observe.recorder import Recorder
from watersmeet.observe.sizes import size_of
from watersmeet.project import Project, absolute_path, storage_folder
from watersmeet.references import resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.observe.progress import Progress
    from watersmeet.plan.nodes import Script

Trigger = Literal["continuous", "available_now", "end"]
"""``continuous``: until stopped. ``available_now``: what is there. ``end``: that, and the input counts as finished."""

PATIENCE = 300.0
"""Seconds after which a query hangs of which nothing was heard, if nobody says otherwise."""


@dataclass(frozen=True)
class Cluster:
    """Where Spark runs and with which settings, as given on the command line."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    packages: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        master: str | None,
        remote: str | None,
        conf: Sequence[str],
        packages: str | None = None,
        jars: str | None = None,
    ) -> Cluster:
        """The cluster that options name; a setting that is not ``NAME=VALUE`` is a wrong option."""
        if master and remote:
            raise typer.BadParameter("--master and --remote exclude each other")
        for setting in conf:
            if "=" not in setting:
                raise typer.BadParameter(f"--conf {setting}: write NAME=VALUE")
        pairs = dict(setting.split("=", 1) for setting in conf)
        if jars:
            pairs[JARS] = ",".join(absolute_path(jar, Path()) for jar in jars.split(",") if jar)
        return cls(master, remote, pairs, tuple(filter(None, (packages or "").split(","))))

    def settings(self, project: Project, script: Script) -> dict[str, str]:
        """The settings of the project and, before them, those of the script and of the command line.

        Of a script those count that only a new session takes: which jars it has.
        """
        own = {one.name: one.value for one in script.settings if one.name.startswith(JARS)}
        return resolved({**project.rooted_settings, **own, **self.conf})

    def session(self, project: Project, storage: Path, script: Script) -> SparkSession:
        """A session with these settings, which knows the formats of the script."""
        from watersmeet.spark.private.jvm import quiet
        from watersmeet.spark.private.local_files import keep_checkpoints_here
        from watersmeet.spark.session import session

        quiet()
        spark = session(
            self.master, self.remote, self.settings(project, script), self.packages, log=storage / "spark.log",
            formats=formats_in(script),
        )  # fmt: skip
        keep_checkpoints_here(spark)
        if project.catalog:
            spark.catalog.setCurrentCatalog(project.catalog)
        if project.database:
            spark.catalog.setCurrentDatabase(project.database)
        return spark


@dataclass(frozen=True)
class OnFailure:
    """What is done when something fails: how often it is started again, and whether one query stops all others.

    ``changed``: what becomes of queries that have changed since their checkpoints were written. ``ahead``: what becomes
    of sinks that have batches which the checkpoint, put back from an older copy, does not have.
    """

    restarts: int = 0
    stops_all: bool = False
    changed: Literal["refuse", "accept", "rebuild"] = "refuse"
    ahead: Literal["refuse", "rewind"] = "refuse"


@dataclass(frozen=True)
class Endpoint:
    """Where the metrics are served; without a port, nowhere. ``patience``: seconds after which a silent query hangs."""

    port: int | None = None
    host: str = LOOPBACK
    patience: float | None = None

    def metrics(self, trigger: Trigger) -> Metrics:
        """What is served. A batch of all that is there may take as long as it takes, unless somebody says how long."""
        return Metrics(PATIENCE if self.patience is None and trigger == "continuous" else self.patience)

    @contextmanager
    def serving(self, metrics: Metrics) -> Generator[None]:
        """Serve them while this is entered, and say where."""
        names = [name for name in os.environ.get(NAMES, "").split(",") if name.strip()]
        with nullcontext() if self.port is None else served(metrics, self.port, self.host, names) as address:
            if address is not None:
                typer.echo(f"Metrics are at {address}/metrics.", err=True)
            yield


def run_project(
    path: Path,
    trigger: Trigger,
    cluster: Cluster,
    format: Format,
    endpoint: Endpoint,
    then: OnFailure = OnFailure(),  # noqa: B008 - it is frozen
    page: Page = Page(),  # noqa: B008 - it is frozen
    logging: Logging = Logging(),  # noqa: B008 - it is frozen
) -> None:
    """Run all queries of a project and show their progress; Ctrl-C stops them cleanly."""
    # A remote server has files of its own: there, relative paths are left to it.
    with waiting("The queries are read"):
        opened = open_script(path, "absolute" if cluster.remote is None else "written")
        check_outside(opened)
        if cluster.remote is not None:
            check_declared(opened)
        from watersmeet.spark.run.in_use import using

    storage = storage_folder(opened.project)
    again = f"watersmeet run {path}"
    board, metrics = Board(format), endpoint.metrics(trigger)
    try:
        # Whoever makes a state anew puts it in the place of another.
        use = "alone" if then.changed == "rebuild" else "shared"
        used = using(storage, use, _names(opened)) if cluster.remote is None else nullcontext()
        with (
            interruptible(),
            endpoint.serving(metrics),
            page.serving(opened, metrics.text, str(path)) as shown,
            used,
            _logging(logging, storage),
            board,
        ):
            spark = cluster.session(opened.project, storage, opened.script)
            # Entered again: a new session brings a handler that cancels the running jobs first.
            with interruptible():
                board.wait_for("The first batch is under way")
                if cluster.remote is None:
                    guarded("The page", shown.ready, tell)(spark)
                run_opened(opened, spark, storage, trigger, board, metrics, then, page, shown)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Nothing is lost: `{again}` continues from {storage}.", err=True)
        raise
    except WatersmeetError as error:
        if exit_code(error) == DIED:
            restart(error, then, is_first=bool(board.totals))
        raise
    later = "what arrives later is late" if trigger == "end" else f"`{again}` continues with what arrives later"
    typer.echo(f"Done: {_outputs(opened)}; {later}.", err=True)


def _names(opened: Opened) -> list[str]:
    """What the queries are called: by their sinks, or by their numbers."""
    return [query.into or f"query{number}" for number, query in enumerate(opened.queries, 1)]


def run_opened(
    opened: Opened,
    spark: SparkSession,
    storage: Path,
    trigger: Trigger,
    board: Board,
    metrics: Metrics | None = None,
    then: OnFailure = OnFailure(),  # noqa: B008 - it is frozen
    page: Page = Page(),  # noqa: B008 - it is frozen
    shown: Shown = Shown(),  # noqa: B008 - it is frozen
) -> None:
    """Run what was opened; refusals have their places in the user's files.

    An interruption waits until no call to Spark is under way: one that is cut off would be reported as an error. A
    second one does not wait.
    """
    from watersmeet.families import OPERATORS
    from watersmeet.physical import plan_query, read_sources
    from watersmeet.physical.same_joins import same_join_notes
    from watersmeet.spark.exchange.observed import page_of_spark
    from watersmeet.spark.past.waiting import waiting_files
    from watersmeet.spark.run import watching
    from watersmeet.spark.run.running import run_script

    taken = metrics or Metrics()
    names = _names(opened)
    taken.checkpoints = {name: size_of(storage / "checkpoints" / name) for name in names}
    plans = {name: plan_query(query, OPERATORS) for name, query in zip(names, opened.queries, strict=True)}
    taken.files = {
        name: waiting_files(read_sources(plan.relation), storage / "checkpoints" / name) for name, plan in plans.items()
    }
    for _, note in same_join_notes(plans):
        tell(f"note: {note}")
    recorder = Recorder(storage, tell, page_of_spark(spark))
    forecasts = Forecasts(plans, storage)

    def compare_forecast(progress: Progress) -> None:
        for departure in forecasts.left(progress):
            tell(f"{progress.query}: {departure}")

    observers: dict[str, Callable[[Progress], None]] = {
        "The metrics": taken.take, "The history": recorder.take, "The log": log_batch, "The page": shown.take,
        "The progress": board.show, "The forecast": compare_forecast,
    }  # fmt: skip
    told = [guarded(what, observe, tell) for what, observe in observers.items()]

    def show(progress: Progress) -> None:
        for observe in told:
            observe(progress)

    def start(query: str) -> None:
        recorder.start(query)
        log("info", "started", query)

    def fail(query: str, why: str, again: float | None) -> None:
        taken.fail(query)
        recorder.fail(query, why, again)
        log("error" if again is None else "warning", "failed", query, why, {"again_in_seconds": again})

    def end(query: str) -> None:
        taken.end(query)
        recorder.end(query)
        log("info", "ended", query)

    with interruptions_noted() as noted:
        try:
            run_script(
                opened.script,
                analyzed=opened.queries,
                spark=spark,
                storage=storage,
                trigger=trigger,
                accepting=then.changed,
                ahead=then.ahead,
                then=watching.OnFailure(then.restarts, "stop" if then.stops_all else "go on"),
                told="some" if page.has_rows else "none",
                on_progress=show,
                on_start=start,
                on_failure=fail,
                on_life=taken.live,
                on_end=end,
                on_news=tell,
                is_interrupted=lambda: bool(noted),
            )
        except KeyboardInterrupt:
            raise Interrupted(*noted[:1]) from None
        except WatersmeetError as error:
            if noted and exit_code(error) == DIED:
                # A signal to the whole group ends Spark too: what went wrong then is no failure.
                raise Interrupted(noted[0]) from None
            raise opened.project.relocate(error) from error
        finally:
            recorder.close()


def tell(text: str) -> None:
    """Say something besides the progress, above it, and log it."""
    log("warning", "news", text=text)
    # Not by typer, which finds the terminal behind what rich has put in the place of the standard error.
    sys.stderr.write(f"{escape_controls(text)}\n")
    sys.stderr.flush()


def log_batch(progress: Progress) -> None:
    """Log what a batch did: in short, and with every number for those who want them."""
    told = json.loads(progress_line(progress))
    log("info", "batch", progress.query, progress_in_short(progress).partition(": ")[2], told)


@contextmanager
def _logging(logging: Logging, storage: Path) -> Generator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(logging.into(storage))
        except OSError as error:
            # Whether queries can write there, they will tell.
            typer.echo(f"Nothing is logged: {storage} cannot be written to ({error.strerror}).", err=True)
        yield


def restart(error: WatersmeetError, then: OnFailure, *, is_first: bool) -> None:
    """Begin anew in the place of this process, if that is still allowed: of Spark, nothing is left to go on with.

    ``is_first``: a batch succeeded since the last time, so failures before it count no more.
    """
    failures = 1 if is_first else int(os.environ.get(RESTARTED, "0")) + 1
    if failures > then.restarts:
        return
    from watersmeet.spark.run import watching

    wait = watching.OnFailure(then.restarts).wait(failures)
    print_text(f"{error.refusals[0].message}\nStarts again in {wait:g} s ({failures} of {then.restarts}).", err=True)
    with interruptible():
        time.sleep(wait)
    os.environ[RESTARTED] = str(failures)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


RESTARTED = "WATERSMEET_RESTARTED"
"""How often the command began anew without a batch in between: what it tells itself through its environment."""


def _outputs(opened: Opened) -> str:
    wanted = [query.into for query in opened.queries]
    sinks = [sink for sink in opened.script.sinks if sink.name in wanted]
    places = [
        f"{sink.name} is in {absolute_path(sink.options['path'], opened.project.root)}"
        for sink in sinks
        if "path" in sink.options
    ]
    return ", ".join(places) or "all queries have ended"
