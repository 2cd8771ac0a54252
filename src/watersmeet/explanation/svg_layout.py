"""Where the boxes of a drawing stand: in columns from the sources on the left to the sinks on the right.

A node stands one column before the first that takes its rows, so that no edge passes a box but those of a source that
several read; sinks beside the
result stand one column behind what they get rows from. Within a column boxes keep their order and a gap. Columns for
which there is no room go on below, from the left. Before that: how wide text is, and how it is broken into lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from unicodedata import east_asian_width

from watersmeet.explanation.sketch import rows_of
from watersmeet.explanation.topology import Topology

# Thousandths of the font size for the characters from space to tilde. They are those of DejaVu Sans, the widest of the
# fonts that a drawing asks for, so that no text outgrows its box wherever it is shown.
_ASCII = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337,
    636, 636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531,
    1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787,
    603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500,
    500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
    635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
)  # fmt: skip
_OTHER, _WIDE = 1000, 1400


def text_width(text: str, size: float) -> float:
    """The width of a text in a font of that size, rather too large than too small.

    >>> text_width("WITHIN", 10), text_width("within", 10)
    (36.9, 30.34)
    """
    return sum(_width(character) for character in text) * size / 1000


def _width(character: str) -> int:
    place = ord(character) - 32
    if 0 <= place < len(_ASCII):
        return _ASCII[place]
    return _WIDE if east_asian_width(character) in "WF" else _OTHER


def wrap_text(text: str, size: float, most: float) -> list[str]:
    """The text in lines that are at most so wide, broken at spaces, and inside a word only where it fits no line.

    >>> wrap_text("rows are kept until later", 10, 80)
    ['rows are kept', 'until later']
    """
    lines: list[str] = []
    for word in _pieces(text, size, most):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= most:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pieces(text: str, size: float, most: float) -> Iterator[str]:
    for word in text.split():
        rest = word
        while text_width(rest, size) > most:
            fits = max(n for n in range(1, len(rest) + 1) if n == 1 or text_width(rest[:n], size) <= most)
            yield rest[:fits]
            rest = rest[fits:]
        if rest:
            yield rest


GAP_ACROSS, GAP_DOWN = 40.0, 24.0
MOST_ACROSS = 1500.0
"""How wide a drawing may be before it goes on below."""

Sizes = Mapping[str, tuple[float, float]]
"""The width and the height of every node's box."""


@dataclass(frozen=True)
class BoxPlace:
    """A box: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Half way down."""
        return self.y + self.height / 2


def layout(graph: Topology, sizes: Sizes) -> dict[str, BoxPlace]:
    """The place of every node, from (0, 0) on.

    >>> from watersmeet.explanation.topology import Edge, Node, PlanStep
    >>> nodes = tuple(Node(name, PlanStep("join")) for name in "abc")
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
        for name in sorted(
            _nodes_in_column(columns, column), key=lambda name: (middles[name], name in _side_sinks(graph))
        ):
            tops[name] = max(middles[name] - sizes[name][1] / 2, bottom)
            bottom = tops[name] + sizes[name][1] + GAP_DOWN
    return _wrap_columns(columns, tops, sizes)


def _wrap_columns(columns: Mapping[str, int], tops: Mapping[str, float], sizes: Sizes) -> dict[str, BoxPlace]:
    """The places of boxes in these columns, so far down; a drawing that is too wide goes on below, from the left."""
    widths = [
        max(sizes[name][0] for name in _nodes_in_column(columns, column)) for column in range(max(columns.values()) + 1)
    ]
    rows = rows_of(widths, MOST_ACROSS, GAP_ACROSS)
    places: dict[str, BoxPlace] = {}
    top = 0.0
    for row in range(rows[-1] + 1):
        held = [column for column, row_number in enumerate(rows) if row_number == row]
        names = [name for name in columns if columns[name] in held]
        highest = min(tops[name] for name in names)
        left = dict(zip(held, accumulate((widths[c] + GAP_ACROSS for c in held), initial=0.0), strict=False))
        for name in names:
            places[name] = BoxPlace(left[columns[name]], top + tops[name] - highest, *sizes[name])
        top = max(places[name].y + places[name].height for name in names) + 2 * GAP_DOWN
    return {name: places[name] for name in columns}


def _nodes_in_column(columns: Mapping[str, int], column: int) -> list[str]:
    return [name for name, column_number in columns.items() if column_number == column]


def _side_sinks(graph: Topology) -> frozenset[str]:
    """The sinks that get rows apart from the result."""
    steps = {node.id: node.step for node in graph.nodes}
    return frozenset(e.end for e in graph.edges if any(steps[e.end] is sink for sink in steps[e.start].side_outputs))


def _columns(graph: Topology) -> dict[str, int]:
    """The column of every node, the first being 0: results as early as they can, others right before what they feed."""
    side_sinks = _side_sinks(graph)
    depth: dict[str, int] = {}
    for node in graph.nodes:
        depth[node.id] = max((depth[edge.start] + 1 for edge in graph.edges if edge.end == node.id), default=0)
    columns: dict[str, int] = {}
    for node in reversed(graph.nodes):
        following = [edge.end for edge in graph.edges if edge.start == node.id and edge.end not in side_sinks]
        columns[node.id] = min((columns[name] - 1 for name in following), default=depth[node.id])
    before = {edge.end: edge.start for edge in graph.edges}
    columns |= {name: columns[before[name]] + 1 for name in side_sinks}
    first = min(columns.values())
    return {node.id: columns[node.id] - first for node in graph.nodes}


def _middles(graph: Topology, sizes: Sizes) -> dict[str, float]:
    """How far down the middle of every box should be: sources below each other, the others between their inputs."""
    middles: dict[str, float] = {}
    bottom = 0.0
    for node in graph.nodes:
        before = [middles[edge.start] for edge in graph.edges if edge.end == node.id]
        if before:
            middles[node.id] = (min(before) + max(before)) / 2
        else:
            height = max(sizes[name][1] for name in _chain(graph, node.id))
            middles[node.id] = bottom + height / 2
            bottom += height + GAP_DOWN
    return middles


def _chain(graph: Topology, name: str) -> list[str]:
    """A node and those behind it that get rows from nowhere else."""
    chain = [name]
    side_sinks = _side_sinks(graph)
    while True:
        following = [edge.end for edge in graph.edges if edge.start == chain[-1] and edge.end not in side_sinks]
        if not following or sum(edge.end == following[0] for edge in graph.edges) > 1:
            return chain
        chain.append(following[0])
