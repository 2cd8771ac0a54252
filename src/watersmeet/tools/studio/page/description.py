"""The description of a query before it runs: text, meaning of its metrics, and the drawing around them.

The boxes have the places of ``explain``'s drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from watersmeet.locations import Storage, checkpoint_at, mask_secrets
from watersmeet.logical.nodes import Query, Script
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import is_internal, port_names
from watersmeet.operators.explainer import JoinExplainer, PairDistance
from watersmeet.physical import (
    JoinPlan,
    QueryPlan,
    RelationPlan,
    join_plans,
    limits_of,
    plan_query,
    read_chaining,
    read_sources,
)
from watersmeet.spark.state.offset_log import FileCounter, backlog_counters
from watersmeet.tools.explain.query import plan_details, query_topology
from watersmeet.tools.explain.svg import GAP_DOWN, BoxPlace, layout, text_width, wrap_text
from watersmeet.tools.explain.topology import Node, StepKind, Topology, drop_empty_facts, remove_steps

TITLE, LINE = 13.0, 11.5
TITLE_DOWN, LINE_DOWN, PADDING = 18.0, 17.0, 12.0
MOST_WIDTH, LEAST_WIDTH = 230.0, 150.0
BOLD = 1.2
"""The factor by which bold letters are wider."""
AROUND = 14.0
"""The distance of an edge around boxes."""
LABEL = 132.0
"""The room that the watermark on an edge takes."""

_LIVE: Mapping[StepKind, tuple[float, int]] = {
    "source": (170.0, 2), "union": (170.0, 1), "join": (240.0, 4), "group": (220.0, 3), "table": (220.0, 3),
    "sink": (170.0, 1),
}  # fmt: skip
"""The width and number of live lines of a box; other boxes have none."""
_SHOWN = ("watermark", "keys", "bounds", "writes", "filter", "where", "group by", "version")
"""The facts shown in a box; the rest is shown when it is opened."""
_MOST_FACTS = 3


@dataclass(frozen=True)
class Box:
    """A step: its place, its text, and where its live lines begin.

    ``aliases`` are those of its output rows, by which the watermarks on its edges are found.
    """

    id: str
    kind: StepKind
    title: tuple[str, ...]
    lines: tuple[str, ...]
    live: int
    x: float
    y: float
    width: float
    height: float
    operator: str = ""
    source: str = ""
    aliases: tuple[str, ...] = ()
    facts: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class EdgeLine:
    """An edge: the way it takes, and where the watermark stands that goes along it."""

    start: str
    end: str
    path: str
    x: float
    y: float


@dataclass(frozen=True)
class Drawing:
    """All boxes and edges of a query, and how much room they take."""

    boxes: tuple[Box, ...] = ()
    lines: tuple[EdgeLine, ...] = ()
    width: float = 0.0
    height: float = 0.0


@dataclass(frozen=True)
class _Card:
    node: Node
    title: list[str]
    lines: list[str]
    live: int
    size: tuple[float, float] = field(default=(0.0, 0.0))


def draw_query(graph: Topology) -> Drawing:
    """The drawing of a query.

    >>> from watersmeet.tools.explain.topology import Edge, PlanStep
    >>> source = Node("source1", PlanStep("source", "stream a", data={"alias": "a"}))
    >>> made = draw_query(Topology("", (source, Node("sink1", PlanStep("sink", "b"))), (Edge("source1", "sink1"),)))
    >>> [(box.id, box.aliases) for box in made.boxes], made.lines[0].start
    ([('source1', ('a',)), ('sink1', ('a',))], 'source1')
    """
    graph = remove_steps(remove_steps(graph, "repartition"), "project")
    cards = {node.id: _card(node) for node in graph.nodes}
    starts = {edge.start for edge in graph.edges}
    # Boxes with outgoing edges get extra width for the labels of the edges.
    sizes = {name: (card.size[0] + (LABEL if name in starts else 0.0), card.size[1]) for name, card in cards.items()}
    places = layout(graph, sizes)
    aliases: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        below = [alias for edge in graph.edges if edge.end == node.id for alias in aliases[edge.start]]
        own = node.step.data.get("alias")
        aliases[node.id] = (str(own),) if own else tuple(dict.fromkeys(below))
    boxes = {name: replace(_box(card, places[name]), aliases=aliases[name]) for name, card in cards.items()}
    lines = tuple(_line(boxes[edge.start], boxes[edge.end], list(boxes.values())) for edge in graph.edges)
    width = max((box.x + box.width for box in boxes.values()), default=0.0)
    height = max((box.y + box.height for box in boxes.values()), default=0.0)
    return Drawing(tuple(boxes.values()), lines, width, height)


def _card(node: Node) -> _Card:
    step = node.step
    room, live = _LIVE.get(step.kind, (LEAST_WIDTH, 0))
    title = wrap_text(step.title or step.kind, BOLD * TITLE, MOST_WIDTH)
    facts = dict(drop_empty_facts(step.facts))
    fact_lines = [line for label in _SHOWN for line in facts.get(label, ())]
    lines = [part for line in fact_lines for part in wrap_text(line, LINE, MOST_WIDTH)]
    if len(lines) > _MOST_FACTS:
        lines = [*lines[: _MOST_FACTS - 1], f"{lines[_MOST_FACTS - 1]} …"]
    widths = [BOLD * text_width(line, TITLE) for line in title] + [text_width(line, LINE) for line in lines]
    width = max(room, *widths, LEAST_WIDTH) + 2 * PADDING
    height = 14.0 + len(title) * TITLE_DOWN + (len(lines) + live) * LINE_DOWN + 2 * PADDING + (8.0 if live else 0.0)
    return _Card(node, title, lines, live, (round(width, 1), height))


def _box(card: _Card, place: BoxPlace) -> Box:
    step = card.node.step
    facts = tuple((label, tuple(lines)) for label, lines in drop_empty_facts(step.facts))
    source = str(step.data.get("scan") or "") if step.kind == "source" else ""
    return Box(
        card.node.id, step.kind, tuple(card.title), tuple(card.lines), card.live, round(place.x, 1), round(place.y, 1),
        *card.size, operator=step.operator, source=source, facts=facts,
    )  # fmt: skip


def _line(start: Box, end: Box, boxes: Sequence[Box]) -> EdgeLine:
    x, y = start.x + start.width, start.y + start.height / 2
    to_x, to_y = end.x, end.y + end.height / 2
    if to_x <= x:
        # On the next row: right of all boxes of its column, and between the rows.
        right_edge = max(box.x + box.width for box in boxes if box.x == start.x) + AROUND
        lane = _top(end, boxes) - GAP_DOWN
        path = f"M {x:.0f} {y:.0f} H {right_edge:.0f} V {lane:.0f} H {to_x - AROUND:.0f} V {to_y:.0f} H {to_x:.0f}"
        return EdgeLine(start.id, end.id, path, round(start.x, 1), round(lane, 1))
    # Straight as far as the watermark goes that stands on it.
    straight = max(x, min(x + LABEL - 30, to_x - 40))
    bend = (to_x - straight) * 0.5
    curve = f"{straight + bend:.0f} {y:.0f} {to_x - bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"
    return EdgeLine(start.id, end.id, f"M {x:.0f} {y:.0f} H {straight:.0f} C {curve}", round(x + 10, 1), round(y, 1))


def _top(of: Box, boxes: Sequence[Box]) -> float:
    """The place where the row of a box begins: there is room above it, from the left to the right."""
    top, bottom = of.y, 0.0
    for box in sorted(boxes, key=lambda box: box.y):
        if box.y >= bottom + 2 * GAP_DOWN - 1:
            top = box.y
        if box.y >= of.y:
            break
        bottom = max(bottom, box.y + box.height)
    return top


@dataclass(frozen=True)
class WatermarkColumn:
    """A watermarked column: its source, and how its watermark moves.

    ``lag``: how far its watermark is behind the newest event; ``idle``: after how many microseconds of silence it no
    longer holds others back; None: never. Behind a view both are unknown.
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
    """A query as described by its text.

    - ``sides``: those of each operator, by its name and by theirs
    - ``pair_distances``: per join operator, how far apart the two rows of a pair are
    - ``topics``: the topics that a source reads, for its backlog; ``files``: the number of unread files
    - ``own_sinks``: the rows with separate sinks, ``late`` and ``malformed``
    """

    name: str
    sql: str
    storage: Storage
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
        """Per operator, the maximum distance in event time of matching rows, where there is a bound."""
        by_operator = {
            name: distance.bound for name, distance in self.pair_distances.items() if distance.unit == "event time"
        }
        return {name: bound for name, bound in by_operator.items() if bound is not None}

    @property
    def checkpoint(self) -> Storage:
        """The folder where Spark keeps its progress."""
        return checkpoint_at(self.storage, self.name)


def describe_queries(script: Script, queries: Sequence[AnalyzedQuery], storage: Storage) -> list[QueryDescription]:
    """All queries of a script, in its order."""
    limits = limits_of(script)
    descriptions: list[QueryDescription] = []
    for number, (parsed, query) in enumerate(zip(script.queries, queries, strict=True), 1):
        name = parsed.into or f"query{number}"
        late = "side_output" if query.late_into else "counted"
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
                _text_of(script, parsed),
                storage,
                graph,
                draw_query(graph),
                _columns(plan, script),
                {name: _sides(join) for name, join in joins.items()},
                {name: distance for name, join in joins.items() if (distance := _pair_distance(join)) is not None},
                _topics(plan),
                backlog_counters(read_sources(plan.relation), checkpoint_at(storage, name)),
                None if limits is None else limits.max_rows,
                plan,
                frozenset(name for name, has_sink in own_sinks if has_sink),
            )
        )
    return descriptions


def _text_of(script: Script, query: Query) -> str:
    """The statements of a query."""
    spans = dict.fromkeys(branch.span for branch in query.branches or (query,))
    return "\n\n".join(mask_secrets(script.text[span.start : span.end]).strip() for span in spans)


def _operators(graph: Topology) -> list[str]:
    """The operators that store rows, innermost first, in the order of the plan's joins."""
    return [node.step.operator for node in graph.nodes if node.step.operator]


def _columns(plan: QueryPlan, script: Script) -> dict[str, WatermarkColumn]:
    """The watermarked columns of sources; those behind views are known by name only."""
    beating = {name.lower() for name, _ in script.heartbeats}
    times = (time for join in join_plans(plan.relation) for port in join.ports for time in port.times)
    columns = {time: WatermarkColumn(time) for time in times}
    for scan in plan.relation.leaves:
        for watermark in scan.source.watermarks:
            name = f"{scan.alias}.{watermark.column}"
            beats = scan.source.name.lower() in beating
            columns[name] = WatermarkColumn(name, scan.source.name, watermark.lag.value, watermark.idle, beats)
    return {name: column for name, column in columns.items() if not is_internal(name)}


def _sides(join: JoinPlan) -> dict[str, OperatorSide]:
    names = port_names(len(join.ports))
    return {name: _side(port.input, port.times) for name, port in zip(names, join.ports, strict=True)}


def _side(relation: RelationPlan, times: tuple[str, ...]) -> OperatorSide:
    if relation.scan is not None:
        return OperatorSide(relation.scan.source_name, times, relation.scan.source_name)
    return OperatorSide(" with ".join(dict.fromkeys(leaf.source_name for leaf in relation.leaves)), times)


def _pair_distance(join: JoinPlan) -> PairDistance | None:
    """The distance between the two rows of a pair; None: it makes no pairs."""
    explain = OPERATORS[getattr(join.analyzed, "family", join.operator.name)].explain
    return explain.pair_distance(join.operator) if isinstance(explain, JoinExplainer) else None


def _topics(plan: QueryPlan) -> dict[str, tuple[str, ...]]:
    topics_by_source: dict[str, tuple[str, ...]] = {}
    for source in read_sources(plan.relation):
        topics = source.options.get("subscribe", "")
        if topics:
            topics_by_source[source.name] = tuple(topic.strip() for topic in topics.split(","))
    return topics_by_source
