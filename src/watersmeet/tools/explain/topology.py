"""One description of a plan, from which its tree of text, its JSON and its drawing are made.

A plan is made of steps that rows pass from the sources to the sinks. Steps that follow each other without a fork stand
together in a block, which is what the tree shows as one: a source with the filter behind it, a query with its WHERE,
its columns and its sink. `topology` is the same as a graph, with one node per step.

A drawing leaves out the steps of the exchange and shows every source once: queries that read one source are one
drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from watersmeet.logical.words import Fact
from watersmeet.operators.explainer import Inputs

StepKind = Literal[
    "source", "union", "view", "filter", "lateral", "repartition", "join", "group", "table", "project", "sink"
]  # fmt: skip
"""The kinds of steps: ``repartition`` sends rows to the shards of the next stateful step, ``table`` turns them into the
changes of a table, ``view`` gives the columns of a query that is read like a source, ``project`` those of the result.
"""

_RANK: Mapping[StepKind, int] = {"group": 1, "filter": 2, "table": 3, "sink": 4, "repartition": 5}


@dataclass(frozen=True)
class PlanStep:
    """A step of a query: ``facts`` as text, ``data`` for JSON.

    ``side_outputs`` are sinks of side outputs, such as late rows. ``operator`` is its name in the metrics of a running
    query, if it is stateful.
    """

    kind: StepKind
    title: str = ""
    facts: tuple[Fact, ...] = ()
    data: Mapping[str, object] = field(default_factory=dict[str, object])
    side_outputs: tuple[PlanStep, ...] = ()
    operator: str = ""


@dataclass(frozen=True)
class PlanBlock:
    """Steps that stand together, in the order in which rows pass them, and the blocks that they get rows from."""

    heading: str
    steps: tuple[PlanStep, ...]
    inputs: tuple[PlanBlock, ...] = ()
    inputs_name: Inputs = "inputs"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts of all steps, those of the output first; each label once."""
        lines_by_label: dict[str, list[str]] = {}
        for step in sorted(self.steps, key=lambda step: _RANK.get(step.kind, 0)):
            for label, lines in step.facts:
                lines_by_label.setdefault(label, []).extend(lines)
        return tuple(lines_by_label.items())


@dataclass(frozen=True)
class Node:
    """A step with a name of its own in the graph, such as ``join1``."""

    id: str
    step: PlanStep


@dataclass(frozen=True)
class Edge:
    """Rows go from one node to another."""

    start: str
    end: str


@dataclass(frozen=True)
class Topology:
    """The graph of a query, sources first; every edge goes from an earlier node to a later one."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def topology(block: PlanBlock) -> Topology:
    """The graph of a block.

    >>> orders = PlanBlock("stream orders", (PlanStep("source", "orders"), PlanStep("filter", "id > 0")))
    >>> graph = topology(PlanBlock("SELECT", (PlanStep("project"), PlanStep("sink")), (orders,)))
    >>> [(edge.start, edge.end) for edge in graph.edges]
    [('source1', 'filter1'), ('filter1', 'project1'), ('project1', 'sink1')]
    """
    nodes: list[Node] = []
    edges: list[Edge] = []
    _collect(block, nodes, edges)
    return Topology(block.heading, tuple(nodes), tuple(edges))


def _collect(block: PlanBlock, nodes: list[Node], edges: list[Edge]) -> str:
    """Add the nodes and edges of a block; returns the name of its last node."""
    before = [_collect(side, nodes, edges) for side in block.inputs]
    for step in block.steps:
        name = _add(step, nodes)
        edges += [Edge(start, name) for start in before]
        for sink in step.side_outputs:
            edges.append(Edge(name, _add(sink, nodes)))
        before = [name]
    return before[0]


def _add(step: PlanStep, nodes: list[Node]) -> str:
    number = sum(node.step.kind == step.kind for node in nodes) + 1
    nodes.append(Node(f"{step.kind}{number}", step))
    return nodes[-1].id


def topology_as_json(graph: Topology) -> dict[str, object]:
    """The graph for machines."""
    return {
        "nodes": [
            {
                "id": node.id,
                "kind": node.step.kind,
                "title": node.step.title,
                "facts": {label: list(lines) for label, lines in drop_empty_facts(node.step.facts)},
            }
            for node in graph.nodes
        ],
        "edges": [{"from": edge.start, "to": edge.end} for edge in graph.edges],
    }


def block_as_json(block: PlanBlock) -> dict[str, object]:
    """The data of a block's steps, and of its inputs."""
    data = {key: value for step in block.steps for key, value in step.data.items()}
    inputs = [block_as_json(side) for side in block.inputs]
    match block.inputs_name:
        case "sides":
            return {**data, "left": inputs[0], "right": inputs[1]}
        case "input":
            return {**data, "input": inputs[0]}
        case "stage":
            return inputs[0]
        case "inputs" | "parts":
            return {**data, block.inputs_name: inputs}


def tree(block: PlanBlock) -> str:
    """A block as an indented tree for people.

    >>> facts = (("columns", ["id BIGINT", "t BIGINT"]), ("filter", []), ("watermark", ["t - 5"]))
    >>> print(tree(PlanBlock("SELECT", (), (PlanBlock("stream orders", (PlanStep("source", "orders", facts),)),))))
    SELECT
    └─ stream orders
       ├─ columns    id BIGINT
       │             t BIGINT
       └─ watermark  t - 5
    """
    return "\n".join([block.heading, *_draw(block, "")])


def _draw(block: PlanBlock, indent: str) -> Iterator[str]:
    facts = drop_empty_facts(block.facts)
    width = max((len(label) for label, _ in facts), default=0)
    rest = len(facts) + len(block.inputs)
    for label, (first, *more) in facts:
        rest -= 1
        below = indent + ("│  " if rest else "   ")
        yield f"{indent}{'├─ ' if rest else '└─ '}{label:<{width}}  {first}"
        yield from (f"{below}{'':<{width}}  {line}" for line in more)
    for side in block.inputs:
        rest -= 1
        yield f"{indent}{'├─ ' if rest else '└─ '}{side.heading}"
        yield from _draw(side, indent + ("│  " if rest else "   "))


def drop_empty_facts(facts: tuple[Fact, ...]) -> list[Fact]:
    """The facts that have lines."""
    return [(label, lines) for label, lines in facts if lines]


_UNDRAWN = "repartition"


def sketch(graphs: Sequence[Topology]) -> list[Topology]:
    """The graphs as they are drawn.

    >>> source = Node("source1", PlanStep("source", "stream a AS x", data={"scan": "a"}))
    >>> def query(into): return Topology(into, (source,
    ...     Node("repartition1", PlanStep("repartition")), Node("sink1", PlanStep("sink", into))),
    ...     (Edge("source1", "repartition1"), Edge("repartition1", "sink1")))
    >>> [drawn] = sketch([query("one"), query("two")])
    >>> [(edge.start, edge.end) for edge in drawn.edges]
    [('1.source1', '1.sink1'), ('1.source1', '2.sink1')]
    """
    drawn: list[Topology] = []
    for number, graph in enumerate(graphs, 1):
        own = remove_steps(_number_nodes(graph, number), _UNDRAWN)
        shared = [other for other in drawn if _sources(other) & _sources(own)]
        for other in shared:
            drawn.remove(other)
        drawn.append(_merge_graphs((*shared, own)))
    return drawn


def _number_nodes(graph: Topology, number: int) -> Topology:
    nodes = tuple(replace(node, id=f"{number}.{node.id}") for node in graph.nodes)
    edges = tuple(Edge(f"{number}.{edge.start}", f"{number}.{edge.end}") for edge in graph.edges)
    return replace(graph, nodes=nodes, edges=edges)


def remove_steps(graph: Topology, kind: str) -> Topology:
    """The graph without the steps of a kind: their inputs are connected with their outputs."""
    # One without rows before or after it is all there is of its rows: it stays.
    starts, ends = {edge.start for edge in graph.edges}, {edge.end for edge in graph.edges}
    gone = [node.id for node in graph.nodes if node.step.kind == kind and node.id in starts & ends]
    edges = list(graph.edges)
    for name in gone:
        before = [edge.start for edge in edges if edge.end == name]
        after = [edge.end for edge in edges if edge.start == name]
        bridged = [Edge(start, end) for start in before for end in after]
        edges = [edge for edge in edges if name not in (edge.start, edge.end)] + bridged
    nodes = tuple(node for node in graph.nodes if node.id not in gone)
    return replace(graph, nodes=nodes, edges=tuple(edges))


def _merge_graphs(graphs: Sequence[Topology]) -> Topology:
    """Graphs as one, in which sources of one name are one node."""
    first: dict[str, Node] = {}
    same: dict[str, str] = {}
    nodes: list[Node] = []
    for node in (node for graph in graphs for node in graph.nodes):
        name = _source(node.step)
        first_node = first.setdefault(name, node) if name else node
        same[node.id] = first_node.id
        if first_node is node:
            nodes.append(node)
        elif node.step.title != first_node.step.title:
            nodes = [replace(n, step=_drop_alias(n.step)) if n.id == first_node.id else n for n in nodes]
    edges = dict.fromkeys(Edge(same[e.start], same[e.end]) for graph in graphs for e in graph.edges)
    return Topology(", ".join(dict.fromkeys(graph.title for graph in graphs)), tuple(nodes), tuple(edges))


def _drop_alias(step: PlanStep) -> PlanStep:
    """A source without the alias that one of its readers gives it."""
    format_, source = step.data.get("format"), f"{step.data.get('kind')} {step.data.get('scan')}"
    return replace(step, title=f"{source} from {format_}" if format_ else source)


def _sources(graph: Topology) -> set[str]:
    return {name for node in graph.nodes if (name := _source(node.step))}


def _source(step: PlanStep) -> str:
    """The name of a source, which identifies it; "" for everything else."""
    return str(step.data["scan"]).lower() if step.kind == "source" and "scan" in step.data else ""


def rows_of(columns: Iterable[float], most: float, gap: float) -> list[int]:
    """In which row each column of a drawing stands, if a row may be so wide.

    >>> rows_of([100, 100, 100], 250, 10)
    [0, 0, 1]
    """
    rows: list[int] = []
    row, used = 0, 0.0
    for width in columns:
        if used and used + gap + width > most:
            row, used = row + 1, 0.0
        used += width + (gap if used else 0.0)
        rows.append(row)
    return rows
