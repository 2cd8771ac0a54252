"""Every command with its options and its help. What a command does is in the module of its name.

Those modules are imported when their command runs: ``--help``, ``check`` and ``explain`` never load Spark.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from watersmeet.cli import dev, state
from watersmeet.cli.console import Format, report_errors
from watersmeet.cli.init import Template
from watersmeet.cli.options import (
    ConfOption,
    FormatOption,
    Load,
    MasterOption,
    PackagesOption,
    ProjectPath,
    ReachOptions,
    RemoteOption,
    RunOptions,
    expand_options,
)
from watersmeet.cli.state import rescale
from watersmeet.version import __version__

if TYPE_CHECKING:
    from watersmeet.cli.run import Cluster

app = typer.Typer(
    name="watersmeet",
    help="Join streams with SQL on Spark. Before a query runs, you see what bounds its state: time, keys or a limit.",
    epilog="Start here: watersmeet demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

state.app.command()(rescale)
app.add_typer(state.app, name="state")
app.add_typer(dev.app, name="dev")


class Executor(StrEnum):
    """The engine that runs a case: ``spark``, or ``kernel`` in this process without a JVM."""

    spark = "spark"
    kernel = "kernel"


class ExplainStage(StrEnum):
    """``plan``: as it was read; ``analyzed``: with names, keys, bounds and types; ``physical``: with the operators."""

    plan = "plan"
    analyzed = "analyzed"
    physical = "physical"


class ScanMode(StrEnum):
    """The reader of rows. ``columns``: workers read Parquet files. ``spark``: Spark reads any format."""

    columns = "columns"
    spark = "spark"


HERE = [Path()]
"""The paths of commands that take several, by default: the folder you are in."""
PAGE_PORT = "8484"
"""The default port of the page."""


class _WithPage(TyperCommand):
    """A command whose ``--page`` may stand without a port."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        expanded: list[str] = []
        for arg, following in pairwise([*args, ""]):
            expanded += [arg, PAGE_PORT] if arg == "--page" and not following.isdigit() else [arg]
        return super().parse_args(ctx, expanded)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"watersmeet {__version__}")
        raise typer.Exit


@app.callback()
def watersmeet(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Join streams with SQL on Spark. Before a query runs, you see what bounds its state: time, keys or a limit."""
    context.obj = debug


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the project.")] = Path(),
    template: Annotated[
        Template | None,
        typer.Option("--template", help="Also write a CI workflow, a Dockerfile and a compose file, for such inputs."),
    ] = None,
) -> None:
    """Create a small project that runs. It has a query, sample data and a test case.

    Templates: `files` reads JSON files, `kafka` topics, `cdc` a table from Debezium's topic into Postgres; `python` is
    a program with tests. `watersmeet dev` starts the servers that `kafka` and `cdc` need.

    \b
    Example:
      watersmeet init shop
      watersmeet run shop --end
      watersmeet init shop --template kafka
    """
    with report_errors(context):
        from watersmeet.cli.init import init_project

        init_project(folder, template)


@app.command()
def check(
    context: typer.Context,
    path: ProjectPath = Path(),
    against: Annotated[
        str | None,
        typer.Option(
            "--against", help="Compare with the queries that last ran with this storage folder.", metavar="DIR"
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check types, paths, topics and sinks. Starts Spark, but no query.")
    ] = False,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Check every query without running it. Reports all errors at once. Only --deep and --against start Spark.

    \b
    Example:
      watersmeet check shop
      watersmeet check shop --deep
      watersmeet check shop --against shop/storage
      watersmeet check query.sql --format json
    """
    with report_errors(context, format):
        from watersmeet.cli.check import check_project

        needs_spark = deep or against is not None
        if not needs_spark and (master or remote or conf or packages):
            raise typer.BadParameter("--master, --remote, --conf and --packages are for --deep and --against")
        check_project(path, format, _cluster(master, remote, conf, packages) if needs_spark else None, against)


def _cluster(master: str | None, remote: str | None, conf: list[str] | None, packages: str | None) -> Cluster:
    from watersmeet.cli.run import Cluster

    return Cluster.of(master, remote, conf or [], packages)


@app.command()
@expand_options
def explain(
    context: typer.Context,
    path: ProjectPath = Path(),
    stage: Annotated[
        ExplainStage, typer.Option("--stage", help="The query as written, with names and types, or with operators.")
    ] = ExplainStage.physical,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write a drawing to this SVG file instead.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Show the expected size of the state and time per batch instead.")
    ] = False,
    load: Load = Load(),  # noqa: B008 - it is frozen
    reach: ReachOptions = ReachOptions(),  # noqa: B008 - it is frozen
    format: FormatOption = Format.text,
) -> None:
    """Show how every query would run. Starts Spark only for --forecast, to reach a storage on another machine.

    The plan shows the keys, the time bounds, how long each side keeps its rows, which columns are read, which filters
    are pushed down, and which operator runs and why. With --forecast, you see rows and bytes of state, seconds per
    batch, memory and disk instead. They are computed from rates that you give, or that `watersmeet advise` counted.

    \b
    Example:
      watersmeet explain shop/sql/join.sql
      watersmeet explain shop --stage analyzed --json
      watersmeet explain shop --svg plan.svg
      watersmeet explain shop --forecast --rate orders=1000/s --rate deliveries=800/s --cores 8
    """
    output_format = Format.json if as_json else format
    with report_errors(context, output_format):
        if forecast:
            if svg is not None:
                raise typer.BadParameter("--forecast and --svg exclude each other")
            from watersmeet.cli.explain import forecast_project

            forecast_project(path, load, reach.cluster(), output_format)
            return
        if load.rate or load.behind or load.keys or load.shards or reach.conf or reach.packages:
            raise typer.BadParameter("--rate, --behind, --keys, --shards, --conf and --packages are for --forecast")
        if svg is not None and output_format is Format.json:
            raise typer.BadParameter("--svg and --json exclude each other")
        from watersmeet.cli.explain import explain_project

        explain_project(path, output_format, stage.value, svg)


@app.command()
def advise(
    context: typer.Context,
    path: ProjectPath = Path(),
    keep: Annotated[
        float,
        typer.Option(
            "--keep", help="Share of pairs and rows that a proposal must keep.", metavar="SHARE", min=0.5, max=1
        ),
    ] = 0.999,
    sample: Annotated[
        int, typer.Option("--sample", help="Number of rows to read from each source.", metavar="ROWS", min=100)
    ] = 1_000_000,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write a picture to this SVG file instead.", metavar="FILE")
    ] = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Propose a time bound, a lag and a key for a join. Starts Spark, but no query.

    The command reads rows of the sources. The report shows how far apart matching rows are, and what each bound
    matches and costs in state; how far rows are out of order, and how many rows are late with each lag; columns that
    look like keys of each other; heavy keys, pauses, and tables that never change. It ends with SQL that you can
    paste. Declared streams are enough: the queries do not have to be valid yet.

    \b
    Example:
      watersmeet advise shop
      watersmeet advise shop --keep 0.99 --svg advice.svg
      watersmeet advise streams.sql --sample 50000 --format json
    """
    with report_errors(context, format):
        from watersmeet.cli.advise import SampleOptions, advise_project

        if svg is not None and format is Format.json:
            raise typer.BadParameter("--svg and --format json exclude each other")
        advise_project(path, SampleOptions(sample, keep), _cluster(master, remote, conf, packages), format, svg)


@app.command()
def plan(
    context: typer.Context,
    rate: Annotated[
        str, typer.Option("--rate", help="Rows of both sides together, for example 2e6/s.", metavar="ROWS/TIME")
    ],
    within: Annotated[
        str, typer.Option("--within", help="Time bound of the join, for example 1h.", metavar="DURATION")
    ],
    row: Annotated[str, typer.Option("--row", help="Size of a row.", metavar="SIZE")] = "100B",
    lag: Annotated[str, typer.Option("--lag", help="Lag of the watermarks.", metavar="DURATION")] = "1m",
    batch: Annotated[
        str, typer.Option("--batch", help="Length of time that a batch covers.", metavar="DURATION")
    ] = "10s",
    results: Annotated[float, typer.Option("--results", help="Result rows per input row.", metavar="N", min=0)] = 0.5,
    heaviest: Annotated[
        float,
        typer.Option("--heaviest", help="Share of rows that have the heaviest key.", metavar="SHARE", min=0, max=1),
    ] = 0.0,
    machine: Annotated[int, typer.Option("--machine", help="Cores per machine.", metavar="CORES", min=1)] = 16,
    scan: Annotated[
        ScanMode, typer.Option("--scan", help="Rows are read by Python workers (Parquet only) or by Spark.")
    ] = ScanMode.columns,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also run the shuffle in this process, with up to thousands of tasks.")
    ] = False,
    format: FormatOption = Format.text,
) -> None:
    """Estimate what a join of two streams needs on a cluster. Does not start Spark.

    The estimate has cores, memory, disk and network. Each number comes with its formula and its assumptions. The costs
    in the formulas were measured.

    \b
    Example:
      watersmeet plan --rate 2e6/s --within 1h --row 200B
      watersmeet plan --rate 5e4/s --within 15m --heaviest 0.02 --scan spark
      watersmeet plan --rate 2e6/s --within 1h --batch 2s --simulate
    """
    with report_errors(context, format):
        from watersmeet.cli.explain import plan_load
        from watersmeet.tools.forecast.cluster import ClusterRequest
        from watersmeet.tools.forecast.inputs import parse_rate, parse_size

        times = [_seconds(name, text) for name, text in (("within", within), ("lag", lag), ("batch", batch))]
        if not 1 <= times[2] <= 3600:
            raise typer.BadParameter(f"--batch {batch}: a batch brings one second to an hour of rows")
        request = ClusterRequest(
            parse_rate(rate), times[0], parse_size(row), times[1], times[2], results, heaviest, machine,
            scan is ScanMode.columns,
        )  # fmt: skip
        plan_load(request, format, simulated=simulate)


def _seconds(name: str, text: str) -> float:
    from watersmeet.duration import parse_duration

    try:
        micros = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"--{name}: {error}") from None
    if micros < 0:
        raise typer.BadParameter(f"--{name} {text}: expected a length of time, not a negative one")
    return micros / 1_000_000


@app.command()
def fmt(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="SQL files, or folders with SQL files.")] = HERE,
    check: Annotated[bool, typer.Option("--check", help="Change nothing. Exit with 1 if a file would change.")] = False,
) -> None:
    """Format SQL files. Only spaces, line breaks and the case of keywords change.

    \b
    Example:
      watersmeet fmt shop/sql
      watersmeet fmt query.sql --check
    """
    with report_errors(context):
        from watersmeet.cli.script import check_layout, format_files

        (check_layout if check else format_files)(paths)


@app.command()
def doctor(
    context: typer.Context,
    path: ProjectPath = Path(),
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Check a cluster before the first run. Starts Spark, but no query.

    The report says whether every executor answers, has the Python, the packages and the time of this machine, has
    enough local disk and memory, sees the storage and the folders of sources and sinks, and reaches their servers. It
    also says whether the queries can start. Exits with 1 if something would stop them.

    \b
    Example:
      watersmeet doctor shop --master spark://host:7077
      watersmeet doctor shop --master yarn --conf spark.executor.instances=4 --format json
    """
    with report_errors(context, format):
        from watersmeet.cli.doctor import examine_cluster

        examine_cluster(path, _cluster(master, remote, conf, packages), format)


@app.command(cls=_WithPage)
@expand_options
def run(
    context: typer.Context,
    path: ProjectPath = Path(),
    options: RunOptions = RunOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Run all queries until Ctrl-C, and show their progress. The next run continues where this one stopped.

    On a terminal, the progress is a live table. In a pipe, it is one short line per batch. With --format json, each
    batch is a full record.

    \b
    Example:
      watersmeet run shop
      watersmeet run shop --once --conf spark.driver.memory=4g
      watersmeet run shop --page
      watersmeet run shop --metrics-port 9464
      watersmeet run shop --accept
      watersmeet run shop --rebuild
      watersmeet run shop --restart on-failure --restart-limit 10
      watersmeet run query.sql --packages org.postgresql:postgresql:42.7.4

    \b
    Exit codes:
      0    done
      1    rejected: the same run would be rejected again
      2    a file, a folder or an option is wrong
      3    a bug in Watersmeet
      4    failed while running, or another system was unavailable; you can retry
      5    Spark died or did not start; you can retry
      130  interrupted by Ctrl-C (143: by SIGTERM); the next run continues
    """
    with report_errors(context, options.format):
        if options.once and options.end:
            raise typer.BadParameter("--once and --end exclude each other")
        if options.accept and options.rebuild:
            raise typer.BadParameter("--accept and --rebuild exclude each other")
        from watersmeet.cli.console import show_wait

        with show_wait("Starting Watersmeet"):
            from watersmeet.cli.run import run_with_options

        run_with_options(path, options)


@app.command()
def page(
    context: typer.Context,
    path: ProjectPath = Path(),
    port: Annotated[
        int,
        typer.Option("--port", help="Port of the page. 0 selects a free one.", metavar="PORT", min=0, max=65535),
    ] = int(PAGE_PORT),
    host: Annotated[
        str, typer.Option("--host", help="Address of the page. Other machines need a token.", metavar="HOST")
    ] = "127.0.0.1",
    master: MasterOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
) -> None:
    """Serve a page about the queries of a project. Starts Spark only to reach a storage on another machine.

    The queries can be running, or have run before. The page shows what `run` writes to the storage: a drawing of each
    query with its numbers, watermarks, state and batches over time, failures, and problems with advice. It only
    answers this machine, unless you give another address. Then a token is needed: the value of WATERSMEET_PAGE_TOKEN,
    or a generated one.

    \b
    Example:
      watersmeet page shop
      watersmeet page shop --port 9000
      watersmeet page shop --host 0.0.0.0
    """
    with report_errors(context):
        from watersmeet.cli.studio import Page, show_page

        show_page(path, Page(port, host), _cluster(master, None, conf, packages))


@app.command()
def why(
    context: typer.Context,
    path: ProjectPath = Path(),
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help="Stream or table of the row.")] = None,
    values: Annotated[list[str] | None, typer.Argument(metavar="COLUMN=VALUE", help="A value of the row.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Count all rows by outcome and reason.")] = False,
    result: Annotated[
        list[str] | None,
        typer.Option("--result", help="Show which rows a row of the result was made of.", metavar="COLUMN=VALUE"),
    ] = None,
    query: Annotated[str | None, typer.Option("--query", help="Only the query into this sink.", metavar="NAME")] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Explain what happened to a row. The answer shows which rows it matched, or why it matched none.

    The command reads the sources again, up to where the checkpoint says the query has read. It does not disturb a
    running query.

    \b
    Example:
      watersmeet why shop orders order_id=17
      watersmeet why orders order_id=17
      watersmeet why shop --summary
      watersmeet why shop --result order_id=1 --format json
    """
    with report_errors(context, format):
        from watersmeet.cli.explain import WhyRequest, why_project
        from watersmeet.cli.run import Cluster

        if source is not None and "=" in source:
            # Of `orders order_id=17` the PATH was left out: what has a `=` is a value of the row.
            path, source, values = Path(), str(path), [source, *(values or ())]
        question = WhyRequest(source, values or (), result or (), summary, query)
        why_project(path, question, Cluster.of(master, None, conf or [], packages), format)


@app.command()
def compact(
    context: typer.Context,
    path: ProjectPath = Path(),
    sink: Annotated[str | None, typer.Option("--sink", help="Only this sink.", metavar="NAME")] = None,
    below: Annotated[str, typer.Option("--below", help="Merge files smaller than this.", metavar="SIZE")] = "32MB",
    to: Annotated[str, typer.Option("--to", help="Approximate size of merged files.", metavar="SIZE")] = "128MB",
    master: MasterOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Merge the small files of file sinks into larger ones. Stop the queries first.

    The rows stay the same, and the next run continues. Files of unfinished batches and of the last batch are not
    merged. Spark starts only for Parquet and ORC. If a compaction is interrupted, the next compaction or the next run
    completes it.

    \b
    Example:
      watersmeet compact shop
      watersmeet compact shop --sink joined --below 8MB --to 64MB
    """
    with report_errors(context, format):
        from watersmeet.cli.compact import compact_project
        from watersmeet.tools.forecast.inputs import parse_size

        sizes = parse_size(below), parse_size(to)
        if sizes[0] > sizes[1]:
            raise typer.BadParameter(f"--below {below} is more than --to {to}: merged files would be merged again")
        compact_project(path, sink, sizes, _cluster(master, None, conf, packages), format)


@app.command()
def test(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Case files, or folders with case files.")] = HERE,
    on: Annotated[
        Executor, typer.Option("--on", help="Run on Spark, or in this process without a JVM.")
    ] = Executor.spark,
    any_order: Annotated[
        bool,
        typer.Option(
            "--any-order",
            help="Also try other batches, orders, restarts and shards, in this process: totals must stay.",
        ),
    ] = False,
    master: MasterOption = None,
) -> None:
    """Run test cases. A case has batches of input rows, and the rows that must come out.

    Exits with 0 if all cases pass, 1 if a case fails, 2 if a file cannot be read.

    \b
    Example of a case:
      name: an order without a delivery is padded
      sql: |
        CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
        CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
        SELECT STREAM l.id, r.t FROM l LEFT JOIN r WITHIN 4 ON l.id = r.id;
      batches:
      - in: {l: [[1, 5], [2, 6]], r: [[1, 8]]}
        out: [[1, 8]]
      - input_watermarks: {r: 20}
        out: [[2, null]]

    \b
    Example:
      watersmeet test shop/cases --on kernel
      watersmeet test shop/cases --any-order
    """
    with report_errors(context):
        from watersmeet.cli.check import run_cases

        run_cases(paths, "any order" if any_order else on.value, master)


@app.command()
def draw(
    context: typer.Context,
    case: Annotated[Path, typer.Argument(metavar="CASE", help="A case file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.", metavar="FILE")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="The query into this sink, if the case has several.", metavar="NAME")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", help="Draw the state after batch N. The first batch is 0.", metavar="N", min=0),
    ] = None,
) -> None:
    """Draw the rows of a case on a time axis, as SVG. Does not start Spark.

    Each row is a bar that lasts as long as the row is kept. Lines show matches and watermarks. A label says what
    happened to each row: matched, padded or late. Point at a row to see the reason.

    \b
    Example:
      watersmeet draw shop/cases/joined.yaml -o lifetimes.svg
      watersmeet draw shop/cases/joined.yaml --batch 0 -o before.svg
    """
    with report_errors(context):
        from watersmeet.cli.studio import draw_case

        draw_case(case, output, query, batch)


@app.command()
def play(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A case, a .sql file or a folder.", show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Save to this file instead of a download.", metavar="FILE")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", help="Port of the board. Default: 8484, or a free one.", metavar="PORT", min=0, max=65535
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address of the board. Other machines need a token.", metavar="HOST")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--open", help="Open the board in the browser.")] = False,
) -> None:
    """Try out queries on a drawing board in the browser. Does not start Spark.

    You edit SQL on one side and rows on the other. After every change you see which rows come out, what happened to
    each row and why, and the picture that `draw` makes. You can open stories, and all cases and projects below the
    folder, and save the board as a case.

    \b
    Example:
      watersmeet play
      watersmeet play shop/cases/joined.yaml --save shop/cases/late.yaml
      watersmeet play shop --open
    """
    with report_errors(context):
        from watersmeet.cli.studio import play_board

        play_board(path, save, host, port, opens_browser=browser)


@app.command()
def demo(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the project of the demo.")] = Path(
        "watersmeet-demo"
    ),
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Send the streams through a Kafka broker, which the demo starts.")
    ] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Join two generated streams on Spark while they arrive.

    Orders and deliveries arrive for some seconds. At the end, the demo compares the result with the expected one.

    \b
    Example:
      watersmeet demo
      watersmeet explain watersmeet-demo
      watersmeet demo --kafka demo-kafka
    """
    with report_errors(context):
        from watersmeet.cli.console import show_wait

        with show_wait("Generating orders and deliveries"):
            from watersmeet.cli.demo import make_streams, run_demo, run_kafka_demo
            from watersmeet.cli.run import Cluster

            streams = make_streams()
        run = run_kafka_demo if kafka else run_demo
        run(folder, Cluster.of(master, None, conf or []), streams)
