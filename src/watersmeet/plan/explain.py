"""A query that may run, as a tree of text for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.duration import format_duration
from watersmeet.plan.analyzed import (
    AnalyzedJoin,
    AnalyzedQuery,
    AnalyzedRelation,
    AnalyzedScan,
    TimeBound,
    aliases,
)
from watersmeet.plan.expressions import Expr
from watersmeet.plan.words import amount_in_words, expression_in_words, kind_in_words, word

__all__ = ["Remarks", "amount_in_words", "expression_in_words", "query_as_json", "render_query"]

Remarks = Callable[[AnalyzedJoin], Sequence[tuple[str, str]]]
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
    where = _conditions("where", query.where)
    late = _lines("late rows", [f"into {query.late_into}"] if query.late_into else [])
    root = f"INSERT INTO {query.into}" if query.into else "SELECT"
    tree = _Node(root, (), (columns, *where, *late, _relation_node(query, query.relation, remarks)))
    return "\n".join([root, *_draw(tree.children, "")])


def query_as_json(query: AnalyzedQuery, remarks: Remarks = lambda join: ()) -> dict[str, object]:
    """The query for machines; `render_query` says the same."""
    return {
        "into": query.into,
        "late_into": query.late_into,
        "columns": [{"name": output.name, "expression": expression_in_words(output.expr)} for output in query.outputs],
        "where": _texts(query.where),
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
    sides = (_relation_node(query, side, remarks) for side in (relation.left, relation.right))
    names = _names(query.relation)
    children = (
        *(_Node(label, (line,)) for label, line in remarks(relation)),
        *_lines("keys", [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in relation.keys]),
        *_lines("bounds", [_bound(query, relation, bound) for bound in relation.bounds]),
        *_lines("kept", _kept(query, relation, names)),
        *_lines("emitted", _emitted(relation, names)),
        *_conditions("left only", relation.left_only, _failing(relation, "left")),
        *_conditions("right only", relation.right_only, _failing(relation, "right")),
        *_conditions("also", relation.residual),
        *_lines("warning", _without_equality(relation)),
        *sides,
    )
    return _Node(f"{kind_in_words(relation.kind)} JOIN", (), children)


def _scan_node(scan: AnalyzedScan) -> _Node:
    source = scan.source
    children = (
        *_source_lines(source),
        *_conditions("heartbeat", (scan.heartbeat,) if scan.heartbeat else (), "advances time, is no row"),
        *_conditions("filter", scan.filters, "moved here from WHERE"),
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
    return (*_lines("columns", [columns]), *_lines("watermark", [_mark(mark) for mark in source.watermarks]))


def _mark(mark: Watermark) -> str:
    idle = "" if mark.idle is None else f", idle after {format_duration(mark.idle)}"
    return f"{mark.column} - {amount_in_words(mark.lag)}{idle}"


def _lines(label: str, lines: Sequence[str]) -> tuple[_Node, ...]:
    return (_Node(label, tuple(lines)),) if lines else ()


def _conditions(label: str, parts: tuple[Expr, ...], remark: str = "") -> tuple[_Node, ...]:
    shown = [f"{text} ({remark})" if remark else text for text in _texts(parts)]
    return _lines(label, shown)


def _texts(parts: tuple[Expr, ...]) -> list[str]:
    return [expression_in_words(part) for part in parts]


def _failing(join: AnalyzedJoin, side: str) -> str:
    if side == "left" and join.kind == "anti":
        return "a left row that fails is emitted at once"
    return f"a {side} row that fails is {'padded at once' if join.kind in (side, 'full') else 'dropped'}"


def _emitted(join: AnalyzedJoin, names: dict[str, str]) -> list[str]:
    """What comes out of a join that shows its left side only, and when."""
    who = " with ".join(names[alias] for alias in aliases(join.left))
    match join.kind:
        case "semi":
            return [f"each {who} row once, at its first match"]
        case "anti":
            return [f"each {who} row that never matched, when it expires"]
        case _:
            return []


def _without_equality(join: AnalyzedJoin) -> list[str]:
    """What an equality would save a join that has none."""
    if join.keys:
        return []
    example = _equality(join)
    return [
        "no equality: every row is compared with all rows of the other side that its bounds reach",
        f"an equality{f' such as {example}' if example else ''} would spread both sides over the shards",
        "and compare rows of one key only",
    ]


def _equality(join: AnalyzedJoin) -> str:
    """An equality of columns that have the same name and type on both sides and are no event times."""
    left, right = (
        {
            (field.name.lower(), field.type.upper()): f"{scan.alias}.{word(field.name)}"
            for scan in _scans(side)
            if scan.alias in aliases(side)
            for field in scan.source.fields
            if not scan.source.watermark(field.name)
        }
        for side in (join.left, join.right)
    )
    return next((f"{left[column]} = {right[column]}" for column in left if column in right), "")


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
        return {
            **_source_json(relation.source),
            "alias": relation.alias,
            "heartbeat": relation.heartbeat and expression_in_words(relation.heartbeat),
            "filters": _texts(relation.filters),
            "parts": [_source_json(part) for part in relation.parts],
        }
    names = _names(query.relation)
    return {
        "join": relation.kind,
        "remarks": dict(remarks(relation)),
        "keys": [[expression_in_words(a), expression_in_words(b)] for a, b in relation.keys],
        "bounds": [_bound_json(bound) for bound in relation.bounds],
        "kept": _kept(query, relation, names),
        "emitted": _emitted(relation, names),
        "left_only": _texts(relation.left_only),
        "right_only": _texts(relation.right_only),
        "residual": _texts(relation.residual),
        "left": _relation_json(query, relation.left, remarks),
        "right": _relation_json(query, relation.right, remarks),
    }


def _source_json(source: Source) -> dict[str, object]:
    return {
        "scan": source.name,
        "kind": source.kind,
        "format": source.format,
        "columns": [{"name": field.name, "type": field.type} for field in source.fields],
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
