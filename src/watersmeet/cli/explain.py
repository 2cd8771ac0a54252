"""``explain``: how queries would run, as text, JSON or a drawing; ``--forecast``: how large they get and how fast."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from watersmeet.cli.advise import ADVICE_FILE
from watersmeet.cli.console import Format, print_text, show_wait
from watersmeet.cli.options import Load
from watersmeet.cli.run import Cluster
from watersmeet.cli.script import OpenedScript, check_external_references, open_script, read_project
from watersmeet.duration import align_columns, format_count, parse_duration
from watersmeet.errors import did_you_mean, refuse
from watersmeet.locations import Storage, is_local
from watersmeet.logical.nodes import Script
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.metrics.history import read_history
from watersmeet.operators import FAMILIES, OPERATORS
from watersmeet.physical import QueryPlan, plan_query, read_chaining
from watersmeet.tools.explain.parsed import render_script, script_as_json, script_topologies
from watersmeet.tools.explain.query import PlanDetails, plan_details, query_as_json, query_topology, render_query
from watersmeet.tools.explain.svg import draw
from watersmeet.tools.explain.topology import Topology
from watersmeet.tools.forecast.cluster import (
    MOST_SHARDS,
    ClusterPlan,
    ClusterRequest,
    CostLine,
    Spread,
    plan_cluster,
    spreads,
)
from watersmeet.tools.forecast.inputs import (
    MEASURED,
    format_quantity,
    merge_rates,
    observe_rates,
    parse_rates,
    read_sampled_rates,
)
from watersmeet.tools.forecast.query import ForecastInput, as_data, forecast_query, render
from watersmeet.tools.trace import questions
from watersmeet.tools.trace.questions import question_of

Stage = Literal["plan", "analyzed", "physical"]
"""``plan``: what was asked, which needs no more than that the text can be read. ``analyzed``: with every name resolved,
and keys, bounds, filters and types found. ``physical``: also with the operators, the exchange and the columns read."""


@dataclass(frozen=True)
class RenderedScript:
    """A script in the three forms in which it can be shown."""

    text: str
    data: Sequence[dict[str, object]]
    graphs: Sequence[Topology]


def explain_project(path: Path, format: Format, stage: Stage = "physical", svg: Path | None = None) -> None:
    """Print every query as it is at a stage, or write all of them as a drawing."""
    explained = _render_parsed(_read(path)) if stage == "plan" else _render_analyzed(path, stage)
    if svg is not None:
        _write(svg, draw(explained.graphs))
        typer.echo(f"{svg}: {format_count(len(explained.graphs), 'query')} drawn.")
    elif format is Format.json:
        typer.echo(json.dumps(explained.data, indent=2))
    else:
        print_text(explained.text)


def _read(path: Path) -> Script:
    project, script = read_project(path)
    if not script.queries and not script.views:
        raise refuse("NO_QUERY", script=project.script_name)
    return script


def _render_parsed(script: Script) -> RenderedScript:
    return RenderedScript(
        render_script(script, FAMILIES), script_as_json(script, FAMILIES), script_topologies(script, FAMILIES)
    )


def _render_analyzed(path: Path, stage: Stage) -> RenderedScript:
    opened = open_script(path, sends="nothing resolved")
    sinks = opened.script.sinks
    pairs = [
        (
            query,
            (_physical_facts(query, opened.script) if stage == "physical" else PlanDetails(OPERATORS)).with_sinks(
                sinks
            ),
        )
        for query in opened.queries
    ]
    return RenderedScript(
        "\n\n".join(render_query(query, facts) for query, facts in pairs),
        [query_as_json(query, facts) for query, facts in pairs],
        [query_topology(query, facts) for query, facts in pairs],
    )


def _physical_facts(query: AnalyzedQuery, script: Script) -> PlanDetails:
    late = "side_output" if query.late_into else "counted"
    return plan_details(plan_query(query, OPERATORS, late=late, chains=read_chaining(script)), OPERATORS)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class WhyRequest:
    """The request as typed: rows of a source, of the result, or all rows; of one query, or of all if it is None."""

    source: str | None = None
    values: Sequence[str] = ()
    result: Sequence[str] = ()
    everything: bool = False
    query: str | None = None

    def check(self) -> None:
        """That it is one question."""
        kinds = [self.source is not None, bool(self.result), self.everything]
        if sum(kinds) != 1:
            raise typer.BadParameter("give a SOURCE with values, --result or --summary")
        if self.source is not None and not self.values:
            raise typer.BadParameter(f"give the rows of {self.source} as COLUMN=VALUE")


def why_project(path: Path, request: WhyRequest, cluster: Cluster, format: Format) -> None:
    """Answer a question about the rows of a project that has run."""
    request.check()
    opened = open_script(path, "absolute")
    check_external_references(opened)
    storage = cluster.storage(opened.project, opened.script)
    if not is_local(storage):
        opened = open_script(path, "absolute", storage=storage)
    from watersmeet.spark.connectors.reading import resolve_options

    script = resolve_options(opened.script)
    queries = questions.find_queries(script, opened.queries, storage, f"watersmeet run {path} --once", request.query)
    ask: Callable[[questions.ReplayedQuery], Any]
    if request.source is not None:
        question = question_of(script.sources, request.source, request.values)
        queries = questions.queries_reading(queries, question)
        ask = lambda read: questions.answer(read, question)  # noqa: E731
    elif request.everything:
        ask = questions.summary
    else:
        queries = questions.queries_with_columns(queries, request.result)
        ask = lambda read: questions.find_provenance(read, request.result)  # noqa: E731
    typer.echo(f"Reading the input of {', '.join(target.name for target in queries)}.", err=True)
    answers: list[Any] = []
    with show_wait("Starting Spark"):
        spark = cluster.session(opened.project, storage, script)
    for query in queries:
        with show_wait(f"Reading the input of {query.name}"):
            read = questions.read(spark, query)
        followed = (
            f"{format_count(read.rows, 'row')} of {format_count(len(read.replay.batches), 'batch')} of {query.name}"
        )
        typer.echo(f"Tracing {followed}.", err=True)
        with show_wait("Tracing rows"):
            answers.append(ask(read))
    if format is Format.json:
        print_text(json.dumps([answer.data() for answer in answers], indent=2, ensure_ascii=False))
    else:
        print_text("\n\n".join(answer.text() for answer in answers))


def forecast_project(path: Path, load: Load, cluster: Cluster, format: Format) -> None:
    """Print what every query will keep and take. ``cluster``: starts only to reach a storage on another machine."""
    opened = open_script(path, sends="nothing resolved")
    chaining = read_chaining(opened.script)
    plans = {
        query.into or f"query{number}": plan_query(query, OPERATORS, chains=chaining)
        for number, query in enumerate(opened.queries, 1)
    }
    inputs = _forecast_inputs(opened, load, cluster.storage(opened.project, opened.script), plans)
    forecasts = [(name, forecast_query(plan, OPERATORS, inputs)) for name, plan in plans.items()]
    if format is Format.json:
        typer.echo(json.dumps([{"query": name, **as_data(forecast)} for name, forecast in forecasts], indent=2))
    else:
        print_text("\n\n".join(f"{name}: {render(forecast)}" for name, forecast in forecasts))


def _forecast_inputs(
    opened: OpenedScript, load: Load, storage: Storage, plans: Mapping[str, QueryPlan]
) -> ForecastInput:
    """Collect the input: stated rates first, then rates of the last runs, then sampled ones; without rates, nothing."""
    names = {source.name.lower() for source in opened.script.sources}
    observed = merge_rates(
        [observe_rates(read_history(storage, name).batches, plan) for name, plan in plans.items()],
        read_sampled_rates(storage / ADVICE_FILE),
    )
    stated = parse_rates(load.rate or ())
    # One that is typed for all sources goes before any that was seen.
    rates = {**({} if "" in stated else observed.rates), **stated}
    behind = {**observed.behind, **dict(_behind(text) for text in load.behind or ())}
    keys = {**observed.keys, **dict(_keys(text) for text in load.keys or ())}
    for name in (*rates, *behind, *keys):
        if name and not names.issuperset(name.split("+")):
            raise refuse("UNKNOWN_SOURCE", source=name, suggestion=did_you_mean(name, names))
    if not rates:
        sources = [source.name for source in opened.script.sources]
        rates_text = " ".join(f"--rate {name}=1000/s" for name in sources)
        batches = sum(len(read_history(storage, name).batches) for name in plans)
        reason = (
            f"its runs had {format_count(batches, 'batch')}, and a rate needs batches between which event time advances"
            if batches
            else "it has not run yet"
        )
        raise refuse("NO_RATES", project=opened.project.script_name, rates=rates_text, reason=reason)
    settings = {setting.name.lower(): setting.value for setting in opened.script.settings}
    shards = load.shards or int(settings.get("watersmeet.shards", load.cores))
    return ForecastInput(rates, load.cores, shards, behind, keys)


def _keys(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    try:
        return name.strip().lower(), int(float(number))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"--keys {text}: write SOURCE=NUMBER, such as customers=1e6") from None


def _behind(text: str) -> tuple[str, int]:
    name, _, length = text.rpartition("=")
    try:
        return name.strip().lower(), parse_duration(length)
    except ValueError as error:
        raise typer.BadParameter(f"--behind {text}: {error}") from None


SIMULATED_ROWS = 400_000


def plan_load(request: ClusterRequest, format: Format, *, simulated: bool) -> None:
    """Print what a load needs, with the law of each number, and where other things than rows begin to dominate."""
    plan, by_tasks = plan_cluster(request), spreads(request)
    measured = _simulate_exchange() if simulated else []
    if format is Format.json:
        typer.echo(json.dumps(_data(plan, by_tasks, measured), indent=2))
        return
    typer.echo("\n".join(_text(plan, by_tasks, measured)))


def _simulate_exchange() -> list[dict[str, Any]]:
    """The exchange with the code of a query, from a few tasks to thousands."""
    from watersmeet.tools.forecast.cluster import simulate

    simulations = [simulate(SIMULATED_ROWS, tasks, tasks) for tasks in (2, 16, 64, 256, 1024, 4096)]
    return [
        asdict(simulation) | {"seconds": simulation.seconds, "per_row": simulation.per_row}
        for simulation in simulations
    ]


def _text(plan: ClusterPlan, by_tasks: Sequence[Spread], measured: Sequence[dict[str, Any]]) -> Iterator[str]:
    request = plan.request
    yield (
        f"{format_quantity(request.rate, 'rows/s')} of {format_quantity(request.row, 'B')}"
        f" within {request.within:g} s, lag {request.lag:g} s,"
        f" in {format_count(plan.shards, 'shard')} on {format_count(plan.cores, 'core')}"
    )
    yield ""
    if not plan.is_possible:
        yield (f"Up to {MOST_SHARDS:,} cores are not enough for batches of {request.batch:g} s. The closest plan:")
    if plan.read:
        yield "The state is larger than the caches of the machines, so batches read the parts of it that have matches."
        yield "Longer batches (--batch 5m), a shorter bound, narrower rows or more machines reduce this."
    if plan.read or not plan.is_possible:
        yield ""
    yield from _lines(plan.lines)
    yield f"  With an executor per machine: --conf spark.executor.memoryOverhead={-(-plan.overhead // 2**20)}m"
    yield ""
    yield "Each shard, if keys spread evenly"
    yield from _lines(plan.per_shard)
    yield ""
    yield from _heaviest(plan)
    yield ""
    yield "Core seconds per batch, by the number of map tasks, with as many shards"
    rows: list[Sequence[str]] = [("  tasks", "rows", "marks", "small records", "calls", "records", "not rows", "")]
    for entry in by_tasks:
        parts = (entry.rows, entry.marks, entry.records, entry.calls)
        note = "" if entry.share < 0.5 else f"<- {entry.dominates} dominate"
        rows.append(
            (f"  {entry.tasks:,}", *(f"{part:,.3g}" for part in parts), f"{entry.sent:,}", f"{entry.share:.0%}", note)
        )
    yield from align_columns(rows)
    yield "  Each task sends every shard a record of rows, with its watermarks behind one of each group of shards."
    yield "  Where it has no rows for a group, a record has the watermarks alone. So records grow with tasks x shards."
    yield "  Fewer, larger tasks (spark.sql.files.maxPartitionBytes, minPartitions of Kafka) and longer batches"
    yield "  (maxFilesPerTrigger, maxOffsetsPerTrigger) reduce them. You do not need more shards than cores."
    if measured:
        yield ""
        yield f"Simulated on this machine: a batch of {SIMULATED_ROWS:,} rows, packed and unpacked as in a query"
        rows = [("  tasks", "a task", "a shard", "of it marks", "records of a task", "µs per row", "")]
        for entry in measured:
            times = (f"{entry[part] * 1000:,.3g} ms" for part in ("task", "shard", "watermarks"))
            rows.append(
                (f"  {entry['tasks']:,}", *times, f"{entry['records']:,}", f"{entry['per_row'] * 1e6:,.3g}", "")
            )
        yield from align_columns(rows)
    yield ""
    yield f"Costs are rough. They were measured at commit {MEASURED.commit} on {MEASURED.machine},"
    yield "not on a cluster. `make bench` measures them on yours. Add room for bursts, replays and other queries."


def _heaviest(plan: ClusterPlan) -> Iterator[str]:
    if not plan.request.heaviest:
        yield "One core joins all rows of a key. Give the share of the heaviest key for the limit: `--heaviest 0.01`."
        return
    share = f"{100 * plan.request.heaviest:g} %"
    most = format_quantity(plan.most_rate, "rows/s")
    if plan.too_heavy:
        yield f"One key has {share} of all rows, and one core joins it: the limit is {most} in total."
        yield "More cores do not help. Split the key with another equality, or filter rows before the join."
    else:
        yield f"One key has {share} of all rows, and one core joins it: the limit is {most} in total."


def _lines(lines: Sequence[CostLine]) -> Iterator[str]:
    rows = [(f"  {line.name}", format_quantity(line.value, line.unit), line.law, line.assumed) for line in lines]
    yield from align_columns(rows)


def _data(plan: ClusterPlan, by_tasks: Sequence[Spread], measured: Sequence[dict[str, Any]]) -> dict[str, object]:
    return {
        "asked": asdict(plan.request),
        "cores": plan.cores,
        "shards": plan.shards,
        "machines": plan.machines,
        "needs": [asdict(line) for line in plan.lines],
        "per_shard": [asdict(line) for line in plan.per_shard],
        "too_heavy": plan.too_heavy,
        "is_possible": plan.is_possible,
        "read": plan.read,
        "most_rate": None if plan.most_rate == float("inf") else plan.most_rate,
        "spread": [asdict(spread) | {"not_rows": spread.share, "dominates": spread.dominates} for spread in by_tasks],
        "simulated": list(measured),
        "costs": asdict(MEASURED),
    }
