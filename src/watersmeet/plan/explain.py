"""A query that may run, as a tree of text for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watersmeet.catalog import Source, Watermark
from watersmeet.duration import format_duration
from watersmeet.plan.analyzed import (
    AnalyzedAsofJoin,
    AnalyzedJoin,
    AnalyzedQuery,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedSyncJoin,
    AnalyzedWindowJoin,
    AnyJoin,
    TimeBound,
    inputs,
    scans,
)
from watersmeet.plan.explain_families import asof_facts, sync_facts, window_facts
from watersmeet.plan.explain_interval import emitted, interval_facts, kept
from watersmeet.plan.expressions import Expr
from watersmeet.plan.facts import Fact, conditions, texts
from watersmeet.plan.words import amount_in_words, expression_in_words, kind_in_words, word

__all__ = ["Remarks", "amount_in_words", "expression_in_words", "query_as_json", "render_query"]

Remarks = Callable[[AnyJoin], Sequence[tuple[str, str]]]
"""What else to say about a join, as pairs of a label and a line, such as its operator and why it was chosen."""


@dataclass(frozen=True)
class _Node:
    """A line of the tree: what it is about, what it says (further lines stand below) and what hangs on it."""

    label: str
    lines: tuple[str, ...] = ()
    children: tuple[_Node, ...] = ()


def render_query(query: AnalyzedQuery, remarks: Remarks = lambda join: ()) -> str:
    """The query as an indented tree: its columns, conditions, bounds, how long rows are kept, and its sources."""
    columns = _Node("columns", tuple(_output(output.name, output.expr) for output in query.outputs))
    where = _nodes([conditions("where", query.where)])
    late = _lines("late rows", [f"into {query.late_into}"] if query.late_into else [])
    names = [scan.alias for scan in scans(query.relation)]
    ports = _lines("ports", [f"{name} into {sink}" for name, sink in zip(names, query.ports_into, strict=False)])
    root = f"INSERT INTO {query.into}" if query.into else "SELECT"
    tree = _Node(root, (), (columns, *where, *late, *ports, _relation_node(query, query.relation, remarks)))
    return "\n".join([root, *_draw(tree.children, "")])


def query_as_json(query: AnalyzedQuery, remarks: Remarks = lambda join: ()) -> dict[str, object]:
    """The query for machines; `render_query` says the same."""
    return {
        "into": query.into,
        "late_into": query.late_into,
        "unmatched_into": list(query.unmatched_into),
        "ports_into": list(query.ports_into),
        "columns": [{"name": output.name, "expression": expression_in_words(output.expr)} for output in query.outputs],
        "where": texts(query.where),
        "relation": _relation_json(query, query.relation, remarks),
        "warnings": [warned.message for warned in query.warnings],
    }


def _output(name: str, expr: Expr) -> str:
    text = expression_in_words(expr)
    is_plain = expr.op == "column" and text.split(".")[-1] == word(name)
    return text if is_plain else f"{text} AS {word(name)}"


def _relation_node(query: AnalyzedQuery, relation: AnalyzedRelation, remarks: Remarks) -> _Node:
    if isinstance(relation, AnalyzedScan):
        return _scan_node(relation)
    facts = _facts(query, relation)
    children = (
        *(_Node(label, (line,)) for label, line in remarks(relation)),
        *_nodes(facts),
        *(_relation_node(query, side, remarks) for side in inputs(relation)),
    )
    return _Node(_heading(relation), (), children)


def _heading(join: AnyJoin) -> str:
    match join:
        case AnalyzedSyncJoin():
            return "SYNC JOIN"
        case AnalyzedAsofJoin():
            return "ASOF JOIN" if join.kind == "inner" else f"{kind_in_words(join.kind)} ASOF JOIN"
        case AnalyzedWindowJoin():
            return f"{kind_in_words(join.kind)} JOIN of windows"
        case AnalyzedJoin():
            return f"{kind_in_words(join.kind)} JOIN"


def _facts(query: AnalyzedQuery, join: AnyJoin) -> list[Fact]:
    names = _names(query.relation)
    match join:
        case AnalyzedSyncJoin():
            return sync_facts(join)
        case AnalyzedAsofJoin():
            return asof_facts(join, names)
        case AnalyzedWindowJoin():
            return window_facts(query, join, names)
        case AnalyzedJoin():
            return interval_facts(query, join, names)


def _scan_node(scan: AnalyzedScan) -> _Node:
    source = scan.source
    children = (
        *_source_lines(source),
        *_nodes(
            [
                conditions("heartbeat", (scan.heartbeat,) if scan.heartbeat else (), "advances time, is no row"),
                conditions("filter", scan.filters, "moved here from WHERE"),
            ]
        ),
    )
    if scan.parts:
        parts = tuple(_Node(_read(part), (), _source_lines(part)) for part in scan.parts)
        return _Node(f"union AS {scan.alias}", (), (*children, *parts))
    renamed = "" if scan.alias == source.name else f" AS {scan.alias}"
    return _Node(_read(source, renamed), (), children)


def _read(source: Source, renamed: str = "") -> str:
    read = f" from {source.format}" if source.format else ""
    return f"{source.kind} {source.name}{renamed}{read}"


def _source_lines(source: Source) -> tuple[_Node, ...]:
    columns = ", ".join(f"{word(f.name)} {f.type}" for f in source.fields)
    return (
        *_lines("columns", [columns]),
        *_lines("key", [", ".join(word(name) for name in source.primary_key)] if source.primary_key else []),
        *_lines("watermark", [_mark(mark) for mark in source.watermarks]),
        *_lines("order", [word(source.order)] if source.order is not None else []),
    )


def _mark(mark: Watermark) -> str:
    idle = "" if mark.idle is None else f", idle after {format_duration(mark.idle)}"
    return f"{mark.column} - {amount_in_words(mark.lag)}{idle}"


def _lines(label: str, lines: Sequence[str]) -> tuple[_Node, ...]:
    return (_Node(label, tuple(lines)),) if lines else ()


def _nodes(facts: Sequence[Fact]) -> tuple[_Node, ...]:
    return tuple(node for label, lines in facts for node in _lines(label, lines))


def _names(relation: AnalyzedRelation) -> dict[str, str]:
    """What to call the rows of each alias: by their source, or by the alias where a source occurs twice."""
    found = scans(relation)
    names = [scan.source.name for scan in found]
    return {scan.alias: scan.alias if names.count(scan.source.name) > 1 else scan.source.name for scan in found}


def _draw(nodes: Sequence[_Node], indent: str) -> list[str]:
    width = max((len(node.label) for node in nodes if node.lines), default=0)
    drawn: list[str] = []
    for i, node in enumerate(nodes):
        is_last = i == len(nodes) - 1
        below = indent + ("   " if is_last else "│  ")
        head = f"{indent}{'└─ ' if is_last else '├─ '}"
        first, *more = node.lines or ("",)
        drawn.append(f"{head}{node.label:<{width}}  {first}" if node.lines else f"{head}{node.label}")
        drawn += [f"{below}{'':<{width}}  {line}" for line in more]
        drawn += _draw(node.children, below)
    return drawn


def _relation_json(query: AnalyzedQuery, relation: AnalyzedRelation, remarks: Remarks) -> dict[str, object]:
    if isinstance(relation, AnalyzedScan):
        return {
            **_source_json(relation.source),
            "alias": relation.alias,
            "heartbeat": relation.heartbeat and expression_in_words(relation.heartbeat),
            "filters": texts(relation.filters),
            "parts": [_source_json(part) for part in relation.parts],
        }
    if not isinstance(relation, AnalyzedJoin):
        return {
            "join": _heading(relation),
            "remarks": dict(remarks(relation)),
            **{label.replace(" ", "_"): list(lines) for label, lines in _facts(query, relation)},
            "inputs": [_relation_json(query, side, remarks) for side in inputs(relation)],
        }
    names = _names(query.relation)
    return {
        "join": relation.kind,
        "remarks": dict(remarks(relation)),
        "keys": [[expression_in_words(a), expression_in_words(b)] for a, b in relation.keys],
        "bounds": [_bound_json(bound) for bound in relation.bounds],
        "kept": kept(query, relation, names),
        "emitted": emitted(relation, names),
        "left_only": texts(relation.left_only),
        "right_only": texts(relation.right_only),
        "residual": texts(relation.residual),
        "left": _relation_json(query, relation.left, remarks),
        "right": _relation_json(query, relation.right, remarks),
    }


def _source_json(source: Source) -> dict[str, object]:
    return {
        "scan": source.name,
        "kind": source.kind,
        "format": source.format,
        "columns": [{"name": field.name, "type": field.type} for field in source.fields],
        "order": source.order,
        "watermarks": [
            {
                "column": mark.column,
                "lag": amount_in_words(mark.lag),
                "idle": None if mark.idle is None else format_duration(mark.idle),
            }
            for mark in source.watermarks
        ],
    }


def _bound_json(bound: TimeBound) -> dict[str, object]:
    column, other = str(bound.column), str(bound.other)
    return {"column": column, "other": other, "constant": bound.constant, "strict": bound.strict}
