"""The graphs of a script as they are drawn: without the steps of the exchange, and every source once.

Queries that read one source are one drawing, from that source on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from watersmeet.explanation.topology import Edge, Node, PlanStep, Topology

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
    """The graph without the steps of a kind: what goes through one goes on straight."""
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
    """The name of a source, by which it is known again; "" for everything else."""
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
