"""What a script asks for, as it was read: before any name is looked up and any bound is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watersmeet.catalog import Watermark
from watersmeet.explanation.topology import (
    Block,
    Step,
    StepKind,
    Topology,
    block_as_json,
    topology,
    topology_as_json,
    tree,
)
from watersmeet.families.asof.relation import AsofJoin
from watersmeet.families.sync.relation import SyncJoin
from watersmeet.families.window.relation import Pad, Window
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.facts import Fact, is_unnamed, padding_in_words, texts
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
    Values,
    View,
    Within,
)
from watersmeet.plan.words import amount_in_words, expression_in_words, kind_in_words, word

_Views = Mapping[str, View]
"""The views that only one query can name, by their names in small letters."""


def asked_blocks(script: Script) -> tuple[Block, ...]:
    """What every view and every query of a script asks for."""
    views = (_query(view.query, f"VIEW {word(view.name)}", {}) for view in script.views)
    return (*views, *(_query(query, _heading(query), {}) for query in script.queries))


def render_asked(script: Script) -> str:
    """What a script asks for, as trees of text.

    >>> script = Script("s", "", queries=(Query(Scan("orders", "o"), (Star(),)),))
    >>> print(render_asked(script))
    SELECT
    ├─ columns  *
    └─ orders AS o
    """
    return "\n\n".join(tree(block) for block in asked_blocks(script))


def asked_as_json(script: Script) -> list[dict[str, object]]:
    """What a script asks for, for machines."""
    return [{**block_as_json(block), "topology": topology_as_json(topology(block))} for block in asked_blocks(script)]


def asked_topologies(script: Script) -> list[Topology]:
    """What a script asks for, as graphs."""
    return [topology(block) for block in asked_blocks(script)]


def _heading(query: Query) -> str:
    select = "SELECT" if query.result is None else f"SELECT {query.result.upper()}"
    return f"INSERT INTO {word(query.into)}" if query.into else select


def _query(query: Query, heading: str, around: _Views) -> Block:
    """A query; ``around`` are the views of the queries around it, beside which it has its own."""
    facts = _query_facts(query)
    steps = (
        *((Step("filter", facts=facts[1:2]),) if query.where is not None else ()),
        *((Step("group", facts=facts[2:3]),) if query.group_by else ()),
        Step("project", facts=facts[:1]),
        Step("sink", heading, facts[3:], {"asks": heading, **_data(facts)}),
    )
    return Block(heading, steps, (_relation(query.relation, _visible(query, around)),), "input")


def _visible(query: Query, around: _Views) -> _Views:
    return {**around, **{view.name.lower(): view for view in query.views}}


def _query_facts(query: Query) -> tuple[Fact, ...]:
    alone = [(apart.of.split(), apart.sink) for apart in query.apart if not apart.is_instead]
    parts = [apart.sink for apart in query.apart if apart.is_instead]
    store = query.store
    return (
        ("columns", [_item(item) for item in query.items]),
        ("where", texts(conjuncts(query.where))),
        ("group by", texts(query.group_by)),
        ("result", [f"a {query.result}"] if query.into and query.result else []),
        ("store", [f"key as {store.key or 'it is'}, value as {store.value or 'it is'}"] if store else []),
        ("late rows", [f"into {query.late_into}"] if query.late_into else []),
        ("unmatched", [f"{of[-1].lower()} into {sink}" for of, sink in alone]),
        ("ports", [f"into {', '.join(parts)}"] if parts else []),
    )


def _item(item: Item | Star) -> str:
    if isinstance(item, Star):
        return "*" if item.alias is None else f"{word(item.alias)}.*"
    text = expression_in_words(item.expr)
    return text if item.name is None else f"{text} AS {word(item.name)}"


def _relation(relation: Relation, views: _Views) -> Block:
    match relation:
        case Scan():
            return _scan(relation, views)
        case Union():
            heading = f"union AS {word(relation.alias)}"
            parts = (_scan(scan, views) for scan in relation.scans)
            return _block("union", heading, (_window(relation.clause),), *parts)
        case Lateral():
            heading = f"LATERAL {expression_in_words(relation.array)} AS {word(relation.alias)}"
            return _block("lateral", heading, (), _relation(relation.input, views))
        case SyncJoin():
            return _block("join", "SYNC JOIN", (), *(_relation(port, views) for port in relation.inputs))
        case AsofJoin():
            heading, facts = f"{'LEFT ' if relation.kind == 'left' else ''}ASOF JOIN", _asof_facts(relation)
        case Join():
            heading, facts = f"{kind_in_words(relation.kind)} JOIN", _join_facts(relation)
        case _:
            raise AssertionError(f"{type(relation).__name__} is a relation that is not drawn")
    return _block("join", heading, facts, _relation(relation.left, views), _relation(relation.right, views))


def _scan(scan: Scan, views: _Views) -> Block:
    facts = (("watermark", [_mark(mark) for mark in scan.watermarks]), _window(scan.clause))
    view = views.get(scan.source.lower())
    if view is None:
        renamed = "" if scan.alias == scan.source else f" AS {word(scan.alias)}"
        return _block("source", f"{word(scan.source)}{renamed}", facts)
    # A view sees those before it, so that one that names itself means a source.
    earlier = {name: found for name, found in views.items() if name != scan.source.lower()}
    renamed = "" if scan.alias == view.name else f" AS {word(scan.alias)}"
    heading = f"subquery AS {word(scan.alias)}" if is_unnamed(view.name) else f"view {word(view.name)}{renamed}"
    inner = _query(view.query, heading, earlier)
    *before, last = inner.steps
    return replace(inner, steps=(*before, replace(last, kind="view", facts=(*last.facts, *facts))))


def _mark(mark: Watermark) -> str:
    return f"{word(mark.column)} - {amount_in_words(mark.lag)}"


def _block(kind: StepKind, heading: str, facts: tuple[Fact, ...], *inputs: Block) -> Block:
    return Block(heading, (Step(kind, heading, facts, {kind: heading, **_data(facts)}),), inputs)


def _join_facts(join: Join) -> tuple[Fact, ...]:
    pads = [f"{pad.side} with {padding_in_words(pad.values)}" for pad in join.clauses if isinstance(pad, Pad)]
    named = [f"{join.operator} join, as the plan says"] if join.operator is not None else []
    return (*_on(join.on, join.using, join.within), ("pad", pads), ("operator", named))


def _asof_facts(join: AsofJoin) -> tuple[Fact, ...]:
    asked = [("match", join.match), ("as of", join.as_of)]
    found = tuple((label, texts((expr,))) for label, expr in asked if expr is not None)
    return (*found, *_on(join.on, join.using, join.within), ("default", _values(join.defaults)))


def _values(values: Values) -> list[str]:
    return [padding_in_words(values)] if values else []


def _on(on: Expr | None, using: tuple[str, ...], within: Within | None) -> tuple[Fact, ...]:
    return (
        ("on", texts(conjuncts(on))),
        ("using", [", ".join(word(name) for name in using)] if using else []),
        ("within", [amount_in_words(within.amount)] if within else []),
    )


def _window(window: Clause | None) -> Fact:
    if not isinstance(window, Window):
        return "window", []
    column = f" {expression_in_words(window.column)}" if window.column is not None else ""
    parts = [f"{window.kind.upper()}{column} {amount_in_words(window.amount)}"]
    parts += [f"partition by {', '.join(texts(window.partition_by))}"] * bool(window.partition_by)
    parts += [] if window.limit is None else [f"{_limit(window.limit.kind)} {amount_in_words(window.limit.amount)}"]
    return "window", [", ".join(parts)]


def _limit(kind: str) -> str:
    return {"age": "PARTITION AGE", "partitions": "PARTITION COUNT", "rows": "TUPLE COUNT"}[kind]


def _data(facts: tuple[Fact, ...]) -> dict[str, object]:
    return {label.replace(" ", "_"): list(lines) for label, lines in facts}
