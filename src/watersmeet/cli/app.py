"""What can be typed: every command with its options and its help. What a command does is in the module of its name.

Those modules are imported when their command runs: ``--help``, ``check`` and ``explain`` never load Spark.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from watersmeet.cli.failure import Format, reported
from watersmeet.version import __version__

if TYPE_CHECKING:
    from watersmeet.cli.run import Cluster

app = typer.Typer(
    name="watersmeet",
    help="Join streams with SQL on Spark. A query is refused, or what bounds its state is known: time, keys, a limit.",
    epilog="Start here: watersmeet demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Executor(StrEnum):
    """What runs a case: ``spark``, or ``kernel`` in this process without a JVM."""

    spark = "spark"
    kernel = "kernel"


class Restart(StrEnum):
    """``never``, or ``on-failure``: a query that failed, and all of them if Spark died."""

    never = "never"
    on_failure = "on-failure"


class ExplainStage(StrEnum):
    """``plan``: as it was read; ``analyzed``: with names, keys, bounds and types; ``physical``: with the operators."""

    plan = "plan"
    analyzed = "analyzed"
    physical = "physical"


ProjectPath = Annotated[Path, typer.Argument(metavar="PATH", help="A folder, a .sql file or a .substrait plan.")]
FormatOption = Annotated[Format, typer.Option("--format", help="For people or for machines.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="Spark's master, for example local[2].", metavar="URL")
]
RemoteOption = Annotated[str | None, typer.Option("--remote", help="A Spark Connect server, sc://host.", metavar="URL")]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark; may be repeated.", metavar="NAME=VALUE")
]
PackagesOption = Annotated[
    str | None, typer.Option("--packages", help="Maven coordinates, with commas between.", metavar="LIST")
]
JarsOption = Annotated[str | None, typer.Option("--jars", help="Jars for Spark, with commas between.", metavar="LIST")]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"watersmeet {__version__}")
        raise typer.Exit


@app.callback()
def watersmeet(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show stack traces.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Join streams with SQL on Spark. A query is refused, or what bounds its state is known: time, keys, a limit."""
    context.obj = debug


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")] = Path(),
) -> None:
    """Write a small project that runs: a query, its data and a case.

    \b
    Example:
      watersmeet init shop
      watersmeet run shop --end
    """
    with reported(context):
        from watersmeet.cli.init import init_project

        init_project(folder)


@app.command()
def check(
    context: typer.Context,
    path: ProjectPath = Path(),
    deep: Annotated[
        bool, typer.Option("--deep", help="Ask Spark too: types, paths, topics, sinks. Starts it, but no query.")
    ] = False,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Say whether every query may run, and if not, why. Needs no Spark, but with --deep.

    \b
    Example:
      watersmeet check shop
      watersmeet check shop --deep
      watersmeet check query.sql --format json
    """
    with reported(context, format):
        from watersmeet.cli.check import check_project

        if not deep and (master or remote or conf or packages):
            raise typer.BadParameter("--master, --remote, --conf and --packages are for --deep")
        check_project(path, format, _cluster(master, remote, conf, packages) if deep else None)


def _cluster(master: str | None, remote: str | None, conf: list[str] | None, packages: str | None) -> Cluster:
    from watersmeet.cli.run import Cluster

    return Cluster.of(master, remote, conf or [], packages)


@app.command()
def explain(
    context: typer.Context,
    path: ProjectPath = Path(),
    stage: Annotated[
        ExplainStage, typer.Option("--stage", help="What was asked, what it means, or how it would run.")
    ] = ExplainStage.physical,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write a drawing to this file instead.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Show how every query would run. Needs no Spark.

    The plan with its keys, both time bounds, how long each side is kept, which columns are read, which filters moved,
    the operator and why.

    \b
    Example:
      watersmeet explain shop/sql/join.sql
      watersmeet explain shop --stage analyzed --json
      watersmeet explain shop --svg plan.svg
    """
    shown = Format.json if as_json else format
    with reported(context, shown):
        if svg is not None and shown is Format.json:
            raise typer.BadParameter("--svg and --json exclude each other")
        from watersmeet.cli.explain import explain_project

        explain_project(path, shown, stage.value, svg)


@app.command()
def fmt(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="SQL files, or folders of them.")],
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if a file would change.")] = False,
) -> None:
    """Write SQL files in canonical layout. Only spaces, line breaks and the case of keywords change.

    \b
    Example:
      watersmeet fmt shop/sql
      watersmeet fmt query.sql --check
    """
    with reported(context):
        from watersmeet.cli.fmt import check_layout, format_files

        (check_layout if check else format_files)(paths)


@app.command()
def run(
    context: typer.Context,
    path: ProjectPath = Path(),
    once: Annotated[bool, typer.Option("--once", help="Process what is there, then stop.")] = False,
    end: Annotated[bool, typer.Option("--end", help="Process what is there and declare the input finished.")] = False,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", help="Serve /metrics to Prometheus.", metavar="PORT", min=0, max=65535),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address to serve them at.", metavar="HOST")
    ] = "127.0.0.1",
    hang_after: Annotated[
        float | None,
        typer.Option("--hang-after", help="When /health calls a silent query hanging; 300.", metavar="SECONDS", min=1),
    ] = None,
    restart: Annotated[
        Restart, typer.Option("--restart", help="Whether what failed is started again, with growing pauses.")
    ] = Restart.never,
    restart_limit: Annotated[
        int, typer.Option("--restart-limit", help="How often, without a batch in between.", metavar="N", min=1)
    ] = 5,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Let a query that fails stop the others at once.")
    ] = False,
    format: FormatOption = Format.text,
) -> None:
    """Run all queries until Ctrl-C, and show their progress. The next run continues where this one stopped.

    On a terminal the progress is a live table; piped it is a short line per batch, with --format json the full record.

    \b
    Example:
      watersmeet run shop
      watersmeet run shop --once --conf spark.driver.memory=4g
      watersmeet run shop --metrics-port 9464
      watersmeet run shop --restart on-failure --restart-limit 10
      watersmeet run query.sql --packages org.postgresql:postgresql:42.7.4

    \b
    Exit codes:
      0    done
      1    refused: the same again would be refused again
      2    a file, a folder or an option is wrong
      3    a mistake of ours
      4    failed while running, or something outside was missing; may be retried
      5    Spark died or did not start; may be retried
      130  interrupted (Ctrl-C); 143 by a polite kill. The next run continues
    """
    with reported(context, format):
        if once and end:
            raise typer.BadParameter("--once and --end exclude each other")
        from watersmeet.cli.run import Cluster, Endpoint, OnFailure, run_project

        cluster = Cluster.of(master, remote, conf or [], packages, jars)
        endpoint = Endpoint(metrics_port, metrics_host, hang_after)
        then = OnFailure(restart_limit if restart is Restart.on_failure else 0, fail_fast)
        run_project(path, "end" if end else "available_now" if once else "continuous", cluster, format, endpoint, then)


@app.command()
def why(
    context: typer.Context,
    path: ProjectPath,
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help="The stream or table of the row.")] = None,
    values: Annotated[list[str] | None, typer.Argument(metavar="COLUMN=VALUE", help="What the row has there.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="All rows, by what became of them and why.")] = False,
    result: Annotated[
        list[str] | None,
        typer.Option("--result", help="What a row of the result was made of.", metavar="COLUMN=VALUE"),
    ] = None,
    query: Annotated[str | None, typer.Option("--query", help="Only the query into that sink.", metavar="NAME")] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Say what became of a row: why it did not join, or what it met, batch by batch.

    It reads the sources again, as far as the query has read them by its checkpoint. A query that runs is not disturbed.

    \b
    Example:
      watersmeet why shop orders order_id=17
      watersmeet why shop --summary
      watersmeet why shop --result order_id=1 --format json
    """
    with reported(context, format):
        from watersmeet.cli.run import Cluster
        from watersmeet.cli.why import Asked, why_project

        asked = Asked(source, values or (), result or (), summary, query)
        why_project(path, asked, Cluster.of(master, None, conf or [], packages), format)


@app.command()
def test(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Case files, or folders of them.")],
    on: Annotated[
        Executor, typer.Option("--on", help="Spark, or the kernels alone: milliseconds, no JVM.")
    ] = Executor.spark,
    master: MasterOption = None,
) -> None:
    """Run cases: batches of rows in, the rows that must come out.

    Exits with 0 if all passed, 1 if some failed, 2 if a file could not be read.

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
      - marks: {r: 20}
        out: [[2, null]]

    \b
    Example:
      watersmeet test shop/cases --on kernel
    """
    with reported(context):
        from watersmeet.cli.cases import run_cases

        run_cases(paths, on.value, master)


@app.command()
def draw(
    context: typer.Context,
    case: Annotated[Path, typer.Argument(metavar="CASE", help="A case file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file, not to the screen.", metavar="FILE")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="Of several queries, the one into NAME.", metavar="NAME")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", help="As it is after batch N; the first is 0.", metavar="N", min=0)
    ] = None,
) -> None:
    """Draw the rows of a case on the axis of time, as SVG. Needs no Spark.

    A bar for every row, as long as it lives; a line where rows meet; watermarks; and what became of each row: matched,
    padded, late. The reason shows under the pointer.

    \b
    Example:
      watersmeet draw shop/cases/joined.yaml -o lives.svg
      watersmeet draw shop/cases/joined.yaml --batch 0 -o before.svg
    """
    with reported(context):
        from watersmeet.cli.draw import draw_case

        draw_case(case, output, query, batch)


@app.command()
def play(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A case, a .sql file or a folder.", show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Save to this file; else as a download.", metavar="FILE")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="8484, or a free one.", metavar="PORT", min=0, max=65535)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Another address than this machine's own asks for a token.", metavar="HOST")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Try queries out on a drawing board in the browser. Needs no Spark.

    SQL on one side, rows to change and to move on the other. Every change shows at once which rows come out, what
    became of each row and why, and the picture that `draw` makes. Opens stories, and all cases and projects below the
    folder; saves what you found as a case.

    \b
    Example:
      watersmeet play
      watersmeet play shop/cases/joined.yaml --save shop/cases/late.yaml
      watersmeet play shop --open
    """
    with reported(context):
        from watersmeet.cli.play import play_board

        play_board(path, save, host, port, opens_browser=browser)


@app.command()
def demo(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the demo's project is written.")] = Path(
        "watersmeet-demo"
    ),
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Through topics of a Kafka broker that is started for it.")
    ] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Join two made-up streams, on Spark, as they arrive.

    Orders and deliveries keep arriving for some seconds. At the end the result is compared with the truth.

    \b
    Example:
      watersmeet demo
      watersmeet explain watersmeet-demo
      watersmeet demo --kafka demo-kafka
    """
    with reported(context):
        from watersmeet.cli.demo import run_demo, run_kafka_demo
        from watersmeet.cli.run import Cluster
        from watersmeet.demo.streams import make_streams

        run = run_kafka_demo if kafka else run_demo
        run(folder, Cluster.of(master, None, conf or []), make_streams())
