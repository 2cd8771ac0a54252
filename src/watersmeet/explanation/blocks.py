"""A query that may run, as a tree of text for people, as JSON for machines, and as a graph to be drawn."""

from __future__ import annotations

from watersmeet.explanation.query import Known, Stateful, query_block
from watersmeet.explanation.topology import Topology, block_as_json, topology, topology_as_json, tree
from watersmeet.plan.relation import AnalyzedQuery
from watersmeet.plan.words import amount_in_words, expression_in_words

__all__ = [
    "Known", "Stateful", "amount_in_words", "expression_in_words", "query_as_json", "query_topology", "render_query",
]  # fmt: skip


def render_query(query: AnalyzedQuery, known: Known) -> str:
    """The query as an indented tree: its columns, conditions, bounds, how long rows are kept, and its sources."""
    return tree(query_block(query, known))


def query_as_json(query: AnalyzedQuery, known: Known) -> dict[str, object]:
    """The query for machines; `render_query` says the same."""
    block = query_block(query, known)
    found = block_as_json(block)
    relation = found.pop("input")
    return {
        "into": query.into,
        "late_into": query.late_into,
        "unmatched_into": list(query.unmatched_into),
        "ports_into": list(query.ports_into),
        "where": [],
        "group": None,
        **found,
        "relation": relation,
        "warnings": [warned.message for warned in query.warnings],
        "topology": topology_as_json(topology(block)),
    }


def query_topology(query: AnalyzedQuery, known: Known) -> Topology:
    """The query as a graph, from the sources to the sinks."""
    return topology(query_block(query, known))
