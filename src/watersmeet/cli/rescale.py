"""``state rescale``: spread the state of a query over another number of shards or partitions."""

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
        int | None,
        typer.Option("--shards", help="Number of parts of the state. Default: no change.", metavar="N", min=1),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Number of tasks. Default: no change.", metavar="M", min=1)
    ] = None,
    master: MasterOption = None,
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
                        f"note: {empty} of {checkpoint.name} will have no shard, but still start a task.", err=True
                    )
                results.append({"query": checkpoint.name, "was": asdict(was), "now": asdict(now)})
                if format is Format.text:
                    typer.echo(
                        f"{checkpoint.name}: {_words(now)}, {'as before' if now == was else f'before: {_words(was)}'}."
                    )
        if format is Format.json:
            typer.echo(json.dumps(results, indent=2))


def _words(parallelism: Parallelism) -> str:
    return f"{format_count(parallelism.shards, 'shard')} on {format_count(parallelism.partitions, 'partition')}"
