"""``run``: the queries of a project on Spark, until they end or are stopped."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from watersmeet.cli.console import (
    DIED,
    Format,
    Interrupted,
    defer_interruptions,
    exit_code,
    interruptible,
    print_text,
    show_wait,
)
from watersmeet.cli.options import Restart, RunOptions
from watersmeet.cli.progress import ProgressDisplay, progress_line, progress_summary
from watersmeet.cli.script import OpenedScript, check_declared, check_external_references, open_script
from watersmeet.cli.studio import Page, PageHooks, alert_problems, check_webhook
from watersmeet.errors import WatersmeetError, escape_controls
from watersmeet.formats.packages import JARS, formats_in
from watersmeet.locations import Storage, checkpoint_at, is_local, resolve_references
from watersmeet.metrics.history import Recorder
from watersmeet.metrics.logs import LogOptions, guard_observer, log
from watersmeet.metrics.prometheus import LOOPBACK, NAMES, MetricsRegistry, make_size_probe, serve_metrics
from watersmeet.project import Project, absolute_path, has_local_storage, storage_folder, storage_location
from watersmeet.tools.forecast.query import ForecastMonitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.logical.nodes import Script
    from watersmeet.metrics.progress import Progress
    from watersmeet.physical import QueryPlan
    from watersmeet.spark.leases import Leases

Trigger = Literal["continuous", "available_now", "end"]
"""``continuous``: until stopped. ``available_now``: the available input. ``end``: also, the input is finished."""

PATIENCE = 300.0
"""Seconds of silence after which a query counts as hanging, by default."""


@dataclass(frozen=True)
class Cluster:
    """The master and the settings of Spark, as given on the command line."""

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
        own = {setting.name: setting.value for setting in script.settings if setting.name.startswith(JARS)}
        return resolve_references({**project.settings_from_root, **own, **self.conf})

    def storage(self, project: Project, script: Script) -> Storage:
        """The storage of a project: a folder of this machine, or one that a session reaches, started for it."""
        if has_local_storage(project) or self.remote is not None:
            return storage_folder(project)
        with show_wait("Starting Spark"):
            spark = self.session(project, None, script)
        return storage_on(spark, project)

    def session(self, project: Project, storage: Storage | None, script: Script) -> SparkSession:
        """A session with these settings, which knows the formats of the script.

        ``storage``: where it logs, if that is on this machine; else into a temporary folder of this process.
        """
        from watersmeet.spark.folders import own_folder
        from watersmeet.spark.private.checkpoint_files import keep_checkpoints_here, keep_checkpoints_remotely
        from watersmeet.spark.private.jvm import silence_py4j
        from watersmeet.spark.session import session

        silence_py4j()
        folder = storage if storage is not None and is_local(storage) else own_folder(Path(tempfile.gettempdir()))
        spark = session(
            self.master, self.remote, self.settings(project, script), self.packages, log=folder / "spark.log",
            formats=formats_in(script),
        )  # fmt: skip
        if storage is not None and is_local(storage):
            keep_checkpoints_here(spark)
        elif not has_local_storage(project):
            keep_checkpoints_remotely(spark)
        if project.catalog:
            spark.catalog.setCurrentCatalog(project.catalog)
        if project.database:
            spark.catalog.setCurrentDatabase(project.database)
        return spark


def storage_on(spark: SparkSession, project: Project) -> Storage:
    """The storage of a project, as a session reaches it."""
    if has_local_storage(project):
        return storage_folder(project)
    from watersmeet.spark.private.files import open_storage

    return open_storage(spark, storage_location(project))


@dataclass(frozen=True)
class RunPolicy:
    """The handling of failures: how often a query is restarted, and whether one failure stops all other queries.

    ``changed``: how to start queries that have changed since their checkpoints were written. ``ahead``: how to start
    with sinks that have batches which the checkpoint, restored from an older copy, does not have. ``new_columns``: how
    to start with columns that the table of a sink lacks.
    """

    restarts: int = 0
    stops_all: bool = False
    changed: Literal["refuse", "accept", "rebuild"] = "refuse"
    ahead: Literal["refuse", "rewind"] = "refuse"
    new_columns: Literal["refuse", "add"] = "refuse"


@dataclass(frozen=True)
class Endpoint:
    """The address of the metrics; without a port, none. ``patience``: seconds after which a silent query hangs."""

    port: int | None = None
    host: str = LOOPBACK
    patience: float | None = None

    def metrics(self, trigger: Trigger) -> MetricsRegistry:
        """The health that is served. A batch over all available input has no time limit, unless one is set."""
        return MetricsRegistry(PATIENCE if self.patience is None and trigger == "continuous" else self.patience)

    @contextmanager
    def serve(self, metrics: MetricsRegistry) -> Generator[None]:
        """Serve them while this is entered, and say where."""
        names = [name for name in os.environ.get(NAMES, "").split(",") if name.strip()]
        with nullcontext() if self.port is None else serve_metrics(metrics, self.port, self.host, names) as address:
            if address is not None:
                typer.echo(f"Metrics are at {address}/metrics.", err=True)
            yield


def run_with_options(path: Path, options: RunOptions) -> None:
    """Run a project as the command line says."""
    cluster = Cluster.of(options.master, options.remote, options.conf or [], options.packages, options.jars)
    policy = RunPolicy(
        restarts=options.restart_limit if options.restart is Restart.on_failure else 0,
        stops_all=options.fail_fast,
        changed="rebuild" if options.rebuild else "accept" if options.accept else "refuse",
        ahead="rewind" if options.sink_resume else "refuse",
        new_columns="add" if options.evolve else "refuse",
    )
    trigger = "end" if options.end else "available_now" if options.once else "continuous"
    endpoint = Endpoint(options.metrics_port, options.metrics_host, options.hang_after)
    page = Page(options.page, options.page_host, not options.no_rows)
    webhook = check_webhook(options.webhook)
    logging = LogOptions(options.log_level.value, options.log_format.value)
    run_project(path, trigger, cluster, options.format, endpoint, policy, page, logging, webhook)


def run_project(
    path: Path,
    trigger: Trigger,
    cluster: Cluster,
    format: Format,
    endpoint: Endpoint,
    policy: RunPolicy = RunPolicy(),  # noqa: B008 - it is frozen
    page: Page = Page(),  # noqa: B008 - it is frozen
    logging: LogOptions = LogOptions(),  # noqa: B008 - it is frozen
    webhook: str | None = None,
) -> None:
    """Run all queries of a project and show their progress; Ctrl-C stops them cleanly."""
    # A remote server has files of its own: there, relative paths are left to it.
    with show_wait("Reading the queries"):
        opened = open_script(path, "absolute" if cluster.remote is None else "written")
        check_external_references(opened)
        if cluster.remote is not None:
            check_declared(opened)
        from watersmeet.spark.state.owner import lock_storage

    with interruptible():
        storage = cluster.storage(opened.project, opened.script)
    if not is_local(storage):
        # The columns of the first start can only be read now.
        opened = open_script(path, "absolute", storage=storage)
    again = f"watersmeet run {path}"
    board, metrics = ProgressDisplay(format), endpoint.metrics(trigger)
    try:
        # A rebuild replaces the old state.
        use = "alone" if policy.changed == "rebuild" else "shared"
        used = lock_storage(storage, use, _names(opened)) if cluster.remote is None else nullcontext()
        with (
            interruptible(),
            endpoint.serve(metrics),
            page.serve(opened, storage, metrics.text, str(path)) as page_hooks,
            used as leases,
            alert_problems(webhook, opened, storage, notify),
            _open_log(logging, storage),
            board,
        ):
            spark = cluster.session(opened.project, storage, opened.script)
            # Entered again: a new session brings a handler that cancels the running jobs first.
            with interruptible():
                board.wait_for("Waiting for the first batch")
                if cluster.remote is None:
                    guard_observer("The page", page_hooks.ready, notify)(spark)
                run_opened(opened, spark, storage, trigger, board, metrics, policy, page, page_hooks, leases)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Nothing is lost: `{again}` continues from {storage}.", err=True)
        raise
    except WatersmeetError as error:
        if exit_code(error) == DIED:
            restart(error, policy, is_first=bool(board.totals))
        raise
    for name in _names(opened):
        if name not in board.totals:
            print_text(f"{name}: no new rows.", err=True)
    later = "rows that arrive later are late" if trigger == "end" else f"`{again}` continues with new rows"
    typer.echo(f"Done: {_outputs(opened)}; {later}.", err=True)


def _names(opened: OpenedScript) -> list[str]:
    """The names of the queries: those of their sinks, or their numbers."""
    return [query.into or f"query{number}" for number, query in enumerate(opened.queries, 1)]


def run_opened(
    opened: OpenedScript,
    spark: SparkSession,
    storage: Storage,
    trigger: Trigger,
    board: ProgressDisplay,
    metrics: MetricsRegistry | None = None,
    policy: RunPolicy = RunPolicy(),  # noqa: B008 - it is frozen
    page: Page = Page(),  # noqa: B008 - it is frozen
    page_hooks: PageHooks = PageHooks(),  # noqa: B008 - it is frozen
    leases: Leases | None = None,
) -> None:
    """Run what was opened; refusals have their places in the user's files.

    An interruption waits until no call to Spark is under way: one that is cut off would be reported as an error. A
    second one does not wait.
    """
    from watersmeet.spark.leases import NO_LEASES
    from watersmeet.spark.run import watching
    from watersmeet.spark.run.prepare import StartOptions
    from watersmeet.spark.run.running import run_script

    observers = RunObservers.of(opened, spark, storage, metrics or MetricsRegistry(), (board, page_hooks.take))
    with defer_interruptions() as noted:
        try:
            run_script(
                opened.script,
                analyzed=opened.queries,
                spark=spark,
                storage=storage,
                trigger=trigger,
                policy=watching.RestartPolicy(policy.restarts, "stop" if policy.stops_all else "go on"),
                options=StartOptions(
                    policy.changed,
                    "some" if page.has_rows else "none",
                    policy.ahead,
                    leases or NO_LEASES,
                    policy.new_columns,
                ),
                listeners=watching.Listeners(
                    on_progress=observers.show,
                    on_start=observers.start,
                    on_failure=observers.fail,
                    on_life=observers.metrics.record_activity,
                    on_end=observers.end,
                    on_news=notify,
                    on_plans=observers.take_plans,
                    is_interrupted=lambda: bool(noted),
                ),
            )
        except KeyboardInterrupt:
            raise Interrupted(*noted[:1]) from None
        except WatersmeetError as error:
            if noted and exit_code(error) == DIED:
                # A signal to the whole process group ends Spark too; errors after it are not failures.
                raise Interrupted(noted[0]) from None
            raise opened.project.relocate(error) from error
        finally:
            observers.recorder.close()


Observer = Callable[["Progress"], None]


@dataclass(frozen=True)
class RunObservers:
    """The observers of a run: metrics, history, log and display."""

    metrics: MetricsRegistry
    recorder: Recorder
    forecasts: ForecastMonitor
    display: ProgressDisplay
    batches: tuple[Observer, ...]
    checkpoints: Mapping[str, Storage]

    @classmethod
    def of(
        cls,
        opened: OpenedScript,
        spark: SparkSession,
        storage: Storage,
        metrics: MetricsRegistry,
        displays: tuple[ProgressDisplay, Observer],
    ) -> RunObservers:
        """The observers of the queries of a script; ``displays`` are the progress and the page."""
        from watersmeet.spark.run.watching import spark_ui_url

        checkpoints = {name: checkpoint_at(storage, name) for name in _names(opened)}
        metrics.checkpoints = {
            name: make_size_probe(folder) for name, folder in checkpoints.items() if is_local(folder)
        }
        recorder = Recorder(storage, notify, spark_ui_url(spark))
        forecasts = ForecastMonitor({}, storage)

        def compare_forecast(progress: Progress) -> None:
            for departure in forecasts.new_alerts(progress):
                notify(f"{progress.query}: {departure}")

        display, page = displays
        batches: dict[str, Observer] = {
            "The metrics": metrics.take, "The history": recorder.take, "The log": log_batch, "The page": page,
            "The progress": display.show, "The forecast": compare_forecast,
        }  # fmt: skip
        guarded = tuple(guard_observer(label, observe, notify) for label, observe in batches.items())
        return cls(metrics, recorder, forecasts, display, guarded, checkpoints)

    def take_plans(self, plans: Mapping[str, QueryPlan]) -> None:
        """Follow the plans that run: their waiting files, their forecasts, and joins that are the same twice."""
        from watersmeet.physical import read_sources
        from watersmeet.physical.change import same_join_notes
        from watersmeet.spark.state.offset_log import backlog_counters

        self.metrics.files = {
            name: backlog_counters(read_sources(plan.relation), self.checkpoints[name]) for name, plan in plans.items()
        }
        for _, note in same_join_notes(plans):
            notify(f"note: {note}")
        self.forecasts.take_plans(plans)

    def show(self, progress: Progress) -> None:
        """Pass on what a batch did."""
        for observe in self.batches:
            observe(progress)

    def start(self, query: str) -> None:
        """Pass on that a query has started."""
        self.display.start(query)
        self.recorder.start(query)
        log("info", "started", query)

    def fail(self, query: str, why: str, again: float | None) -> None:
        """Pass on that a query has failed, and in how many seconds it starts again, if it does."""
        self.metrics.fail(query)
        self.recorder.fail(query, why, again)
        log("error" if again is None else "warning", "failed", query, why, {"again_in_seconds": again})

    def end(self, query: str) -> None:
        """Pass on that a query has ended."""
        self.metrics.end(query)
        self.recorder.end(query)
        log("info", "ended", query)


def notify(text: str) -> None:
    """Say something besides the progress, above it, and log it."""
    log("warning", "news", text=text)
    # Not by typer, which finds the terminal behind what rich has put in the place of the standard error.
    sys.stderr.write(f"{escape_controls(text)}\n")
    sys.stderr.flush()


def log_batch(progress: Progress) -> None:
    """Log a batch: a short text, and all of its numbers in JSON and with ``debug``."""
    record = json.loads(progress_line(progress))
    log("info", "batch", progress.query, progress_summary(progress).partition(": ")[2], record)


@contextmanager
def _open_log(logging: LogOptions, storage: Storage) -> Generator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(logging.attach(storage))
        except OSError as error:
            # Whether queries can write there, they will tell.
            typer.echo(f"No log is written: {storage} is not writable ({error.strerror}).", err=True)
        yield


def restart(error: WatersmeetError, policy: RunPolicy, *, is_first: bool) -> None:
    """Replace this process by a new run, if the limit allows it: Spark has died.

    ``is_first``: a batch succeeded since the last time, so failures before it count no more.
    """
    failures = 1 if is_first else int(os.environ.get(RESTARTED, "0")) + 1
    if failures > policy.restarts:
        return
    from watersmeet.spark.run import watching

    wait = watching.RestartPolicy(policy.restarts).wait(failures)
    print_text(f"{error.refusals[0].message}\nRestarting in {wait:g} s ({failures} of {policy.restarts}).", err=True)
    with interruptible():
        time.sleep(wait)
    os.environ[RESTARTED] = str(failures)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


RESTARTED = "WATERSMEET_RESTARTED"
"""The number of restarts without a batch in between, which the command passes to itself in its environment."""


def _outputs(opened: OpenedScript) -> str:
    wanted = [sink for query in opened.queries for sink in query.sinks]
    sinks = [sink for sink in opened.script.sinks if sink.name in wanted]
    places = [
        f"{sink.name} is in {absolute_path(sink.options['path'], opened.project.root)}"
        for sink in sinks
        if "path" in sink.options
    ]
    return ", ".join(places) or "all queries have ended"
