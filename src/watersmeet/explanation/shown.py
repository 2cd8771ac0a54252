"""What explain says, as a text that notebooks show as a drawing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from watersmeet.explanation.family import Families
from watersmeet.explanation.physical import plan_details
from watersmeet.explanation.query import query_topology, render_query
from watersmeet.explanation.svg import draw
from watersmeet.explanation.topology import Topology
from watersmeet.physical.nodes import SHARDS, QueryPlan
from watersmeet.plan.query import AnalyzedQuery


class Explanation(str):
    """How queries would run, and why, as a string; a notebook shows the drawing, with the text below it."""

    __slots__ = ("topologies",)
    topologies: tuple[Topology, ...]

    @classmethod
    def of(
        cls, queries: Sequence[tuple[AnalyzedQuery, QueryPlan]], families: Families, shards: Sequence[str] = SHARDS
    ) -> Explanation:
        """The explanation of queries with their plans; ``shards``: what is said of them."""
        pairs = [(query, plan_details(plan, families, shards)) for query, plan in queries]
        explanation = cls("\n\n".join(render_query(query, details) for query, details in pairs))
        explanation.topologies = tuple(query_topology(query, details) for query, details in pairs)
        return explanation

    @property
    def svg(self) -> str:
        """The drawing."""
        return draw(self.topologies)

    def _repr_html_(self) -> str:
        # As an image: the styles of a drawing are for nothing else on the page.
        drawing = b64encode(self.svg.encode()).decode()
        image = f'<img alt="how the query would run" src="data:image/svg+xml;base64,{drawing}">'
        return f"{image}<details><summary>As text</summary><pre>{escape(self, quote=False)}</pre></details>"
