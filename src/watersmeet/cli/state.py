"""``state``: looks into the states of stopped or running queries. Every command of the group, with its help."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from watersmeet.cli.failure import REFUSED, Format, reported
from watersmeet.errors import did_you_mean, refuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from watersmeet.spark.state.look import State

app = typer.Typer(
    help="Look into what queries keep. Works on stopped queries, and on copies of running ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class As(StrEnum):
    """The format of files."""

    parquet = "parquet"
    json = "json"
    csv = "csv"


StatePath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A project, its storage folder, or a checkpoint of a query.")
]
QueryOption = Annotated[str | None, typer.Option("--query", help="One query of several, by its sink.", metavar="NAME")]
OperatorOption = Annotated[
    int | None, typer.Option("--operator", help="One operator of several, by the number of `show`.", metavar="N")
]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="Spark's master, for example local[2].", metavar="URL")
]
FormatOption = Annotated[Format, typer.Option("--format", help="For people or for machines.")]


@app.command()
def show(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    shards: Annotated[bool, typer.Option("--shards", help="A line for every shard.")] = False,
    master: MasterOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Show what every query keeps: of each operator and side the rows, bytes, times and watermarks, and what is next.

    \b
    Example:
      watersmeet state show shop
      watersmeet state show shop --query joined --shards
      watersmeet state show shop/storage/checkpoints/joined --format json
    """
    with reported(context, format), _states(path, query, master) as states:
        told = [_told(name, state) for name, state in states]
        if format is Format.json:
            typer.echo(json.dumps(told, indent=2))
        else:
            typer.echo("\n\n".join(_shown(one, by_shard=shards) for one in told))


@app.command()
def read(
    context: typer.Context,
    path: StatePath = Path(),
    side: Annotated[
        str | None, typer.Option("--side", help="Whose rows: an alias of the query, or what `show` names.")
    ] = None,
    where: Annotated[str | None, typer.Option("--where", help="A condition in SQL over the columns.")] = None,
    query: QueryOption = None,
    operator: OperatorOption = None,
    limit: Annotated[int, typer.Option("--limit", help="How many rows are shown.", min=1)] = 20,
    files: Annotated[As | None, typer.Option("--as", help="Write all rows to files of this format instead.")] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="The new folder for the files; state-QUERY-SIDE.", metavar="DIR")
    ] = None,
    master: MasterOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Read the rows that are alive: typed, with whether they have matched, and until when they live.

    A row leaves when the watermark in _until_of passes _until.

    \b
    Example:
      watersmeet state read shop --side o --where "order_id = 17"
      watersmeet state read shop --side o --as parquet --into kept-orders
    """
    with reported(context, format):
        if into is not None and files is None:
            raise typer.BadParameter("--into is for --as")
        with _states(path, query, master) as states:
            name, state = _one(states)
            rows = _where(state.rows(side, operator), where)
            if files is None:
                with state.checkpoint.reading():
                    _print_rows(rows, limit, format)
                return
            folder = into or Path(f"state-{name}-{side or 'rows'}")
            if folder.exists():
                raise refuse("FOLDER_NOT_EMPTY", path=folder, what="is there already", hint="name another with --into.")
            with state.checkpoint.reading():
                rows.write.format(files.value).option("header", "true").save(str(folder.absolute()))
            typer.echo(f"{folder}: the rows after batch {state.batch}.")


@app.command()
def check(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    master: MasterOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Check that every run can be read, that counts and times agree, and that nothing is past its limit.

    Exits with 0 if all is well, and with 1 if something is not.

    \b
    Example:
      watersmeet state check shop
    """
    with reported(context, format), _states(path, query, master) as states:
        found = [(name, state, _collected(state, state.problems)) for name, state in states]
        if format is Format.json:
            told = [{"query": name, "batch": state.batch, "problems": rows} for name, state, rows in found]
            typer.echo(json.dumps(told, indent=2))
        else:
            for name, state, rows in found:
                for row in rows:
                    typer.echo(f"{name}: {row['join']}, shard {row['shard']}: {row['problem']}")
                kept = _collected(state, state.summary)
                counts = (
                    f"{sum(row['rows'] or 0 for row in kept):,} rows in {sum(row['runs'] or 0 for row in kept)} runs"
                )
                said = f"{len(rows)} problems" if rows else "all is well"
                typer.echo(f"{name}: after batch {state.batch}, {state.shards} shards, {counts}: {said}.")
    if any(rows for _, _, rows in found):
        raise typer.Exit(REFUSED)


@contextmanager
def _states(path: Path, query: str | None, master: str | None) -> Generator[list[tuple[str, State]]]:
    """The states at a path, by query."""
    found = checkpoints_at(path)
    if query is not None:
        named = [one for one in found if one.name.lower() == query.lower()]
        if not named:
            raise refuse("UNKNOWN_SINK", sink=query, suggestion=did_you_mean(query, [one.name for one in found]))
        found = named
    from watersmeet.spark.private.jvm import quiet
    from watersmeet.spark.session import session
    from watersmeet.spark.state.look import state

    quiet()
    with tempfile.TemporaryDirectory(prefix="watersmeet-state-") as folder:
        spark = session(master, log=Path(folder) / "spark.log")
        yield [(one.name, state(str(one), spark)) for one in found]


def checkpoints_at(path: Path) -> list[Path]:
    """The checkpoints of queries at a path: that of a query, those of a storage folder, or those of a project."""
    if (path / "offsets").is_dir() or (path / "watersmeet.json").is_file():
        return [path.absolute()]
    storage = path
    if not (path / "checkpoints").is_dir():
        from watersmeet.cli.run import storage_folder
        from watersmeet.project import open_project

        storage = storage_folder(open_project(path))
    found = sorted(one for one in (storage / "checkpoints").glob("*") if (one / "watersmeet.json").is_file())
    if not found:
        raise refuse("NO_CHECKPOINT", path=storage, reason="no query has run there")
    return [one.absolute() for one in found]


def _one(states: Sequence[tuple[str, State]]) -> tuple[str, State]:
    if len(states) > 1:
        names = ", ".join(name for name, _ in states)
        raise typer.BadParameter(f"there are several queries, so say which with --query: {names}")
    return states[0]


def _where(rows: DataFrame, where: str | None) -> DataFrame:
    if where is None:
        return rows
    from pyspark.errors import PySparkException

    from watersmeet.spark.private.told import unlogged
    from watersmeet.spark.refusals import first_line

    try:
        with unlogged():
            return rows.where(where)
    except PySparkException as error:
        raise typer.BadParameter(f"--where {where}: {first_line(error)}") from None


def _collected(state: State, frame: DataFrame) -> list[dict[str, Any]]:
    with state.checkpoint.reading():
        return [row.asDict() for row in frame.collect()]


def _print_rows(rows: DataFrame, limit: int, format: Format) -> None:
    if format is Format.json:
        for text in rows.limit(limit).toJSON().collect():
            typer.echo(text)
        return
    found: list[tuple[object, ...]] = [tuple(row) for row in rows.limit(limit + 1).collect()]
    typer.echo(_table([rows.columns, *([_cell(value) for value in row] for row in found[:limit])]))
    if len(found) > limit:
        typer.echo("... and more: --limit shows more of them, --as writes all.")
    elif not found:
        typer.echo("No row is alive that fits.")


def _told(name: str, state: State) -> dict[str, Any]:
    """What `show` says of a query, as data."""
    rows = _collected(state, state.summary)
    ends = {(one.operator.number, one.spine): one.ends for one in state.kept}
    operators: list[dict[str, Any]] = []
    for operator in state.checkpoint.operators:
        own = [row for row in rows if row["operator"] == operator.number]
        spines = sorted({(row["side"], row["kept"]) for row in own if row["kept"]}, key=lambda pair: pair[1])
        operators.append(
            {
                "operator": operator.number,
                "join": operator.name,
                "watermarks": dict(own[0]["watermarks"]) if own else {},
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
    versions = state.checkpoint.owner.versions
    return {"query": name, "batch": state.batch, "shards": state.shards, **versions, "operators": operators}


def _shard(row: dict[str, Any]) -> dict[str, Any]:
    names = ("shard", "rows", "stored", "bytes", "runs", "earliest", "latest", "next", "next_of")
    return {name: row[name] for name in names}


def _shown(told: dict[str, Any], *, by_shard: bool) -> str:
    """What `show` says of a query, for people."""
    head = f"{told['query']}: after batch {told['batch']}, {told['shards']} shards"
    lines = [f"{head}, begun by Watersmeet {told['watersmeet']} on Spark {told['spark']}"]
    for operator in told["operators"]:
        marks = ", ".join(f"{name} {mark}" for name, mark in sorted(operator["watermarks"].items())) or "none yet"
        lines += [f"{operator['operator']}: {operator['join']}", f"   watermarks: {marks}"]
        table = [
            ["side", "kept", *(["shard"] if by_shard else []), "rows", "bytes", "runs", "earliest", "latest", "next"]
        ]
        for kept in operator["kept"]:
            parts = (
                [[one] for one in sorted(kept["shards"], key=lambda one: one["shard"])]
                if by_shard
                else [kept["shards"]]
            )
            table += [_line(kept, shards, by_shard=by_shard) for shards in parts]
        lines += [f"   {line}" for line in _table(table).splitlines()] if len(table) > 1 else ["   keeps nothing now"]
        lines += [f"   {kept['kept']}: a row is kept {kept['lives']}" for kept in operator["kept"]]
    return "\n".join(lines)


def _line(kept: dict[str, Any], shards: list[dict[str, Any]], *, by_shard: bool) -> list[str]:
    sums = [f"{sum(one[name] for one in shards):,}" for name in ("rows", "bytes", "runs")]
    nexts = [(one["next"], one["next_of"]) for one in shards if one["next"] is not None]
    first = min(nexts, key=lambda pair: _sortable(pair[0])) if nexts else None
    return [
        kept["side"],
        kept["kept"],
        *([str(shards[0]["shard"])] if by_shard else []),
        *sums,
        min((one["earliest"] for one in shards if one["earliest"]), key=_sortable, default=""),
        max((one["latest"] for one in shards if one["latest"]), key=_sortable, default=""),
        "" if first is None else f"when {first[1]} passes {first[0]}",
    ]


def _sortable(text: str) -> tuple[int, str]:
    """Numbers by their size, times by theirs."""
    return (int(text), "") if text.lstrip("-").isdecimal() else (0, text)


def _table(rows: Iterable[Sequence[str]]) -> str:
    listed = list(rows)
    widths = [max(len(row[place]) for row in listed) for place in range(len(listed[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in listed
    )


def _cell(value: object) -> str:
    return "NULL" if value is None else str(value)
