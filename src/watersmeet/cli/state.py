"""``state``: inspect, check and move the states of queries. Every command of the group, with its help."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from watersmeet.cli.console import REFUSED, Format, print_text, report_errors
from watersmeet.cli.options import (
    ConfOption,
    FormatOption,
    MasterOption,
    PackagesOption,
    ReachOptions,
    expand_options,
)
from watersmeet.duration import align_columns, format_count
from watersmeet.errors import did_you_mean, refuse
from watersmeet.locations import (
    CURRENT,
    OWNER,
    Storage,
    checkpoint_at,
    has_scheme,
    is_local,
    local_path,
    location_of,
    query_of,
    resolve_references,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.catalog import Source
    from watersmeet.cli.run import Cluster
    from watersmeet.spark.state.inspect import State
    from watersmeet.spark.state.rescale import Parallelism


SPEC_NAME = "watersmeet.yml"
"""The file of a project by which it is known."""


def collect_rows(state: State, frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame over a state, as data; what Spark cannot read is refused."""
    with state.checkpoint.guard_reads():
        return [row.asDict() for row in frame.collect()]


def print_rows(rows: DataFrame, limit: int, format: Format) -> None:
    """Print the first rows of a state."""
    if format is Format.json:
        for text in rows.limit(limit).toJSON().collect():
            print_text(str(text))
        return
    records: list[tuple[object, ...]] = [tuple(row) for row in _as_texts(rows).limit(limit + 1).collect()]
    cells = [rows.columns, *([("NULL" if value is None else str(value)) for value in row] for row in records[:limit])]
    print_text("\n".join(align_columns(cells)))
    if len(records) > limit:
        typer.echo("There are more rows: show more with --limit, or write all of them with --as.")
    elif not records:
        typer.echo("No row in the state matches.")


def _as_texts(rows: DataFrame) -> DataFrame:
    """The rows with times, intervals and nested values as Spark writes them: Python has no years after 9999."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name
    from pyspark.sql.types import BinaryType, BooleanType, NumericType, StringType

    plain = (BinaryType, BooleanType, NumericType, StringType)
    columns = [F.col(f"`{field.name.replace('`', '``')}`") for field in rows.schema]
    return rows.select(
        *(
            column if isinstance(field.dataType, plain) else column.cast("string").alias(field.name)
            for column, field in zip(columns, rows.schema, strict=True)
        )
    )


def summarize_state(name: str, state: State) -> dict[str, Any]:
    """Summarize the state of a query as data, for `show`."""
    from watersmeet.logical.words import without_generated_names
    from watersmeet.operators.core.operator import is_internal
    from watersmeet.spark.connectors.history import MARKER as HISTORY_MARKER

    rows = collect_rows(state, state.summary)
    ends = {(spine_state.operator.number, spine_state.spine): spine_state.ends for spine_state in state.spines}
    operators: list[dict[str, Any]] = []
    for operator in state.checkpoint.operators:
        own = [row for row in rows if row["operator"] == operator.number]
        spines = sorted({(row["side"], row["kept"]) for row in own if row["kept"]}, key=lambda pair: pair[1])
        operators.append(
            {
                "operator": operator.number,
                "join": without_generated_names(operator.name),
                "watermarks": {
                    n: at for n, at in dict(own[0]["watermarks"] if own else {}).items() if not is_internal(n)
                },
                "kept": [
                    {
                        "side": side,
                        "kept": spine,
                        "lives": ends[operator.number, spine],
                        "shards": [_shard(row) for row in own if row["kept"] == spine],
                    }
                    for side, spine in spines
                ],
            }
        )
    owner = state.checkpoint.owner
    scans = [read for query in owner.queries for scan in query.identity["sources"] for read in scan["reads"]]
    has_marker = state.checkpoint.folder.read(HISTORY_MARKER) is not None
    phase = "" if not any("history" in read for read in scans) else "live" if has_marker else "history"
    described = {"query": name, "batch": state.batch, "shards": state.shards, "phase": phase, **owner.versions}
    return {**described, "operators": operators}


def _shard(row: dict[str, Any]) -> dict[str, Any]:
    names = ("shard", "rows", "stored", "bytes", "runs", "earliest", "latest", "next", "next_of")
    return {name: row[name] for name in names}


def render_summary(summary: dict[str, Any], *, by_shard: bool) -> str:
    """Render the summary of a query's state as text, for `show`."""
    head = f"{summary['query']}: after batch {summary['batch']}, {format_count(summary['shards'], 'shard')}"
    head += {"history": ", reads the history", "live": ", past the history"}.get(summary["phase"], "")
    lines = [f"{head}, started by Watersmeet {summary['watersmeet']} on Spark {summary['spark']}"]
    for operator in summary["operators"]:
        watermarks = (
            ", ".join(f"{name} {watermark}" for name, watermark in sorted(operator["watermarks"].items())) or "none yet"
        )
        lines += [f"{operator['operator']}: {operator['join']}", f"   watermarks: {watermarks}"]
        table = [
            ["side", "kept", *(["shard"] if by_shard else []), "rows", "bytes", "runs", "earliest", "latest", "next"]
        ]
        for spine in operator["kept"]:
            parts = (
                [[shard] for shard in sorted(spine["shards"], key=lambda shard: shard["shard"])]
                if by_shard
                else [spine["shards"]]
            )
            table += [_line(spine, shards, by_shard=by_shard) for shards in parts]
        lines += [f"   {line}" for line in align_columns(table)] if len(table) > 1 else ["   no rows"]
        lines += [f"   {spine['kept']}: rows are kept {spine['lives']}" for spine in operator["kept"]]
    return "\n".join(lines)


def _line(spine: dict[str, Any], shards: list[dict[str, Any]], *, by_shard: bool) -> list[str]:
    sums = [f"{sum(shard[name] for shard in shards):,}" for name in ("rows", "bytes", "runs")]
    nexts = [(part["next"], part["next_of"]) for part in shards if part["next"] is not None]
    first = min(nexts, key=lambda pair: _sortable(pair[0])) if nexts else None
    return [
        spine["side"],
        spine["kept"],
        *([str(shards[0]["shard"])] if by_shard else []),
        *sums,
        min((part["earliest"] for part in shards if part["earliest"]), key=_sortable, default=""),
        max((part["latest"] for part in shards if part["latest"]), key=_sortable, default=""),
        "" if first is None else f"when {first[1]} passes {first[0]}",
    ]


def _sortable(text: str) -> tuple[int, str]:
    """Numbers by their size, times by theirs."""
    if text.lstrip("-").isdecimal():
        return int(text), ""
    # Years after 9999 begin with a plus, those before 0 with a minus.
    return (1 if text.startswith("+") else -1 if text.startswith("-") else 0), text


app = typer.Typer(
    help="Inspect, check, move and rescale the state of queries. Works on stopped queries and on copied checkpoints.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class SessionOptions:
    """Session options of a command that reads state."""

    master: MasterOption = None
    conf: ConfOption = None
    packages: PackagesOption = None

    def cluster(self) -> Cluster:
        """The master and the settings."""
        from watersmeet.cli.run import Cluster

        return Cluster.of(self.master, None, self.conf or [], self.packages)


class FileFormat(StrEnum):
    """The format of files."""

    parquet = "parquet"
    json = "json"
    csv = "csv"


def parse_place(typed: str | Path) -> Any:
    """A path of this machine, or an address as it is: a path would lose one of its slashes."""
    text = str(typed)
    local = local_path(text)
    return text if has_scheme(local) and "://" in local else Path(local)


StatePath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A project, its storage folder, or the checkpoint of a query.", parser=parse_place
    ),
]
QueryOption = Annotated[str | None, typer.Option("--query", help="Only the query into this sink.", metavar="NAME")]
OperatorOption = Annotated[
    int | None, typer.Option("--operator", help="Only this operator, by its number in `show`.", metavar="N")
]


@app.command()
@expand_options
def show(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    shards: Annotated[bool, typer.Option("--shards", help="Show one line per shard.")] = False,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - it is frozen
    format: FormatOption = Format.text,
) -> None:
    """Show the size and times of every state. For each side: rows, bytes, times, watermarks, what expires next.

    \b
    Example:
      watersmeet state show shop
      watersmeet state show shop --query joined --shards
      watersmeet state show shop/storage/checkpoints/joined --format json
    """
    with report_errors(context, format), _states(path, query, options.cluster()) as states:
        summaries = [summarize_state(name, state) for name, state in states]
        if format is Format.json:
            typer.echo(json.dumps(summaries, indent=2))
        else:
            typer.echo("\n\n".join(render_summary(summary, by_shard=shards) for summary in summaries))


@app.command()
@expand_options
def read(
    context: typer.Context,
    path: StatePath = Path(),
    side: Annotated[
        str | None, typer.Option("--side", help="Side to read: an alias of the query, or a name from `show`.")
    ] = None,
    where: Annotated[str | None, typer.Option("--where", help="SQL condition on the columns.")] = None,
    query: QueryOption = None,
    operator: OperatorOption = None,
    limit: Annotated[int, typer.Option("--limit", help="Number of rows to show.", min=1)] = 20,
    files: Annotated[
        FileFormat | None, typer.Option("--as", help="Write all rows to files of this format instead.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", help="New folder for the files. Default: state-QUERY-SIDE.", metavar="DIR", parser=parse_place
        ),
    ] = None,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - it is frozen
    format: FormatOption = Format.text,
) -> None:
    """Read the rows in a state. Each row shows whether it has matched, and when it expires.

    A row expires when the watermark named in _until_of passes _until.

    \b
    Example:
      watersmeet state read shop --side o --where "order_id = 17"
      watersmeet state read shop --side o --as parquet --into kept-orders
    """
    with report_errors(context, format):
        if into is not None and files is None:
            raise typer.BadParameter("--into is for --as")
        with _states(path, query, options.cluster()) as states:
            name, state = _single_state(states)
            rows = _filter_rows(state.rows(side, operator), where)
            if files is None:
                with state.checkpoint.guard_reads():
                    print_rows(rows, limit, format)
                return
            from watersmeet.spark.private.files import open_storage

            folder = into or Path(f"state-{name}-{side or 'rows'}")
            if open_storage(rows.sparkSession, str(folder)).exists():
                raise refuse("FOLDER_NOT_EMPTY", path=folder, what="already exists", hint="name another with --into.")
            with state.checkpoint.guard_reads():
                rows.write.format(files.value).option("header", "true").save(location_of(folder))
            typer.echo(f"Wrote the rows after batch {state.batch} to {folder}.")


@app.command()
@expand_options
def check(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - it is frozen
    format: FormatOption = Format.text,
) -> None:
    """Check that a state is consistent. It can be read, counts and times agree, and no row has outlived its expiry.

    Exits with 0 if it finds no problem, and with 1 otherwise.

    \b
    Example:
      watersmeet state check shop
    """
    with report_errors(context, format), _states(path, query, options.cluster()) as states:
        results = [(name, state, collect_rows(state, state.problems)) for name, state in states]
        if format is Format.json:
            payload = [{"query": name, "batch": state.batch, "problems": rows} for name, state, rows in results]
            typer.echo(json.dumps(payload, indent=2))
        else:
            for name, state, rows in results:
                for row in rows:
                    typer.echo(f"{name}: {row['join']}, shard {row['shard']}: {row['problem']}")
                summary_rows = collect_rows(state, state.summary)
                row_count, runs = (sum(row[number] or 0 for row in summary_rows) for number in ("rows", "runs"))
                shards = format_count(state.shards, "shard")
                counts = f"{shards}, {format_count(row_count, 'row')} in {format_count(runs, 'run')}"
                verdict = format_count(len(rows), "problem") if rows else "no problems"
                typer.echo(f"{name}: after batch {state.batch}, {counts}: {verdict}.")
    if any(rows for _, _, rows in results):
        raise typer.Exit(REFUSED)


@app.command("export")
@expand_options
def export_(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="New file. Default: QUERY.state.tar.gz.", metavar="FILE", parser=parse_place),
    ] = None,
    options: ReachOptions = ReachOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Export the checkpoint of a stopped query to one file. Starts Spark only to reach a storage on another machine.

    \b
    Example:
      watersmeet state export shop --query joined --to joined.state.tar.gz
      watersmeet state import joined.state.tar.gz elsewhere/shop --move
    """
    with report_errors(context):
        from watersmeet.spark.state.moving import export_checkpoint
        from watersmeet.spark.state.owner import lock_storage

        checkpoints = select_checkpoints(checkpoints_at(path, options.cluster()), query)
        if len(checkpoints) > 1:
            names = ", ".join(query_of(checkpoint) for checkpoint in checkpoints)
            raise typer.BadParameter(f"there are several queries; choose one with --query: {names}")
        archive = _open(to or Path(f"{query_of(checkpoints[0])}.state.tar.gz"), options.cluster(), path)
        if archive.exists():
            raise refuse("FOLDER_NOT_EMPTY", path=archive, what="already exists", hint="name another file with --to.")
        with lock_storage(checkpoints[0].parent.parent, "alone"):
            manifest = export_checkpoint(checkpoints[0], _root(path), archive)
        typer.echo(f"Exported {manifest.query} ({format_count(len(manifest.files), 'file')}) to {archive}.")


@app.command("import")
@expand_options
def import_(
    context: typer.Context,
    archive: Annotated[
        Path, typer.Argument(metavar="FILE", help="File that `state export` wrote.", parser=parse_place)
    ],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The project, or its storage folder.", parser=parse_place)
    ] = Path(),
    move: Annotated[
        bool,
        typer.Option("--move", help="Continue with the same sinks. The query must not run at its old place again."),
    ] = False,
    options: ReachOptions = ReachOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Import an exported checkpoint into a project. The next run continues from it.

    Starts Spark only to reach a storage on another machine.

    The project must not have a state of that query yet. The command compares every file with what was exported, and
    changes paths inside the old project folder to the new one. It names sources that are missing: folders, topics, and
    files that the next batch reads.

    Without --move, the import is another run of the query and needs sinks of its own: folders and Postgres tables that
    the exported run writes to reject it.

    \b
    Example:
      watersmeet state import joined.state.tar.gz elsewhere/shop --move
      watersmeet state import joined.state.tar.gz trial/shop
    """
    with report_errors(context):
        from watersmeet.spark.state.moving import absent_sources, import_checkpoint, local_copy
        from watersmeet.spark.state.owner import lock_storage

        file = _open(archive, options.cluster(), path)
        if not file.is_file():
            raise refuse("FILE_NOT_FOUND", path=file, hint="name a file that `watersmeet state export` wrote.")
        storage = storage_at(path, options.cluster())
        with local_copy(file) as local, lock_storage(storage, "alone"):
            manifest = import_checkpoint(local, storage, _root(path), "same" if move else "own")
        missing = absent_sources(checkpoint_at(storage, manifest.query), _project_sources(path))
        for note in missing:
            typer.echo(f"note: {note}", err=True)
        then = "Provide what is missing before the next run." if missing else "The next run continues it."
        typer.echo(f"Imported {manifest.query} into {storage}. {then}")


@contextmanager
def _states(path: Path, query: str | None, cluster: Cluster) -> Generator[list[tuple[str, State]]]:
    """The states at a path, by query."""
    checkpoints = select_checkpoints(checkpoints_at(path, cluster), query)
    from watersmeet.spark.state.inspect import open_state

    with tempfile.TemporaryDirectory(prefix="watersmeet-state-") as folder:
        spark = _session(path, cluster, Path(folder) / "spark.log")
        yield [(query_of(checkpoint), open_state(checkpoint, spark)) for checkpoint in checkpoints]


def _session(path: Path | str, cluster: Cluster | None, log: Path) -> SparkSession:
    """A session with the settings of the command line and, where the path is a project, those of that."""
    from watersmeet.cli.console import show_wait
    from watersmeet.cli.run import Cluster
    from watersmeet.spark.private.jvm import silence_py4j
    from watersmeet.spark.session import session

    silence_py4j()
    cluster = cluster or Cluster()
    own: Mapping[str, str] = {}
    if (
        isinstance(path, Path)
        and not (path / "checkpoints").is_dir()
        and (path.is_file() or (path / SPEC_NAME).is_file())
    ):
        from watersmeet.project import open_project

        own = open_project(path).settings_from_root
    with show_wait("Starting Spark"):
        return session(cluster.master, None, resolve_references({**own, **cluster.conf}), cluster.packages, log=log)


def _open(path: Storage | str, cluster: Cluster | None, project: Path | str | None = None) -> Storage:
    """A place: a path of this machine, or what a session reaches, with the settings of a project if there is one."""
    if not isinstance(path, str):
        return path
    from watersmeet.spark.folders import own_folder
    from watersmeet.spark.private.files import open_storage

    log = own_folder(Path(tempfile.gettempdir())) / "spark.log"
    return open_storage(_session(project or path, cluster, log), path)


def checkpoints_at(path: Storage | str, cluster: Cluster | None = None) -> list[Storage]:
    """The checkpoints of queries at a path: that of a query, those of a storage folder, or those of a project."""
    place = _open(path, cluster)
    if not is_local(place):
        # The name of a query stays that of its checkpoint, also after this has moved to a folder of another name.
        named = (
            [place, checkpoint_at(place.parent.parent, place.name)] if place.parent.name == "checkpoints" else [place]
        )
        checkpoint = next((folder for folder in named if (folder / OWNER).is_file()), None)
        return checkpoints_in(place) if checkpoint is None else [checkpoint]
    return _local_checkpoints(place, cluster)


def checkpoints_in(storage: Storage) -> list[Storage]:
    """The checkpoints of a storage that is not on this machine."""
    folder = storage / "checkpoints"
    queries = (
        sorted({query_of(entry) for entry in folder.iterdir() if entry.suffix != CURRENT}) if folder.is_dir() else []
    )
    checkpoints = [checkpoint_at(storage, query) for query in queries]
    checkpoints = [checkpoint for checkpoint in checkpoints if (checkpoint / OWNER).is_file()]
    if not checkpoints:
        raise refuse("NO_CHECKPOINT", path=storage, reason="no query has run there")
    return checkpoints


def _local_checkpoints(path: Path, cluster: Cluster | None) -> list[Storage]:
    from watersmeet.spark.state.checkpoint import recover_swap, recover_swaps

    recover_swap(path.absolute())
    if (path / "offsets").is_dir() or (path / OWNER).is_file():
        return [path.absolute()]
    storage = storage_at(path, cluster)
    if not is_local(storage):
        return checkpoints_in(storage)
    recover_swaps(storage / "checkpoints")
    folders = sorted(
        folder for folder in (storage / "checkpoints").glob("[!.]*") if (folder / "watersmeet.json").is_file()
    )
    if not folders:
        raise refuse("NO_CHECKPOINT", path=storage, reason="no query has run there")
    return [folder.absolute() for folder in folders]


def storage_at(path: Storage | str, cluster: Cluster | None = None) -> Storage:
    """The storage folder at a path: itself, or that of a project."""
    place = _open(path, cluster)
    if not is_local(place) or (place / "checkpoints").is_dir():
        return place
    from watersmeet.project import has_local_storage, open_project, storage_folder

    project = open_project(place)
    if has_local_storage(project):
        return storage_folder(project)
    from watersmeet.cli.run import Cluster
    from watersmeet.cli.script import read_project

    return (cluster or Cluster()).storage(project, read_project(place)[1])


def _project_sources(path: Path | str) -> tuple[Source, ...]:
    """The sources of a project; none where there is only its storage."""
    if isinstance(path, str) or ((path / "checkpoints").is_dir() and not (path / SPEC_NAME).is_file()):
        return ()
    from watersmeet.cli.script import open_script

    return open_script(path, "absolute").script.sources


def _root(path: Path | str) -> Path:
    """The folder with which the paths of a project begin; without a project, that of its storage, if it is here."""
    if isinstance(path, str):
        return Path().absolute()
    if (path / "checkpoints").is_dir():
        return path.absolute().parent
    if (path / "watersmeet.json").is_file():
        return path.absolute().parents[2]
    from watersmeet.project import open_project

    return open_project(path).root


def select_checkpoints(checkpoints: list[Storage], query: str | None) -> list[Storage]:
    """Those of the checkpoints that are of a query."""
    if query is None:
        return checkpoints
    matches = [checkpoint for checkpoint in checkpoints if query_of(checkpoint).lower() == query.lower()]
    if not matches:
        raise refuse(
            "UNKNOWN_SINK",
            sink=query,
            suggestion=did_you_mean(query, [query_of(checkpoint) for checkpoint in checkpoints]),
        )
    return matches


def _single_state(states: Sequence[tuple[str, State]]) -> tuple[str, State]:
    if len(states) > 1:
        names = ", ".join(name for name, _ in states)
        raise typer.BadParameter(f"there are several queries; choose one with --query: {names}")
    return states[0]


def _filter_rows(rows: DataFrame, where: str | None) -> DataFrame:
    if where is None:
        return rows
    from pyspark.errors import PySparkException

    from watersmeet.spark.private.introspection import suppress_logs
    from watersmeet.spark.refusals import first_line

    try:
        with suppress_logs():
            return rows.where(where)
    except PySparkException as error:
        raise typer.BadParameter(f"--where {where}: {first_line(error)}") from None


@expand_options
def rescale(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", help="Number of parts of the state. Default: no change.", metavar="N", min=1),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Number of tasks. Default: no change.", metavar="M", min=1)
    ] = None,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - it is frozen
    format: FormatOption = Format.text,
) -> None:
    """Change the number of shards and partitions of a state. Stop the queries first. The results stay the same.

    One task at a time works on a shard, so a query uses at most as many cores as it has shards and partitions. The new
    state is built next to the old one and replaces it at the end. If the script has `SET watersmeet.shards`, change
    it to the new number.

    \b
    Example:
      watersmeet state rescale shop --shards 16 --partitions 16
      watersmeet state rescale shop --query joined --partitions 4
    """
    with report_errors(context, format):
        if shards is None and partitions is None:
            raise typer.BadParameter("give --shards N, --partitions M, or both")
        results: list[dict[str, object]] = []
        with tempfile.TemporaryDirectory(prefix="watersmeet-state-") as folder:
            cluster = options.cluster()
            for checkpoint in select_checkpoints(checkpoints_at(path, cluster), query):
                start = partial(_session, path, cluster, Path(folder) / "spark.log")
                was, now = _rescale(checkpoint, shards, partitions, start)
                if now.partitions > now.shards:
                    empty = format_count(now.partitions - now.shards, "partition")
                    typer.echo(
                        f"note: {empty} of {query_of(checkpoint)} will have no shard, but still start a task.", err=True
                    )
                results.append({"query": query_of(checkpoint), "was": asdict(was), "now": asdict(now)})
                if format is Format.text:
                    before = "as before" if now == was else f"before: {_words(was)}"
                    typer.echo(f"{query_of(checkpoint)}: {_words(now)}, {before}.")
        if format is Format.json:
            typer.echo(json.dumps(results, indent=2))


def _rescale(
    checkpoint: Storage, shards: int | None, partitions: int | None, start: Callable[[], SparkSession]
) -> tuple[Parallelism, Parallelism]:
    """Rescale one checkpoint; its parallelism before and after."""
    from watersmeet.spark.private.checkpoint_files import keep_checkpoints_here, keep_checkpoints_remotely
    from watersmeet.spark.state.checkpoint import Checkpoint
    from watersmeet.spark.state.owner import lock_storage
    from watersmeet.spark.state.rescale import Parallelism, current_parallelism, rescale

    # A checkpoint of a program has no storage folder around it.
    is_ours = checkpoint.parent.name == "checkpoints"
    with lock_storage(checkpoint.parent.parent, "alone") if is_ours else nullcontext():
        spark = start()
        if is_local(checkpoint):
            keep_checkpoints_here(spark)
        else:
            keep_checkpoints_remotely(spark)
        was = current_parallelism(Checkpoint.open(spark, checkpoint))
        now = Parallelism(shards or was.shards, partitions or was.partitions)
        if now != was:
            rescale(spark, checkpoint, query_of(checkpoint), now)
    return was, now


def _words(parallelism: Parallelism) -> str:
    return f"{format_count(parallelism.shards, 'shard')} on {format_count(parallelism.partitions, 'partition')}"
