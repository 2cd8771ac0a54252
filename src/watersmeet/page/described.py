"""What the page knows of a query before it runs: its text, its drawing, and what its numbers are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watersmeet.explanation.family import JoinExplainer, PairDistance
from watersmeet.explanation.physical import plan_details
from watersmeet.explanation.query import query_topology
from watersmeet.explanation.topology import Topology
from watersmeet.observe.progress import port_names
from watersmeet.operators import OPERATORS
from watersmeet.page.drawing import Drawing, draw_query
from watersmeet.physical import (
    JoinPlan,
    QueryPlan,
    ScanPlan,
    join_plans,
    limits_of,
    plan_query,
    read_chaining,
    read_sources,
    scan_plans,
)
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.references import mask_secrets
from watersmeet.spark.past.waiting import FileCounter, backlog_counters


@dataclass(frozen=True)
class WatermarkColumn:
    """A watermarked column: whose it is, and how it moves.

    ``lag``: how far its watermark stays behind the newest event; ``idle``: after how many microseconds of silence it
    holds nobody back; None: never. Behind a view both are not known.
    """

    name: str
    source: str = ""
    lag: int | None = None
    idle: int | None = None
    has_heartbeats: bool = False


@dataclass(frozen=True)
class OperatorSide:
    """A side of an operator: what its rows are called, its columns, and the source that it has them from, if one."""

    name: str
    columns: tuple[str, ...]
    source: str | None = None


@dataclass(frozen=True)
class QueryDescription:
    """A query as its text says it is.

    - ``sides``: those of each operator, by its name and by theirs
    - ``pair_distances``: per operator that joins, how far apart the two rows of a pair are
    - ``topics``: which topics a source reads, for they tell what is waiting; ``files``: how many files of it wait
    - ``own_sinks``: which rows have sinks of their own, ``late`` and ``malformed``
    """

    name: str
    sql: str
    storage: Path
    graph: Topology
    drawing: Drawing
    columns: Mapping[str, WatermarkColumn] = field(default_factory=dict[str, WatermarkColumn])
    sides: Mapping[str, Mapping[str, OperatorSide]] = field(default_factory=dict[str, Mapping[str, OperatorSide]])
    pair_distances: Mapping[str, PairDistance] = field(default_factory=dict[str, PairDistance])
    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    files: Mapping[str, FileCounter] = field(default_factory=dict[str, FileCounter])
    max_rows: int | None = None
    plan: QueryPlan | None = None
    own_sinks: frozenset[str] = frozenset()

    @property
    def bounds(self) -> dict[str, int]:
        """Per operator, how far apart in event time two rows may be that meet, where a bound says so."""
        by_operator = {
            name: distance.bound for name, distance in self.pair_distances.items() if distance.unit == "event time"
        }
        return {name: bound for name, bound in by_operator.items() if bound is not None}

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far it is."""
        return self.storage / "checkpoints" / self.name


def describe_queries(script: Script, queries: Sequence[AnalyzedQuery], storage: Path) -> list[QueryDescription]:
    """All queries of a script, in its order."""
    limits = limits_of(script)
    descriptions: list[QueryDescription] = []
    for number, (parsed, query) in enumerate(zip(script.queries, queries, strict=True), 1):
        name = parsed.into or f"query{number}"
        late = "kept" if query.late_into else "counted"
        plan = plan_query(query, OPERATORS, late=late, chains=read_chaining(script))
        graph = query_topology(query, plan_details(plan, OPERATORS).with_sinks(script.sinks))
        joins = dict(zip(_operators(graph), join_plans(plan.relation), strict=False))
        own_sinks = [
            ("late", query.late_into is not None),
            ("malformed", any("MALFORMED" in a.of for a in query.side_outputs)),
        ]
        descriptions.append(
            QueryDescription(
                name,
                mask_secrets(script.text[parsed.span.start : parsed.span.end]).strip(),
                storage,
                graph,
                draw_query(graph),
                _columns(plan, script),
                {name: _sides(join) for name, join in joins.items()},
                {name: distance for name, join in joins.items() if (distance := _pair_distance(join)) is not None},
                _topics(plan),
                backlog_counters(read_sources(plan.relation), storage / "checkpoints" / name),
                None if limits is None else limits.max_rows,
                plan,
                frozenset(name for name, has_sink in own_sinks if has_sink),
            )
        )
    return descriptions


def _operators(graph: Topology) -> list[str]:
    """What keeps rows, innermost first, as plans have their joins."""
    return [node.step.operator for node in graph.nodes if node.step.operator]


def _columns(plan: QueryPlan, script: Script) -> dict[str, WatermarkColumn]:
    """The watermarked columns of sources; those behind views are known by name alone."""
    beating = {name.lower() for name, _ in script.heartbeats}
    times = (time for join in join_plans(plan.relation) for port in join.ports for time in port.times)
    # What nobody can write is of no use to a reader.
    columns = {time: WatermarkColumn(time) for time in times if not time.startswith("#")}
    for scan in scan_plans(plan.relation):
        for watermark in scan.source.watermarks:
            name = f"{scan.alias}.{watermark.column}"
            beats = scan.source.name.lower() in beating
            columns[name] = WatermarkColumn(name, scan.source.name, watermark.lag.value, watermark.idle, beats)
    return columns


def _sides(join: JoinPlan) -> dict[str, OperatorSide]:
    names = port_names(len(join.ports))
    return {name: _side(port.input, port.times) for name, port in zip(names, join.ports, strict=True)}


def _side(input: object, times: tuple[str, ...]) -> OperatorSide:
    if isinstance(input, ScanPlan):
        source = "+".join(part.name for part in input.parts) or input.source.name
        return OperatorSide(source, times, source)
    alias = getattr(input, "alias", "")
    return OperatorSide(alias if alias and not alias.startswith("#") else "rows", times)


def _pair_distance(join: JoinPlan) -> PairDistance | None:
    """How far apart the two rows of a pair are; None: it makes no pairs."""
    explain = OPERATORS[getattr(join.analyzed, "family", join.operator.name)].explain
    return explain.pair_distance(join.operator) if isinstance(explain, JoinExplainer) else None


def _topics(plan: QueryPlan) -> dict[str, tuple[str, ...]]:
    topics_by_source: dict[str, tuple[str, ...]] = {}
    for source in read_sources(plan.relation):
        topics = source.options.get("subscribe", "")
        if topics:
            topics_by_source[source.name] = tuple(topic.strip() for topic in topics.split(","))
    return topics_by_source
