"""Explains a query with its physical plan: operator, exchange and reasons; notebooks show it as a drawing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape

from watersmeet.formats import source_format
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, AnalyzedTop, expand_group
from watersmeet.logical.relation import AnalyzedLeaf, AnalyzedScan, ConditionalJoin
from watersmeet.logical.words import Fact, expression_in_words, word
from watersmeet.operators.explainer import Families
from watersmeet.physical.columnar import is_columnar, sources_of_columns
from watersmeet.physical.identity import digest
from watersmeet.physical.nodes import (
    SHARDS,
    JoinPlan,
    PortPlan,
    QueryPlan,
    RelationPlan,
    StaticJoinPlan,
    join_name,
    join_plans,
    view_plans,
)
from watersmeet.tools.explain.query import PlanDetails, Stateful, query_topology, render_query
from watersmeet.tools.explain.svg import draw
from watersmeet.tools.explain.topology import Topology


def render(query: AnalyzedQuery, plan: QueryPlan, families: Families) -> str:
    """The plan as a tree of text."""
    return render_query(query, plan_details(plan, families))


def plan_details(plan: QueryPlan, families: Families, shards: Sequence[str] = SHARDS) -> PlanDetails:
    """The details that a plan adds to the analysis of its query; ``shards``: the remark about them."""
    columns = dict(_columns_by_alias(plan.relation))
    read_as_columns = sources_of_columns(plan.relation)
    joins = join_plans(plan.relation)
    statics = [node for node in plan.relation.walk() if isinstance(node, StaticJoinPlan)]

    def find_join(stateful: Stateful) -> JoinPlan | None:
        return next((join for join in joins if join.analyzed is stateful), None)

    def remarks(stateful: Stateful) -> list[Fact]:
        join = find_join(stateful)
        static = next((plan for plan in statics if plan.analyzed is stateful), None)
        if static is not None:
            return [("operator", [static.why[0]])]
        if join is None:
            return []
        return [
            ("operator", join.why[:1]),
            ("why", [*join.why[1:], *_columnar_sources(join, read_as_columns)]),
            *_chain_facts(join),
        ]

    def read(leaf: AnalyzedLeaf) -> tuple[str, ...] | None:
        return columns.get(leaf.alias)

    def exchange(stateful: Stateful, port: int) -> str:
        join = find_join(stateful)
        return "" if join is None else _exchange(join, port)

    def operator(stateful: Stateful) -> str:
        join = find_join(stateful)
        return "" if join is None else names[id(join)]

    names = _operators(joins)
    is_spread = any(port.route != "one" for join in joins for port in join.ports)
    return PlanDetails(families, remarks, read, operator, exchange, shards if is_spread else ())


def _operators(joins: Sequence[JoinPlan]) -> dict[int, str]:
    """The name of each join in the metrics of a running query; of several with one name the later ones are numbered."""
    names: dict[int, str] = {}
    for join in sorted(joins, key=lambda join: (join_name(join), digest(join.identity)[:8])):
        name = join_name(join)
        same_named = sum(other == name or other.startswith(f"{name} (") for other in names.values())
        names[id(join)] = f"{name} ({same_named + 1})" if same_named else name
    return names


def _columns_by_alias(relation: RelationPlan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The columns that are asked for of every source and every view, by alias."""
    yield from ((view.alias, tuple(output.name for output in view.outputs)) for view in view_plans(relation))
    yield from ((scan.alias, scan.columns) for scan in relation.leaves)


def _columnar_sources(join: JoinPlan, read: frozenset[str]) -> list[str]:
    """Describe the sources that the workers read themselves."""
    own = [scan for port in join.ports if is_columnar(port) for scan in port.input.leaves]
    scans = [scan for scan in own if scan.source.name in read]
    if not scans:
        return []
    names = " and ".join(scan.alias for scan in scans)
    formats = " and ".join(dict.fromkeys(source_format(scan.source).title for scan in scans))
    remark = f"{names}: Python workers read the {formats} files as columns, because nothing before the join needs Spark"
    return [f"{remark}; Spark reads files whose values might differ"]


def _chain_facts(join: JoinPlan) -> list[Fact]:
    """With which join before it a join runs in one operator, or why not."""
    facts: list[Fact] = []
    for port in join.ports:
        before = join_plans(port.input)
        if port.is_chained:
            how = "in one operator: both have the same key, so rows stay in their shard and process"
            facts.append(("together", [f"with the join of {join_name(before[-1])}, {how}"]))
        elif port.unchained_reason:
            facts.append(("apart", [f"from the join of {join_name(before[-1])}: {port.unchained_reason}"]))
    return facts


def _exchange(join: JoinPlan, number: int) -> str:
    """The route of the rows of a port; nothing, if they stay."""
    port = join.ports[number]
    if port.is_chained:
        return ""
    match port.route:
        case "key":
            meaning = (
                "rows that can match are in one shard" if len(join.ports) > 1 else "one shard has all rows of a key"
            )
            return f"by {_keys(join, number)}, so that {meaning}"
        case "partition":
            return f"by {_keys(join, number)}, so that the rows of a partition stay together"
        case "time":
            meaning = (
                "so that equal times are in one shard" if {p.route for p in join.ports} == {"time"} else "to any shard"
            )
            return f"by {' and '.join(port.times)}, {meaning}"
        case "spread":
            return "by all columns, to any shard"
        case "all":
            return "to all shards, over which the other side is spread"
        case "one":
            return "all into one shard"


def _keys(join: JoinPlan, number: int) -> str:
    """The expressions of a port that decide about the shard."""
    port = join.ports[number]
    if port.shard_by:
        return ", ".join(_words(port, name) for name in port.shard_by)
    match join.analyzed:
        case AnalyzedGroup():
            is_session = join.analyzed.is_session
            by = (output for output in join.analyzed.by if not is_session or output.name != join.analyzed.window)
            keys = tuple(output.expr for output in by)
        case AnalyzedTop():
            keys = tuple(by.shown for by in join.analyzed.by)
        case AnalyzedQuery():
            keys = tuple(expand_group(expr, join.analyzed.group) for expr in join.analyzed.key)
        case AnalyzedScan():
            return ", ".join(word(name) for name in join.analyzed.source.primary_key) or "all columns"
        case _:
            assert isinstance(join.analyzed, ConditionalJoin)
            keys = tuple(pair[number] for pair in join.analyzed.keys)
    return ", ".join(expression_in_words(key) for key in keys)


def _words(port: PortPlan, name: str) -> str:
    computed = next((computed.expr for computed in port.computed if computed.name == name), None)
    return name if computed is None else expression_in_words(computed)


class Explanation(str):
    """The plans of queries, and the reasons, as a string; a notebook shows the drawing, with the text below it."""

    __slots__ = ("topologies",)
    topologies: tuple[Topology, ...]

    @classmethod
    def of(
        cls, queries: Sequence[tuple[AnalyzedQuery, QueryPlan]], families: Families, shards: Sequence[str] = SHARDS
    ) -> Explanation:
        """The explanation of queries with their plans; ``shards``: the remark about them."""
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
