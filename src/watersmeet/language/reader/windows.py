"""Windows of event time as other systems write them, in the words of Spark: ``window(t, '10 minutes')``.

As functions, TUMBLE(t, size), HOP(t, slide, size) and SESSION(t, gap) with TUMBLE_START and the like; as sources,
``TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), size))``, whose columns window_start and window_end a query groups by. Where
it does not, or where Spark has no such window (CUMULATE), the source is a subquery: each row once for every window that
it is in, with the bounds of that as further columns.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Amount
from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from watersmeet.errors import WatersmeetError
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.leaves import read_amount, starts_amount
from watersmeet.plan.expressions import Expr, Reference, column, quote
from watersmeet.plan.nodes import Item, Lateral, Query, Relation, Scan, Star, WindowFunction

FUNCTIONS = {
    f"{name}{field}": f").{field[1:].lower()}" if field else ")"
    for name in ("TUMBLE", "HOP", "SESSION")
    for field in ("", "_START", "_END")
}
"""The functions, each with what ends it in Spark's words."""
NOT_WINDOWS = {
    "CUMULATE": "write `FROM TABLE(CUMULATE(TABLE bids, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '1' HOUR))` and "
    "`GROUP BY window_start, window_end`.",
}
HINTS = {
    "TUMBLE": "write `TUMBLE(t, INTERVAL '10' MINUTES)`, for example.",
    "HOP": "write `HOP(t, INTERVAL '1' MINUTE, INTERVAL '10' MINUTES)`: the slide, then the size.",
    "SESSION": "write `SESSION(t, INTERVAL '5' MINUTES)`: the gap that ends a session.",
}
_UNITS = (
    (DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes"), (SECOND, "seconds"), (MILLISECOND, "milliseconds"),
    (1, "microseconds"),
)  # fmt: skip
IN_SPARK = {"SESSION": "session_window"}
"""The windows that are not called `window` there."""
_FIELDS = {"window_start": "start", "window_end": "end"}
_ELEMENT = "#window"
"""What the window of a row is called inside such a subquery; nobody else can write it."""


def is_grouped(relation: Relation, group_by: tuple[Expr, ...]) -> bool:
    """Whether a query groups a windowed source by windows that Spark has, or by sessions, which are groups only."""
    window = relation.window if isinstance(relation, Scan) else None
    if window is None or window.function == "CUMULATE":
        return False
    return window.function == "SESSION" or any(_field(expr) for expr in group_by)


def with_subqueries(cursor: Cursor, relation: Relation, group_by: tuple[Expr, ...]) -> Relation:
    """The relation with a subquery in the place of each windowed source; ``group_by`` is what its query groups by."""
    if not isinstance(relation, Scan):
        return relation.with_inputs([with_subqueries(cursor, side, ()) for side in relation.inputs])
    window = relation.window
    if window is None:
        return relation
    if window.function == "SESSION":
        hint = "group it in a view: a session is known after its last row, and joins cannot wait for that."
        raise cursor.refuse_unsupported("TABLE(SESSION(...)) in a join", hint)
    fields = {_field(expr) for expr in group_by}
    if window.function == "CUMULATE" and "start" in fields and "end" not in fields:
        raise _not_grouped(cursor, window, "window_end: a row is in several windows that begin at the same time")
    inner = replace(relation, alias=relation.source, window=None, clause=None)
    lengths = (Expr("interval", value=amount.value) for amount in reversed(window.lengths))
    array = Expr("windows", (column((inner.alias, window.column)), *lengths), window.function, span=window.span)
    bounds = (Item(column((_ELEMENT, _ELEMENT, field)), name) for name, field in _FIELDS.items())
    rows = Lateral(inner, array, _ELEMENT, window.span)
    name = cursor.add_subquery(Query(rows, (Star(inner.alias), *bounds), span=relation.span), relation.span)
    return Scan(name, relation.alias, relation.span, relation.clause)


def rewrite_window_functions(cursor: Cursor, first: int) -> dict[int, str]:
    """What stands in the place of tokens from ``first`` to the one last taken, if window functions are among them."""
    replacements, end = dict[int, str](), cursor.position
    for index in range(first, end):
        token = cursor.tokens[index]
        is_called = token.kind == "word" and cursor.tokens[index + 1].word == "("
        if is_called and token.word in NOT_WINDOWS and cursor.tokens[index - 1].word != ".":
            cursor.position = index
            raise cursor.refuse_unsupported(f"The window function {token.word}", NOT_WINDOWS[token.word])
        if is_called and token.word in FUNCTIONS:
            replacements |= _function(cursor, index, end)
    cursor.position = end
    return replacements


def _function(cursor: Cursor, index: int, end: int) -> dict[int, str]:
    word = cursor.tokens[index].word
    kind = word.split("_")[0]
    first = index + 2
    cursor.position = first
    while cursor.position < end and not cursor.at_any({",", ")"}):
        cursor.position += 1
    amounts, places = list[Amount](), list[range]()
    while cursor.at(",") and starts_amount(cursor, 1):
        cursor.position += 1
        begin = cursor.position
        amounts.append(read_amount(cursor))
        places.append(range(begin, cursor.position))
    if not cursor.at(")") or len(amounts) != (2 if kind == "HOP" else 1):
        expected = {"HOP": "a slide and a size", "SESSION": "a gap"}.get(kind, "a size")
        raise cursor.failure(expected, HINTS[kind])
    # Spark has the size first, then the slide.
    texts = [f"'{length(amount)}'" for amount in reversed(amounts)]
    replacements = {index: IN_SPARK.get(kind, "window"), cursor.position: FUNCTIONS[word]}
    for place, text in zip(places, texts, strict=True):
        replacements |= {i: text if i == place.start else "" for i in place}
    return replacements


def length(amount: Amount) -> str:
    """A length of time in Spark's words.

    >>> length(Amount(600_000_000, is_interval=True)), length(Amount(90_000_000, is_interval=True))
    ('10 minutes', '90 seconds')
    """
    size, unit = next((size, unit) for size, unit in _UNITS if amount.value % size == 0)
    return f"{amount.value // size} {unit}"


def rewrite_windowed_query(
    cursor: Cursor,
    scan: Scan,
    items: tuple[Item | Star, ...],
    group_by: tuple[Expr, ...],
    others: tuple[Expr | None, ...],
) -> tuple[tuple[Item | Star, ...], tuple[Expr, ...], tuple[Expr | None, ...]]:
    """SELECT, GROUP BY and other parts of a query over a windowed source, with its windows in Spark's words."""
    window = scan.window
    assert window is not None
    if not any(_field(expr) for expr in group_by):
        raise _not_grouped(cursor, window, "window_start")
    if window.function == "SESSION":
        _check_partition(cursor, window, group_by)
    shown = tuple(item if isinstance(item, Star) else _item(item, window) for item in items)
    by = [_window(window) if _field(expr) else expand_window_bounds(expr, window) for expr in group_by]
    once = tuple({expr.sql(lambda ref: ".".join(ref.parts)): expr for expr in by}.values())
    return shown, once, tuple(None if expr is None else expand_window_bounds(expr, window) for expr in others)


def _not_grouped(cursor: Cursor, window: WindowFunction, what: str) -> WatersmeetError:
    hint = "write `GROUP BY window_start, window_end`, with an aggregate in SELECT."
    cursor.position = max(cursor.position - 1, 0)
    return cursor.refuse_unsupported(f"TABLE({window.function}(...)) without GROUP BY {what}", hint)


def _check_partition(cursor: Cursor, window: WindowFunction, group_by: tuple[Expr, ...]) -> None:
    """Sessions are apart by what a query groups by: PARTITION BY must say the same."""
    by = {expr.refs[0].parts[-1].lower() if expr.op == "column" else None for expr in group_by if not _field(expr)}
    if by != {name.lower() for name in window.by}:
        columns = ", ".join(window.by) or "the columns of GROUP BY"
        hint = f"group by window_start, window_end and {columns}, or name the other columns after PARTITION BY."
        cursor.position = max(cursor.position - 1, 0)
        raise cursor.refuse_unsupported("TABLE(SESSION(...)) whose PARTITION BY differs from GROUP BY", hint)


def _item(item: Item, window: WindowFunction) -> Item:
    name = item.name or (item.expr.refs[0].parts[-1] if _field(item.expr) else None)
    return replace(item, expr=expand_window_bounds(item.expr, window), name=name)


def expand_window_bounds(expr: Expr, window: WindowFunction) -> Expr:
    """An expression with window_start and window_end as what they are."""
    if expr.op == "column":
        field = _field(expr)
        return expr if field is None else replace(_window(window, f".{field}"), span=expr.span)
    text, refs, position, parts = expr.text, list[Reference](), 0, list[str]()
    if any(_window_bound(ref) for ref in expr.refs):
        for ref in sorted(expr.refs, key=lambda ref: ref.start):
            field = _window_bound(ref)
            leaf = None if field is None else _window(window, f".{field}")
            parts += [text[position : ref.start], text[ref.start : ref.end] if leaf is None else leaf.text]
            start = sum(map(len, parts)) - (ref.end - ref.start)
            inner = replace(ref, start=start, end=start + ref.end - ref.start)
            if leaf is not None:
                start = sum(map(len, parts)) - len(leaf.text)
                inner = replace(leaf.refs[0], start=start + leaf.refs[0].start, end=start + leaf.refs[0].end)
            refs.append(inner)
            position = ref.end
        expr = replace(expr, text="".join(parts) + text[position:], refs=tuple(refs))
    return replace(expr, args=tuple(expand_window_bounds(arg, window) for arg in expr.args))


def _field(expr: Expr) -> str | None:
    return _window_bound(expr.refs[0]) if expr.op == "column" else None


def _window_bound(ref: Reference) -> str | None:
    return _FIELDS.get(ref.parts[-1].lower()) if 0 < len(ref.parts) <= 2 else None


def _window(window: WindowFunction, field: str = "") -> Expr:
    column = quote(window.column)
    function = IN_SPARK.get(window.function, "window")
    text = f"{function}({column}, {', '.join(repr(length(amount)) for amount in window.lengths)}){field}"
    start = len(function) + 1
    return Expr("other", text=text, refs=(Reference((window.column,), start, start + len(column)),), span=window.span)
