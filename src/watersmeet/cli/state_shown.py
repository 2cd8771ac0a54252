"""How states are shown: as data, as tables of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from watersmeet.cli.failure import Format
from watersmeet.cli.output import print_text
from watersmeet.counts import format_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from watersmeet.spark.state.look import State


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
    print_text(_table([rows.columns, *([_cell(value) for value in row] for row in records[:limit])]))
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
    """What `show` says of a query, as data."""
    rows = collect_rows(state, state.summary)
    ends = {(spine_state.operator.number, spine_state.spine): spine_state.ends for spine_state in state.spines}
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


def render_summary(summary: dict[str, Any], *, by_shard: bool) -> str:
    """What `show` says of a query, for people."""
    head = f"{summary['query']}: after batch {summary['batch']}, {format_count(summary['shards'], 'shard')}"
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
        lines += [f"   {line}" for line in _table(table).splitlines()] if len(table) > 1 else ["   no rows"]
        lines += [f"   {spine['kept']}: rows are kept {spine['lives']}" for spine in operator["kept"]]
    return "\n".join(lines)


def _line(spine: dict[str, Any], shards: list[dict[str, Any]], *, by_shard: bool) -> list[str]:
    sums = [f"{sum(shard[name] for shard in shards):,}" for name in ("rows", "bytes", "runs")]
    nexts = [(one["next"], one["next_of"]) for one in shards if one["next"] is not None]
    first = min(nexts, key=lambda pair: _sortable(pair[0])) if nexts else None
    return [
        spine["side"],
        spine["kept"],
        *([str(shards[0]["shard"])] if by_shard else []),
        *sums,
        min((one["earliest"] for one in shards if one["earliest"]), key=_sortable, default=""),
        max((one["latest"] for one in shards if one["latest"]), key=_sortable, default=""),
        "" if first is None else f"when {first[1]} passes {first[0]}",
    ]


def _sortable(text: str) -> tuple[int, str]:
    """Numbers by their size, times by theirs."""
    if text.lstrip("-").isdecimal():
        return int(text), ""
    # Years after 9999 begin with a plus, those before 0 with a minus.
    return (1 if text.startswith("+") else -1 if text.startswith("-") else 0), text


def _table(rows: Iterable[Sequence[str]]) -> str:
    listed = list(rows)
    widths = [max(len(row[place]) for row in listed) for place in range(len(listed[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in listed
    )


def _cell(value: object) -> str:
    return "NULL" if value is None else str(value)
