"""The graph of a plan as one SVG file, for light and dark screens, and the layout of its boxes.

Boxes stand in columns, from sources on the left to sinks on the right. A node stands one column before the first that
takes its rows, so no edge passes a box but those of a source that several read; sinks of side outputs stand one column
behind their input. Columns without room continue below, from the left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from unicodedata import east_asian_width

from watersmeet.logical.words import Fact
from watersmeet.tools.explain.topology import Node, PlanStep, Topology, drop_empty_facts, rows_of, sketch

# Thousandths of the font size for the characters from space to tilde. They are those of DejaVu Sans, the widest font of
# the drawing's font list, so that no text outgrows its box in any of them.
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
    """The text in lines of at most this width, broken at spaces, and inside a word only where it fits no line.

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
"""The maximum width of a row of the drawing."""

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

    >>> from watersmeet.tools.explain.topology import Edge, Node, PlanStep
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
        # The result continues straight; side outputs are placed below.
        for name in sorted(
            _nodes_in_column(columns, column), key=lambda name: (middles[name], name in _side_sinks(graph))
        ):
            tops[name] = max(middles[name] - sizes[name][1] / 2, bottom)
            bottom = tops[name] + sizes[name][1] + GAP_DOWN
    return _wrap_columns(columns, tops, sizes)


def _wrap_columns(columns: Mapping[str, int], tops: Mapping[str, float], sizes: Sizes) -> dict[str, BoxPlace]:
    """The places of boxes in these columns; a drawing that is too wide continues below, from the left."""
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
    """The sinks of side outputs."""
    steps = {node.id: node.step for node in graph.nodes}
    return frozenset(e.end for e in graph.edges if any(steps[e.end] is sink for sink in steps[e.start].side_outputs))


def _columns(graph: Topology) -> dict[str, int]:
    """The column of every node, from 0: results as early as possible, others right before the nodes they feed."""
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
    """The height of the middle of every box: sources below each other, the others between their inputs."""
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


MARGIN, PADDING, BAR = 24.0, 12.0, 4.0
HEADING, KIND, TITLE, LINE = 16.0, 9.0, 13.0, 11.0
"""Font sizes: of a query's heading, the kind of a step, its title, and its facts."""
MOST_WIDTH, MOST_LINES = 240.0, 10

_FIRST = (
    "writes", "keys", "bounds", "kept", "version", "windows", "ports", "rows", "group by", "aggregates", "columns",
    "filter",
)  # fmt: skip
"""The facts that are shown first, as there is no room for all; the rest is in the tooltip."""

_UNSAID = frozenset({"operator", "why", "shards", "read", "not read"})
"""Facts that only readers who look for reasons need: they are shown under the pointer."""

_STYLE = """
text { font-family: Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #1f2328 }
.ground { fill: #ffffff } .box { fill: #f6f8fa; stroke: #afb8c1 }
.edge { fill: none; stroke: #818b98; stroke-width: 1.5 }
.head { fill: #818b98 } .kind { fill: #59636e } .line { fill: #424a53 }
.bar { fill: #818b98 } .source .bar, .union .bar, .view .bar { fill: #0969da } .join .bar, .group .bar { fill: #8250df }
.filter .bar, .lateral .bar { fill: #bf8700 } .repartition .bar, .table .bar { fill: #cf222e }
.project .bar, .sink .bar { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .ground { fill: #0d1117 } .box { fill: #161b22; stroke: #3d444d } .edge { stroke: #9198a1 }
.head { fill: #9198a1 } .kind { fill: #9198a1 } .line { fill: #c9d1d9 }
}
""".strip()


@dataclass(frozen=True)
class CardLine:
    """A line of a box: how large, in which class, and how far below the one before."""

    text: str
    size: float
    style: str
    down: float


@dataclass(frozen=True)
class Card:
    """The content of a node's box, and its size."""

    node: Node
    texts: tuple[CardLine, ...]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the box."""
        width = max(text_width(text.text, text.size) for text in self.texts)
        return round(width + 2 * PADDING + BAR, 1), sum(text.down for text in self.texts) + 2 * PADDING


def card_of(node: Node) -> Card:
    """The box of a node: the kind of the step, its title and the first lines of its facts."""
    title = wrap_text(node.step.title, TITLE, MOST_WIDTH)
    shown: list[str] = []
    facts = [_fact_lines(node.step, fact) for fact in _rank_facts(node.step)]
    for lines in facts:
        if len(shown) + len(lines) > MOST_LINES and shown:
            shown.append("…")
            break
        shown += lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "…"]
    return Card(
        node,
        (
            CardLine(node.step.kind.upper(), KIND, "kind", KIND),
            *(CardLine(line, TITLE, "title", TITLE + 5) for line in title),
            *(CardLine(line, LINE, "line", LINE + 4) for line in shown),
        ),
    )


def _rank_facts(step: PlanStep) -> list[Fact]:
    rank = {label: place for place, label in enumerate(_FIRST)}
    facts = [fact for fact in drop_empty_facts(step.facts) if fact[0] not in _UNSAID]
    return sorted(facts, key=lambda fact: rank.get(fact[0], len(_FIRST)))


def _fact_lines(step: PlanStep, fact: Fact) -> list[str]:
    label, lines = fact
    # The columns of a result are lined up for the tree.
    texts = [re.sub(r"  +", " ", line) for line in lines]
    is_plain = label in (step.kind, "where") or (label == "columns" and step.kind == "project")
    return [
        part
        for number, line in enumerate(texts)
        for part in wrap_text(line if is_plain or number else f"{label}: {line}", LINE, MOST_WIDTH)
    ]


def draw(graphs: Sequence[Topology]) -> str:
    """The graphs of a script's queries, one below the other, as the text of an SVG file.

    >>> from watersmeet.tools.explain.topology import Edge
    >>> nodes = (Node("source1", PlanStep("source", "orders")), Node("sink1", PlanStep("sink", "INSERT INTO joined")))
    >>> text = draw([Topology("INSERT INTO joined", nodes, (Edge("source1", "sink1"),))])
    >>> text.startswith("<svg "), text.count('class="box"'), text.count('class="edge"')
    (True, 2, 1)
    """
    parts: list[str] = []
    width, top = 0.0, MARGIN
    for graph in sketch(graphs):
        heading = wrap_text(graph.title, HEADING, 4 * MOST_WIDTH)
        for line in heading:
            top += HEADING
            parts.append(_text(line, MARGIN, top, HEADING, "heading"))
            top += HEADING
            width = max(width, text_width(line, HEADING))
        drawn, (wide, high) = _graph(graph, MARGIN, top)
        parts += drawn
        width, top = max(width, wide), top + high + 2 * MARGIN
    size = (width + 2 * MARGIN, top - MARGIN)
    return "\n".join([*_svg_head(*size, [graph.title for graph in graphs]), *parts, "</svg>", ""])


def _svg_head(width: float, height: float, titles: Sequence[str]) -> list[str]:
    box = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    arrow = '<path class="head" d="M 0 0 L 8 4 L 0 8 z"/>'
    marker = f'<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto" markerUnits="userSpaceOnUse">{arrow}</marker>'  # noqa: E501 - one element
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">',
        f"<title>{_xml('; '.join(titles))}</title>",
        f"<style>\n{_STYLE}\n</style>",
        f"<defs>{marker}</defs>",
        f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>',
    ]


def _graph(graph: Topology, left: float, top: float) -> tuple[list[str], tuple[float, float]]:
    """The elements of one graph from that corner on, and how wide and high it is."""
    cards = {node.id: card_of(node) for node in graph.nodes}
    places = layout(graph, {name: card.size for name, card in cards.items()})
    moved = {name: BoxPlace(place.x + left, place.y + top, place.width, place.height) for name, place in places.items()}
    edges = [_edge(moved[edge.start], moved[edge.end]) for edge in graph.edges]
    boxes = [element for name, card in cards.items() for element in _box(card, moved[name])]
    size = (max(p.x + p.width for p in places.values()), max(p.y + p.height for p in places.values()))
    return [*edges, *boxes], size


def _edge(start: BoxPlace, end: BoxPlace) -> str:
    x, y, to_x, to_y = start.x + start.width, start.middle, end.x, end.middle
    if to_x <= x:
        # On the next row: below this one, and from the left.
        lane = end.y - GAP_DOWN if end.y > start.y + start.height else max(start.y + start.height, to_y) + GAP_DOWN
        path = (
            f"M {x:.1f} {y:.1f} h {GAP_DOWN / 2:.1f} V {lane:.1f} H {to_x - GAP_DOWN / 2:.1f} V {to_y:.1f} H {to_x:.1f}"
        )
        return f'<path class="edge" marker-end="url(#head)" d="{path}"/>'
    bend = (to_x - x) / 2
    path = f"M {x:.1f} {y:.1f} C {x + bend:.1f} {y:.1f} {to_x - bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path class="edge" marker-end="url(#head)" d="{path}"/>'


def _box(card: Card, place: BoxPlace) -> list[str]:
    corner = f'x="{place.x:.1f}" y="{place.y:.1f}"'
    texts: list[str] = []
    down = place.y + PADDING
    for text in card.texts:
        down += text.down
        texts.append(_text(text.text, place.x + BAR + PADDING, down, text.size, text.style))
    whole = [f"{label}: {line}" for label, lines in drop_empty_facts(card.node.step.facts) for line in lines]
    return [
        f'<g class="{card.node.step.kind}" id="{_xml(card.node.id)}">',
        f"<title>{_xml(chr(10).join([card.node.step.title or card.node.step.kind, *whole]))}</title>",
        f'<rect class="box" {corner} width="{place.width:.1f}" height="{place.height:.1f}" rx="4"/>',
        f'<rect class="bar" {corner} width="{BAR:.1f}" height="{place.height:.1f}"/>',
        *texts,
        "</g>",
    ]


def _text(text: str, x: float, y: float, size: float, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}">{_xml(text)}</text>'


def _xml(text: str) -> str:
    """Text as XML has it; characters that no XML may hold are replaced."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
