"""What a script asks for, as it was read: before any name is looked up and any bound is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from watersmeet.explanation.family import Families, JoinExplainer, ParsedSection, explainers, facts_as_data
from watersmeet.explanation.topology import (
    PlanBlock,
    PlanStep,
    StepKind,
    Topology,
    block_as_json,
    topology,
    topology_as_json,
    tree,
)
from watersmeet.formats.malformed import SHOWN
from watersmeet.plan.expressions import conjuncts
from watersmeet.plan.facts import Fact, condition_facts, is_unnamed, texts
from watersmeet.plan.nodes import (
    Clause,
    Item,
    Join,
    Lateral,
    Query,
    Relation,
    Scan,
    Script,
    Star,
    Union,
    View,
)
from watersmeet.plan.words import amount_in_words, expression_in_words, kind_in_words, word


@dataclass(frozen=True)
class _Context:
    """What the families say, and the views that only one query can name, by their names in small letters."""

    families: tuple[JoinExplainer[Any], ...]
    views: Mapping[str, View] = field(default_factory=dict[str, View])

    def of_source(self, clause: Clause | None) -> tuple[Fact, ...]:
        return tuple(fact for family in self.families for fact in family.parsed_source_facts(clause))

    def of_join(self, clauses: tuple[Clause, ...]) -> tuple[Fact, ...]:
        return tuple(fact for family in self.families for fact in family.parsed_join_facts(clauses))

    def of_family(self, join: Relation) -> ParsedSection:
        return next(parsed for family in self.families if (parsed := family.parsed(join)) is not None)


def script_blocks(script: Script, families: Families) -> tuple[PlanBlock, ...]:
    """What every view and every query of a script asks for."""
    context = _Context(explainers(families))
    views = (_query(view.query, f"VIEW {word(view.name)}", context) for view in script.views)
    return (*views, *(_query(query, _heading(query), context) for query in script.queries))


def render_script(script: Script, families: Families) -> str:
    """What a script asks for, as trees of text.

    >>> script = Script("s", "", queries=(Query(Scan("orders", "o"), (Star(),)),))
    >>> print(render_script(script, {}))
    SELECT
    ├─ columns  *
    └─ orders AS o
    """
    return "\n\n".join(tree(block) for block in script_blocks(script, families))


def script_as_json(script: Script, families: Families) -> list[dict[str, object]]:
    """What a script asks for, for machines."""
    return [
        {**block_as_json(block), "topology": topology_as_json(topology(block))}
        for block in script_blocks(script, families)
    ]


def script_topologies(script: Script, families: Families) -> list[Topology]:
    """What a script asks for, as graphs."""
    return [topology(block) for block in script_blocks(script, families)]


def _heading(query: Query) -> str:
    select = "SELECT" if query.result is None else f"SELECT {query.result.upper()}"
    select += " DISTINCT" if query.is_distinct else ""
    return f"INSERT INTO {word(query.into)}" if query.into else select


def _query(query: Query, heading: str, around: _Context) -> PlanBlock:
    """A query; ``around`` has the views of the queries around it, beside which it has its own."""
    facts = _query_facts(query)
    steps = (
        *((PlanStep("filter", facts=facts[1:2]),) if query.where is not None else ()),
        *((PlanStep("group", facts=facts[2:4]),) if query.group_by else ()),
        PlanStep("project", facts=facts[:1]),
        PlanStep("sink", heading, facts[4:], {"asks": heading, **facts_as_data(facts)}),
    )
    visible = replace(around, views={**around.views, **{view.name.lower(): view for view in query.views}})
    return PlanBlock(heading, steps, (_relation(query.relation, visible),), "input")


def _query_facts(query: Query) -> tuple[Fact, ...]:
    alone = [
        (side_output.of.split(), side_output.sink)
        for side_output in query.side_outputs
        if side_output.of.startswith("UNMATCHED")
    ]
    malformed = [side_output.sink for side_output in query.side_outputs if side_output.column == SHOWN]
    parts = [side_output.sink for side_output in query.side_outputs if side_output.is_instead]
    store = query.store
    return (
        ("columns", [_item(item) for item in query.items]),
        ("where", texts(conjuncts(query.where))),
        ("group by", texts(query.group_by)),
        ("having", texts(conjuncts(query.having))),
        ("order by", [f"{expression_in_words(by.expr)}{' descending' * by.descending}" for by in query.order]),
        ("limit", [] if query.limit is None else [str(query.limit)]),
        ("result", [f"a {query.result}"] if query.into and query.result else []),
        ("store", [f"key as {store.key or 'it is'}, value as {store.value or 'it is'}"] if store else []),
        ("late rows", [f"into {query.late_into}"] if query.late_into else []),
        ("malformed rows", [f"into {sink}" for sink in malformed]),
        ("unmatched", [f"{of[-1].lower()} into {sink}" for of, sink in alone]),
        ("ports", [f"into {', '.join(parts)}"] if parts else []),
    )


def _item(item: Item | Star) -> str:
    if isinstance(item, Star):
        return "*" if item.alias is None else f"{word(item.alias)}.*"
    text = expression_in_words(item.expr)
    return text if item.name is None else f"{text} AS {word(item.name)}"


def _relation(relation: Relation, context: _Context) -> PlanBlock:
    match relation:
        case Scan():
            return _scan(relation, context)
        case Union():
            heading = f"union AS {word(relation.alias)}"
            parts = (_scan(scan, context) for scan in relation.scans)
            return _block("union", heading, context.of_source(relation.clause), *parts)
        case Lateral():
            array = expression_in_words(relation.array)
            is_windows = relation.array.op == "windows"
            heading = f"windows {array}" if is_windows else f"LATERAL {array} AS {word(relation.alias)}"
            return _block("lateral", heading, (), _relation(relation.input, context))
        case Join():
            named = [f"{relation.operator} join, as the plan says"] if relation.operator is not None else []
            heading = f"{kind_in_words(relation.kind)} JOIN"
            facts = (*condition_facts(relation), *context.of_join(relation.clauses), ("operator", named))
        case _:
            heading, facts = context.of_family(relation)
    return _block("join", heading, facts, *(_relation(side, context) for side in relation.inputs))


def _scan(scan: Scan, context: _Context) -> PlanBlock:
    watermarks = [f"{word(watermark.column)} - {amount_in_words(watermark.lag)}" for watermark in scan.watermarks]
    facts = (("watermark", watermarks), *context.of_source(scan.clause))
    view = context.views.get(scan.source.lower())
    if view is None:
        renamed = "" if scan.alias == scan.source else f" AS {word(scan.alias)}"
        return _block("source", f"{word(scan.source)}{renamed}", facts)
    # A view sees those before it, so that one that names itself means a source.
    earlier = {name: earlier_view for name, earlier_view in context.views.items() if name != scan.source.lower()}
    renamed = "" if scan.alias == view.name else f" AS {word(scan.alias)}"
    heading = f"subquery AS {word(scan.alias)}" if is_unnamed(view.name) else f"view {word(view.name)}{renamed}"
    inner = _query(view.query, heading, replace(context, views=earlier))
    *before, last = inner.steps
    return replace(inner, steps=(*before, replace(last, kind="view", facts=(*last.facts, *facts))))


def _block(kind: StepKind, heading: str, facts: tuple[Fact, ...], *inputs: PlanBlock) -> PlanBlock:
    return PlanBlock(heading, (PlanStep(kind, heading, facts, {kind: heading, **facts_as_data(facts)}),), inputs)
