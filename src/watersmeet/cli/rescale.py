"""``state rescale``: spreads what a query keeps over more shards, or over more partitions."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from watersmeet.cli.failure import Format, report_errors
from watersmeet.cli.state import FormatOption, MasterOption, QueryOption, StatePath, checkpoints_at, select_checkpoints
from watersmeet.counts import format_count

if TYPE_CHECKING:
    from watersmeet.spark.state.rescale import Parallelism


def rescale(
    context: typer.Context,
    path: StatePath = Path(),
    query: QueryOption = None,
    shards: Annotated[
        int | None, typer.Option("--shards", help="In how many parts the state is; as it was.", metavar="N", min=1)
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="On how many tasks these run; as it was.", metavar="M", min=1)
    ] = None,
    master: MasterOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Spread the states of stopped queries over more or fewer shards and partitions. What comes out stays the same.

    A shard is worked on by one task at a time, so that a query uses no more cores than it has shards and partitions.
    The new state is made beside the old one and takes its place in the end. A script that says `SET watersmeet.shards`
    must say the new number.

    \b
    Example:
      watersmeet state rescale shop --shards 16 --partitions 16
      watersmeet state rescale shop --query joined --partitions 4
    """
    with report_errors(context, format):
        if shards is None and partitions is None:
            raise typer.BadParameter("say how: --shards N, --partitions M, or both")
        from watersmeet.spark.private.jvm import silence_py4j
        from watersmeet.spark.private.local_files import keep_checkpoints_here
        from watersmeet.spark.run.in_use import lock_storage
        from watersmeet.spark.session import session
        from watersmeet.spark.state.checkpoint import Checkpoint
        from watersmeet.spark.state.rescale import Parallelism, current_parallelism, rescale

        checkpoints = select_checkpoints(checkpoints_at(path), query)
        silence_py4j()
        results: list[dict[str, object]] = []
        with tempfile.TemporaryDirectory(prefix="watersmeet-state-") as folder:
            for checkpoint in checkpoints:
                # A checkpoint of a program has no storage folder around it.
                is_ours = checkpoint.parent.name == "checkpoints"
                with lock_storage(checkpoint.parent.parent, "alone") if is_ours else nullcontext():
                    spark = session(master, log=Path(folder) / "spark.log")
                    keep_checkpoints_here(spark)
                    was = current_parallelism(Checkpoint.open(spark, checkpoint))
                    now = Parallelism(shards or was.shards, partitions or was.partitions)
                    if now != was:
                        rescale(spark, checkpoint, checkpoint.name, now)
                if now.partitions > now.shards:
                    empty = format_count(now.partitions - now.shards, "partition")
                    typer.echo(
                        f"note: {empty} of {checkpoint.name} will have no shard, and a task all the same.", err=True
                    )
                results.append({"query": checkpoint.name, "was": asdict(was), "now": asdict(now)})
                if format is Format.text:
                    typer.echo(
                        f"{checkpoint.name}: {_words(now)}, {'as before' if now == was else f'was {_words(was)}'}."
                    )
        if format is Format.json:
            typer.echo(json.dumps(results, indent=2))


def _words(parallelism: Parallelism) -> str:
    return f"{format_count(parallelism.shards, 'shard')} on {format_count(parallelism.partitions, 'partition')}"
