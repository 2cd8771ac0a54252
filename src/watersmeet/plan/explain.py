"""A query that may run, as a tree of text for people and as JSON for machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from watersmeet.catalog import Amount
from watersmeet.duration import format_duration
from watersmeet.plan.analyzed import (
    AnalyzedJoin,
    AnalyzedQuery,
    AnalyzedRelation,
    AnalyzedScan,
    TimeBound,
    aliases,
)
from watersmeet.plan.expressions import Expr, Reference, quote

Remarks = Callable[[AnalyzedJoin], Sequence[tuple[str, str]]]
"""What else to say about a join, as pairs of a label and a line, such as its operator and why it was chosen."""

_STRENGTH = {"or": 1, "and": 2, "not": 3, "is_null": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "negate": 7}
_COMPARED = 4
_LEAF = 8


@dataclass(frozen=True)
class _Node:
    """A line of the tree: what it is about, what it says (further lines stand below) and what hangs on it."""

    label: str
    lines: tuple[str, ...] = ()
    children: tuple[_Node, ...] = ()


def render_query(query: AnalyzedQuery, remarks: Remarks = lambda join: ()) -> str:
    """The query as an indented tree: its columns, conditions, bounds, how long rows are kept, and its sources."""
    columns = _Node("columns", tuple(_output(output.name, output.expr) for output in query.outputs))
    where = _conditions("where", query.where)
    root = f"INSERT INTO {query.into}" if query.into else "SELECT"
    tree = _Node(root, (), (columns, *where, _relation_node(query, query.relation, remarks)))
    return "\n".join([root, *_draw(tree.children, "")])


def query_as_json(query: AnalyzedQuery, remarks: Remarks = lambda join: ()) -> dict[str, object]:
    """The query for machines; `render_query` says the same."""
    return {
        "into": query.into,
        "columns": [{"name": output.name, "expression": expression_in_words(output.expr)} for output in query.outputs],
        "where": _texts(query.where),
        "relation": _relation_json(query, query.relation, remarks),
        "warnings": [warned.message for warned in query.warnings],
    }


def amount_in_words(amount: Amount) -> str:
    """An amount of time as people read it.

    >>> amount_in_words(Amount(5_000_000, is_interval=True)), amount_in_words(Amount(5, is_interval=False))
    ('5 s', '5')
    """
    return format_duration(amount.value) if amount.is_interval else str(amount.value)


def expression_in_words(expr: Expr) -> str:
    """An expression as people write it: no brackets or backticks that are not needed.

    >>> from watersmeet.plan.expressions import column
    >>> later = Expr("+", (column(("d", "t")), Expr("literal", text="5")))
    >>> expression_in_words(Expr(">=", (column(("o", "t")), later)))
    'o.t >= d.t + 5'
    """
    if not expr.args:
        return expr.map_references(_flattened).sql(lambda ref: ref.name)
    if expr.op == "not" and expr.args[0].op == "is_null":
        return f"{_bracketed(expr.args[0].args[0], _COMPARED + 1)} IS NOT NULL"
    own = _STRENGTH.get(expr.op, _COMPARED)
    # Operators of one strength are read from the left, so what stands on the right keeps its brackets.
    texts = [_bracketed(arg, own + (i > 0 and own >= _COMPARED)) for i, arg in enumerate(expr.args)]
    match expr.op:
        case "not":
            return f"NOT {texts[0]}"
        case "negate":
            # Two signs side by side would begin a comment.
            return f"-{_bracketed(expr.args[0], _LEAF)}"
        case "is_null":
            return f"{_bracketed(expr.args[0], _COMPARED + 1)} IS NULL"
        case _:
            return f" {expr.op.upper()} ".join(texts)


def _bracketed(expr: Expr, needed: int) -> str:
    strength = _STRENGTH.get(expr.op, _COMPARED) if expr.args else _LEAF
    text = expression_in_words(expr)
    return f"({text})" if strength < needed else text


def _flattened(ref: Reference) -> Reference:
    parts = (ref.source, ref.name, *ref.path) if ref.source else ref.parts
    return replace(ref, name=".".join(_word(part) for part in parts), path=())


def _word(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else quote(name)


def _output(name: str, expr: Expr) -> str:
    text = expression_in_words(expr)
    is_plain = expr.op == "column" and text.split(".")[-1] == _word(name)
    return text if is_plain else f"{text} AS {_word(name)}"


def _relation_node(query: AnalyzedQuery, relation: AnalyzedRelation, remarks: Remarks) -> _Node:
    if isinstance(relation, AnalyzedScan):
        return _scan_node(relation)
    sides = (_relation_node(query, side, remarks) for side in (relation.left, relation.right))
    names = _names(query.relation)
    children = (
        *(_Node(label, (line,)) for label, line in remarks(relation)),
        *_lines("keys", [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in relation.keys]),
        *_lines("bounds", [_bound(query, relation, bound) for bound in relation.bounds]),
        *_lines("kept", _kept(query, relation, names)),
        *_conditions("left only", relation.left_only, _failing(relation, "left")),
        *_conditions("right only", relation.right_only, _failing(relation, "right")),
        *_conditions("also", relation.residual),
        *sides,
    )
    return _Node(f"{relation.kind.upper()} JOIN", (), children)


def _scan_node(scan: AnalyzedScan) -> _Node:
    source = scan.source
    marks = [f"{mark.column} - {amount_in_words(mark.lag)}" for mark in source.watermarks]
    children = (
        *_lines("columns", [", ".join(f"{_word(f.name)} {f.type}" for f in source.fields)]),
        *_lines("watermark", marks),
        *_conditions("filter", scan.filters, "moved here from WHERE"),
    )
    renamed = "" if scan.alias == source.name else f" AS {scan.alias}"
    read = f" from {source.format}" if source.format else ""
    return _Node(f"{source.kind} {source.name}{renamed}{read}", (), children)


def _lines(label: str, lines: Sequence[str]) -> tuple[_Node, ...]:
    return (_Node(label, tuple(lines)),) if lines else ()


def _conditions(label: str, parts: tuple[Expr, ...], remark: str = "") -> tuple[_Node, ...]:
    shown = [f"{text} ({remark})" if remark else text for text in _texts(parts)]
    return _lines(label, shown)


def _texts(parts: tuple[Expr, ...]) -> list[str]:
    return [expression_in_words(part) for part in parts]


def _failing(join: AnalyzedJoin, side: str) -> str:
    return f"a {side} row that fails is {'padded at once' if join.kind in (side, 'full') else 'dropped'}"


def _bound(query: AnalyzedQuery, join: AnalyzedJoin, bound: TimeBound) -> str:
    """The bound with the right side's time first, as one writes BETWEEN."""
    if bound.column.alias in aliases(join.left):
        distance = _distance(query, bound, bound.constant)
        return f"{bound.other} {'<' if bound.strict else '<='} {bound.column}{distance}"
    distance = _distance(query, bound, -bound.constant)
    return f"{bound.column} {'>' if bound.strict else '>='} {bound.other}{distance}"


def _kept(query: AnalyzedQuery, join: AnalyzedJoin, names: dict[str, str]) -> list[str]:
    lines: list[str] = []
    for side in (join.left, join.right):
        own = [bound for bound in join.bounds if bound.column.alias in aliases(side)]
        limits = [f"that of {b.other} passes {b.column}{_distance(query, b, b.constant)}" for b in own]
        if limits:
            who = " with ".join(names[alias] for alias in aliases(side))
            until = " or ".join(limits).replace("that of", "the watermark of", 1)
            lines.append(f"{who} rows are kept until {until}")
    return lines


def _distance(query: AnalyzedQuery, bound: TimeBound, constant: int) -> str:
    if constant == 0:
        return ""
    scan = next(scan for scan in _scans(query.relation) if scan.alias == bound.column.alias)
    mark = scan.source.watermark(bound.column.name)
    is_interval = mark is None or mark.lag.is_interval
    return f" {'+' if constant > 0 else '-'} {amount_in_words(Amount(abs(constant), is_interval))}"


def _names(relation: AnalyzedRelation) -> dict[str, str]:
    """What to call the rows of each alias: by their source, or by the alias where a source occurs twice."""
    scans = _scans(relation)
    names = [scan.source.name for scan in scans]
    return {scan.alias: scan.alias if names.count(scan.source.name) > 1 else scan.source.name for scan in scans}


def _scans(relation: AnalyzedRelation) -> list[AnalyzedScan]:
    if isinstance(relation, AnalyzedScan):
        return [relation]
    return _scans(relation.left) + _scans(relation.right)


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
        source = relation.source
        return {
            "scan": source.name,
            "alias": relation.alias,
            "kind": source.kind,
            "format": source.format,
            "columns": [{"name": field.name, "type": field.type} for field in source.fields],
            "watermarks": [{"column": mark.column, "lag": amount_in_words(mark.lag)} for mark in source.watermarks],
            "filters": _texts(relation.filters),
        }
    return {
        "join": relation.kind,
        "remarks": dict(remarks(relation)),
        "keys": [[expression_in_words(a), expression_in_words(b)] for a, b in relation.keys],
        "bounds": [_bound_json(bound) for bound in relation.bounds],
        "kept": _kept(query, relation, _names(query.relation)),
        "left_only": _texts(relation.left_only),
        "right_only": _texts(relation.right_only),
        "residual": _texts(relation.residual),
        "left": _relation_json(query, relation.left, remarks),
        "right": _relation_json(query, relation.right, remarks),
    }


def _bound_json(bound: TimeBound) -> dict[str, object]:
    column, other = str(bound.column), str(bound.other)
    return {"column": column, "other": other, "constant": bound.constant, "strict": bound.strict}
