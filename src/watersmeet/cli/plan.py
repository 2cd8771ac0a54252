"""``plan``: what a join of two streams needs on a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import typer

from watersmeet.cli.failure import Format
from watersmeet.counts import counted
from watersmeet.forecast.cluster import MOST_SHARDS, Asked, Line, Plan, Spread, plan_cluster, spreads
from watersmeet.forecast.costs import MEASURED
from watersmeet.forecast.units import shown

SIMULATED_ROWS = 400_000


def plan_load(asked: Asked, format: Format, *, simulated: bool) -> None:
    """Print what a load needs, with the law of each number, and where other things than rows begin to dominate."""
    plan, over = plan_cluster(asked), spreads(asked)
    measured = _simulated() if simulated else []
    if format is Format.json:
        typer.echo(json.dumps(_data(plan, over, measured), indent=2))
        return
    typer.echo("\n".join(_text(plan, over, measured)))


def _simulated() -> list[dict[str, Any]]:
    """The exchange with the code of a query, from a few tasks to thousands."""
    from watersmeet.spark.exchange.simulation import simulate

    found = [simulate(SIMULATED_ROWS, tasks, tasks) for tasks in (2, 8, 32, 128, 512, 2048)]
    return [asdict(one) | {"seconds": one.seconds, "per_row": one.per_row} for one in found]


def _text(plan: Plan, over: Sequence[Spread], measured: Sequence[dict[str, Any]]) -> Iterator[str]:
    asked = plan.asked
    yield (
        f"{shown(asked.rate, 'rows/s')} of {shown(asked.row, 'B')} within {asked.within:g} s, lag {asked.lag:g} s,"
        f" in {counted(plan.shards, 'shard')} on {counted(plan.cores, 'core')}"
    )
    yield ""
    if not plan.is_possible:
        yield f"No number of cores up to {MOST_SHARDS:,} does this in batches of {asked.batch:g} s. This comes nearest:"
    if plan.read:
        yield "More is alive than the machines have at hand, and every batch reads all of it: longer batches"
        yield "(--batch 5m), a shorter bound, narrower rows or more machines make that less."
    if plan.read or not plan.is_possible:
        yield ""
    yield from _lines(plan.lines)
    yield ""
    yield "Each shard, if keys spread evenly"
    yield from _lines(plan.per_shard)
    yield ""
    yield from _heaviest(plan)
    yield ""
    yield "A batch over so many map tasks and as many shards: seconds of cores"
    rows: list[Sequence[str]] = [("  tasks", "rows", "marks", "small records", "calls", "not rows", "")]
    for one in over:
        parts = (one.rows, one.marks, one.records, one.calls)
        said = "" if one.share < 0.5 else f"<- {one.dominates} dominate"
        rows.append((f"  {one.tasks:,}", *(f"{part:,.3g}" for part in parts), f"{one.share:.0%}", said))
    yield from _aligned(rows)
    yield "  Every task sends each shard a record of marks and one of rows: these grow with tasks x shards."
    yield "  Fewer, larger tasks (spark.sql.files.maxPartitionBytes, minPartitions of Kafka) and longer batches"
    yield "  (maxFilesPerTrigger, maxOffsetsPerTrigger) make them few; shards need not be more than cores."
    if measured:
        yield ""
        yield f"Simulated here: a batch of {SIMULATED_ROWS:,} rows, packed and taken in by the code of a query"
        rows = [("  tasks", "a task", "a shard", "of it marks", "records of a task", "µs per row", "")]
        for one in measured:
            times = (f"{one[part] * 1000:,.3g} ms" for part in ("task", "shard", "marks"))
            rows.append((f"  {one['tasks']:,}", *times, f"{one['records']:,}", f"{one['per_row'] * 1e6:,.3g}", ""))
        yield from _aligned(rows)
    yield ""
    yield f"Costs are rough, from runs at commit {MEASURED.commit} on {MEASURED.machine};"
    yield "no cluster was measured. `make bench` measures them on yours. Bursts, replays and other queries come on top."


def _heaviest(plan: Plan) -> Iterator[str]:
    if not plan.asked.heaviest:
        yield "One core joins one key: `--heaviest 0.01`, the share of rows of the heaviest, tells where that ends."
        return
    share = f"{100 * plan.asked.heaviest:g} %"
    most = shown(plan.most_rate, "rows/s")
    if plan.too_heavy:
        yield f"One key has {share} of all rows, and one core joins it: more than {most} in all cannot be kept up with."
        yield "More cores do not help. Split the key (by a further equality), or drop rows before the join."
    else:
        yield f"One key has {share} of all rows, and one core joins it: that ends at {most} in all."


def _lines(lines: Sequence[Line]) -> Iterator[str]:
    rows = [(f"  {one.name}", shown(one.value, one.unit), one.law, one.assumed) for one in lines]
    yield from _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _data(plan: Plan, over: Sequence[Spread], measured: Sequence[dict[str, Any]]) -> dict[str, object]:
    return {
        "asked": asdict(plan.asked),
        "cores": plan.cores,
        "shards": plan.shards,
        "machines": plan.machines,
        "needs": [asdict(line) for line in plan.lines],
        "per_shard": [asdict(line) for line in plan.per_shard],
        "too_heavy": plan.too_heavy,
        "is_possible": plan.is_possible,
        "read": plan.read,
        "most_rate": None if plan.most_rate == float("inf") else plan.most_rate,
        "spread": [asdict(one) | {"not_rows": one.share, "dominates": one.dominates} for one in over],
        "simulated": list(measured),
        "costs": asdict(MEASURED),
    }
