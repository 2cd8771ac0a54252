"""Where the boxes of a drawing stand: in columns from the sources on the left to the sinks on the right.

A node stands one column before the node that takes its rows, so that an edge never passes a box; sinks beside the
result stand one column behind what they get rows from. Within a column boxes keep their order and a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watersmeet.explanation.topology import Topology

GAP_ACROSS, GAP_DOWN = 40.0, 24.0

Sizes = Mapping[str, tuple[float, float]]
"""The width and the height of every node's box."""


@dataclass(frozen=True)
class Place:
    """A box: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Half way down."""
        return self.y + self.height / 2


def layout(graph: Topology, sizes: Sizes) -> dict[str, Place]:
    """The place of every node, from (0, 0) on.

    >>> from watersmeet.explanation.topology import Edge, Node, Step
    >>> nodes = tuple(Node(name, Step("join")) for name in "abc")
    >>> graph = Topology("", nodes, (Edge("a", "c"), Edge("b", "c")))
    >>> [(place.x, place.y) for place in layout(graph, dict.fromkeys("abc", (100.0, 40.0))).values()]
    [(0.0, 0.0), (0.0, 64.0), (140.0, 32.0)]
    """
    columns = _columns(graph)
    middles = _middles(graph, sizes)
    tops: dict[str, float] = {}
    for column in set(columns.values()):
        bottom = float("-inf")
        # The result goes on straight; what has an output of its own stands below.
        for name in sorted(_in(columns, column), key=lambda name: (middles[name], name in _beside(graph))):
            tops[name] = max(middles[name] - sizes[name][1] / 2, bottom)
            bottom = tops[name] + sizes[name][1] + GAP_DOWN
    highest = min(tops.values())
    lefts = _lefts(columns, sizes)
    return {name: Place(lefts[columns[name]], tops[name] - highest, *sizes[name]) for name in columns}


def _in(columns: Mapping[str, int], column: int) -> list[str]:
    return [name for name, found in columns.items() if found == column]


def _beside(graph: Topology) -> frozenset[str]:
    """The sinks that get rows apart from the result."""
    steps = {node.id: node.step for node in graph.nodes}
    return frozenset(e.end for e in graph.edges if any(steps[e.end] is sink for sink in steps[e.start].beside))


def _columns(graph: Topology) -> dict[str, int]:
    """The column of every node, the first being 0."""
    beside = _beside(graph)
    distance: dict[str, int] = {}
    for node in reversed(graph.nodes):
        following = [edge.end for edge in graph.edges if edge.start == node.id and edge.end not in beside]
        distance[node.id] = max((distance[name] + 1 for name in following), default=0)
    before = {edge.end: edge.start for edge in graph.edges}
    distance |= {name: distance[before[name]] - 1 for name in beside}
    most = max(distance.values())
    return {node.id: most - distance[node.id] for node in graph.nodes}


def _middles(graph: Topology, sizes: Sizes) -> dict[str, float]:
    """How far down the middle of every box should be: sources below each other, the others between their inputs."""
    found: dict[str, float] = {}
    bottom = 0.0
    for node in graph.nodes:
        before = [found[edge.start] for edge in graph.edges if edge.end == node.id]
        if before:
            found[node.id] = (min(before) + max(before)) / 2
        else:
            height = max(sizes[name][1] for name in _chain(graph, node.id))
            found[node.id] = bottom + height / 2
            bottom += height + GAP_DOWN
    return found


def _chain(graph: Topology, name: str) -> list[str]:
    """A node and those behind it that get rows from nowhere else."""
    chain = [name]
    beside = _beside(graph)
    while True:
        following = [edge.end for edge in graph.edges if edge.start == chain[-1] and edge.end not in beside]
        if not following or sum(edge.end == following[0] for edge in graph.edges) > 1:
            return chain
        chain.append(following[0])


def _lefts(columns: Mapping[str, int], sizes: Sizes) -> list[float]:
    """Where every column begins."""
    lefts = [0.0]
    for column in range(max(columns.values())):
        lefts.append(lefts[-1] + max(sizes[name][0] for name in _in(columns, column)) + GAP_ACROSS)
    return lefts
