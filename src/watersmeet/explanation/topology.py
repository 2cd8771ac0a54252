"""One description of a plan, from which its tree of text, its JSON and its drawing are made.

A plan is made of steps that rows pass from the sources to the sinks. Steps that follow each other without a fork stand
together in a block, which is what the tree shows as one: a source with the filter behind it, a query with its WHERE,
its columns and its sink. `topology` is the same as a graph, with one node per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from watersmeet.explanation.family import Inputs
from watersmeet.plan.facts import Fact

StepKind = Literal[
    "source", "union", "view", "filter", "lateral", "repartition", "join", "group", "table", "project", "sink"
]  # fmt: skip
"""What a step does with rows: ``repartition`` sends them to the shards of what keeps rows behind it, ``table`` makes
them the changes of a table, ``view`` gives the columns of a query that is read like a source, ``project`` those of the
result."""

_RANK: Mapping[StepKind, int] = {"group": 1, "filter": 2, "table": 3, "sink": 4, "repartition": 5}


@dataclass(frozen=True)
class PlanStep:
    """One thing that happens to rows: ``facts`` for people, ``data`` for machines.

    ``side_outputs`` are sinks that get rows apart from the step that follows, such as late ones. ``operator`` is what
    the numbers of a running query call it, if it keeps rows.
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
        """What is to be said of all steps, what the block gives before how it comes about; each label once."""
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
    """Add the nodes and edges of a block; the name of the node that its rows come out of."""
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
    """What the steps of a block know for machines, and the same of its inputs."""
    data = {key: value for step in block.steps for key, value in step.data.items()}
    inputs = [block_as_json(side) for side in block.inputs]
    match block.inputs_name:
        case "sides":
            return {**data, "left": inputs[0], "right": inputs[1]}
        case "input":
            return {**data, "input": inputs[0]}
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
    """The facts of which there is something to say."""
    return [(label, lines) for label, lines in facts if lines]
