"""Windows of event time as other systems write them, in the words of Spark: ``window(t, '10 minutes')``.

As functions, TUMBLE(t, size), HOP(t, slide, size) and SESSION(t, gap) with TUMBLE_START and the like; as sources,
``TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), size))``, whose columns window_start and window_end a query groups by. Where
it does not, or where Spark has no such window (CUMULATE), the source is a subquery: each row once for every window that
it is in, with the bounds of that as further columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from watersmeet.catalog import Amount, Span, Watermark
from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import Expr, Reference, column
from watersmeet.logical.nodes import Item, Lateral, Query, Relation, RowNumber, Scan, Star, WindowFunction
from watersmeet.parser.cursor import Cursor, Token
from watersmeet.parser.leaves import read_amount, starts_amount
from watersmeet.parser.unsupported import at_clause
from watersmeet.schema import quote

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
_WITH_OFFSET = 3
"""The number of lengths of a window that begins at an offset: the size, the slide, the offset."""
_ELEMENT = "#window"
"""The generated name of a row's window inside such a subquery."""


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
    if len(window.lengths) == _WITH_OFFSET:
        hint = "write `GROUP BY window_start, window_end` in the query that reads it, and join the groups in a view."
        raise cursor.refuse_unsupported(f"TABLE({window.function}(...)) with an offset outside of GROUP BY", hint)
    if window.function == "SESSION":
        hint = "group it in a view: a session is known after its last row, and joins cannot wait for that."
        raise cursor.refuse_unsupported("TABLE(SESSION(...)) in a join", hint)
    fields = {_field(expr) for expr in group_by}
    if window.function == "CUMULATE" and "start" in fields and "end" not in fields:
        raise _not_grouped(cursor, window, "window_end: a row is in several windows that begin at the same time")
    inner = replace(relation, alias=relation.source, window=None, clause=None)
    lengths = (Expr("interval", value=amount.value) for amount in reversed(window.lengths))
    array = Expr(
        "windows",
        (column((inner.alias, window.column), window.column_span), *lengths),
        window.function,
        span=window.span,
    )
    bounds = (Item(column((_ELEMENT, _ELEMENT, field)), name) for name, field in _FIELDS.items())
    rows = Lateral(inner, array, _ELEMENT, window.span)
    name = cursor.add_subquery(Query(rows, (Star(inner.alias), *bounds), span=relation.span), relation.span)
    return Scan(name, relation.alias, relation.span, relation.clause)


def rewrite_window_functions(cursor: Cursor, first: int) -> dict[int, str]:
    """Replacements for the tokens from ``first`` to the one last taken, if window functions are among them."""
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
    return shown, tuple(by), tuple(None if expr is None else expand_window_bounds(expr, window) for expr in others)


def _not_grouped(cursor: Cursor, window: WindowFunction, construct: str) -> WatersmeetError:
    hint = "write `GROUP BY window_start, window_end`, with an aggregate in SELECT."
    cursor.position = max(cursor.position - 1, 0)
    return cursor.refuse_unsupported(f"TABLE({window.function}(...)) without GROUP BY {construct}", hint)


def _check_partition(cursor: Cursor, window: WindowFunction, group_by: tuple[Expr, ...]) -> None:
    """Refuse a PARTITION BY that differs from the other columns of GROUP BY."""
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
    """An expression with window_start and window_end replaced by the fields of the window."""
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


def expand_bounds_of_rank(number: RowNumber, window: WindowFunction) -> RowNumber:
    """A rank over the groups of windows with their bounds replaced by the fields of the window."""
    by = tuple(replace(item, expr=expand_window_bounds(item.expr, window)) for item in number.by)
    order = tuple(replace(key, expr=expand_window_bounds(key.expr, window)) for key in number.order)
    return replace(number, by=by, order=order)


def _field(expr: Expr) -> str | None:
    return _window_bound(expr.refs[0]) if expr.op == "column" else None


def _window_bound(ref: Reference) -> str | None:
    return _FIELDS.get(ref.parts[-1].lower()) if 0 < len(ref.parts) <= 2 else None


def _window(window: WindowFunction, field: str = "") -> Expr:
    column = quote(window.column)
    function = IN_SPARK.get(window.function, "window")
    text = f"{function}({column}, {', '.join(repr(length(amount)) for amount in window.lengths)}){field}"
    start = len(function) + 1
    ref = Reference((window.column,), start, start + len(column), span=window.column_span)
    return Expr("other", text=text, refs=(ref,), span=window.span)


_ORDER = "write `TABLE(IMPOSE_ORDER(TABLE orders, DESCRIPTOR(order_time), INTERVAL '5' SECONDS))`, for example."
_ARGUMENTS = ("input", "timeCol", "lag")
_WINDOWS = {
    "TUMBLE": (("size",), "write `TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), INTERVAL '10' MINUTES))`, for example."),
    "HOP": (
        ("slide", "size"),
        "write `TABLE(HOP(TABLE bids, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '10' MINUTES))`, for example.",
    ),
    "CUMULATE": (
        ("step", "size"),
        "write `TABLE(CUMULATE(TABLE bids, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '1' HOUR))`, for example.",
    ),
    "SESSION": (
        ("gap",),
        "write `TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(t), INTERVAL '5' MINUTES))`.",
    ),
}
"""The functions of windows, each with what its lengths are called, and how one writes it."""


@dataclass(frozen=True)
class NamedSource:
    """A source before its alias; without a ``name`` it needs one. A union has several scans."""

    scans: tuple[Scan, ...]
    name: str | None
    span: Span


ReadNamed = Callable[[Cursor], NamedSource]
"""Reads a source in brackets or another function."""


def read_name(cursor: Cursor) -> tuple[str, Span]:
    """The name of a source and its place; ``STREAM`` may stand before it."""
    bracket = cursor.at("STREAM", "(")
    if bracket or (cursor.at("STREAM") and cursor.peek(1).is_name and not _after_stream_name(cursor)):
        cursor.skip(2 if bracket else 1)
    hint = "write `FROM orders AS o`, for example."
    if cursor.at_any({"ON", "WHERE", "JOIN", "SELECT"}):
        raise cursor.failure("the name of a stream", hint)
    name = cursor.take_name("the name of a stream", hint)
    if bracket:
        cursor.expect(")", "write `STREAM(name)`.")
    if cursor.at("."):
        raise cursor.failure("an alias or a clause", "put a name that contains a dot in backticks.")
    return name.value, cursor.span_of(name)


def _after_stream_name(cursor: Cursor) -> bool:
    """Whether STREAM is itself the name of a source: what follows it is a clause."""
    cursor.position += 1
    follows = at_clause(cursor)
    cursor.position -= 1
    return follows


def with_watermark(named: NamedSource, watermark: Watermark) -> NamedSource:
    """The same source with a further watermark."""
    scan = named.scans[0]
    return replace(named, scans=(replace(scan, watermarks=(*scan.watermarks, watermark)),))


def at_window_function(cursor: Cursor) -> bool:
    """Whether ``TUMBLE(...)`` or another window comes next, without TABLE around it."""
    return cursor.at_any(set(_WINDOWS)) and cursor.at_any({"("}, ahead=1)


def read_table_function(cursor: Cursor, read_named: ReadNamed) -> NamedSource:
    """``TABLE(IMPOSE_ORDER(TABLE name, DESCRIPTOR(column), lag))``, its arguments also with their names."""
    first = cursor.position
    if at_window_function(cursor) or cursor.at_any(set(_WINDOWS), ahead=2):
        return _read_windowed(cursor, read_named)
    if cursor.peek(2).is_name and cursor.at_any({")"}, ahead=3):
        raise cursor.refuse_unsupported("TABLE(...) around a name", f"write the name alone: `{cursor.peek(2).text}`.")
    if not cursor.at_any({"IMPOSE_ORDER"}, ahead=2):
        function = cursor.peek(2).text
        hint = "write IMPOSE_ORDER, TUMBLE, HOP, CUMULATE or SESSION, or group with `GROUP BY window(t, '5 minutes')`."
        raise cursor.refuse_unsupported(f"TABLE({function}...) as a source", hint)
    cursor.skip(3)
    cursor.expect("(", _ORDER)
    _read_argument(cursor, 0, _ARGUMENTS)
    named = _read_ordered(cursor, read_named, _ORDER)
    cursor.expect(",", _ORDER)
    _read_argument(cursor, 1, _ARGUMENTS)
    begin = cursor.position
    column = _read_descriptor(cursor, _ORDER)
    cursor.expect(",", _ORDER)
    _read_argument(cursor, 2, _ARGUMENTS)
    lag = read_amount(cursor)
    watermark = Watermark(column.value, lag, cursor.span_from(begin))
    cursor.expect(")", _ORDER)
    cursor.expect(")", _ORDER)
    return replace(with_watermark(named, watermark), span=cursor.span_from(first))


def _read_windowed(cursor: Cursor, read_named: ReadNamed) -> NamedSource:
    """``TABLE(TUMBLE(TABLE name, DESCRIPTOR(column), size))``; HOP has the slide before the size, CUMULATE the step.

    SESSION may say PARTITION BY behind the name: what the query groups by besides the window, in any case. Arguments
    may have their names, and an offset of the windows may follow. TABLE, the one around it too, and DESCRIPTOR may be
    left out, as in RisingWave: ``TUMBLE(bids, t, size)``.
    """
    first, is_bare = cursor.position, at_window_function(cursor)
    function = cursor.peek(0 if is_bare else 2).word
    called, hint = _WINDOWS[function]
    arguments = ("data", "timeCol", *called, "offset")
    cursor.skip(1 if is_bare else 3)
    cursor.expect("(", hint)
    _read_argument(cursor, 0, arguments)
    named = _read_ordered(cursor, read_named, hint, needs_table=not is_bare)
    if named.scans[0].window is not None:
        raise cursor.refuse_unsupported(
            "Windows of windows", "name the stream itself, or group the inner windows in a view."
        )
    by = _read_partition(cursor, hint) if function == "SESSION" else ()
    cursor.expect(",", hint)
    _read_argument(cursor, 1, arguments)
    is_plain = is_bare and not cursor.at("DESCRIPTOR", "(")
    column = cursor.take_name("the name of a column", hint) if is_plain else _read_descriptor(cursor, hint)
    lengths: list[Amount] = []
    for number in range(2, len(arguments) - 1):
        cursor.expect(",", hint)
        _read_argument(cursor, number, arguments)
        lengths.append(_read_length(cursor, hint))
    _check_lengths(cursor, function, lengths, hint)
    offset = _read_offset(cursor, function, arguments, hint)
    cursor.expect(")", hint)
    if not is_bare:
        cursor.expect(")", hint)
    if function == "CUMULATE" and lengths[0] == lengths[1]:
        # One step is the whole window.
        function, lengths = "TUMBLE", lengths[:1]
    # Spark has the size, the slide and the start.
    sizes = (*reversed(lengths),) if offset is None else (lengths[-1], lengths[0], offset)
    window = WindowFunction(function, column.value, sizes, cursor.span_from(first), by, cursor.span_of(column))
    return replace(named, scans=(replace(named.scans[0], window=window),), span=cursor.span_from(first))


def _read_descriptor(cursor: Cursor, hint: str) -> Token:
    """The name in ``DESCRIPTOR(column)``."""
    cursor.expect("DESCRIPTOR", hint)
    cursor.expect("(", hint)
    column = cursor.take_name("the name of a column", hint)
    cursor.expect(")", hint)
    return column


def _read_offset(cursor: Cursor, function: str, arguments: tuple[str, ...], hint: str) -> Amount | None:
    """``, offset`` if it comes next: how long after a multiple of the slide windows begin."""
    if not cursor.at(","):
        return None
    if function not in ("TUMBLE", "HOP"):
        raise cursor.refuse_unsupported(f"An offset of {function}", "leave it out, or write TUMBLE or HOP.")
    cursor.skip(1)
    _read_argument(cursor, len(arguments) - 1, arguments)
    return _read_length(cursor, hint)


def _read_length(cursor: Cursor, hint: str) -> Amount:
    before = cursor.peek()
    length = read_amount(cursor)
    if not length.is_interval or not length.value:
        raise cursor.failure("a duration", hint, before)
    return length


def _check_lengths(cursor: Cursor, function: str, lengths: list[Amount], hint: str) -> None:
    """Refuse lengths that make no windows: a step must go into the size, a slide is at most as long."""
    step, size = lengths[0].value, lengths[-1].value
    if function == "CUMULATE" and size % step:
        raise cursor.failure("a size that is a multiple of the step", hint, cursor.previous)
    if function == "HOP" and step > size:
        raise cursor.failure("a size of at least the slide", hint, cursor.previous)


def _read_partition(cursor: Cursor, hint: str) -> tuple[str, ...]:
    """``PARTITION BY a, b``, also in parentheses."""
    if not cursor.take("PARTITION"):
        return ()
    cursor.expect("BY", hint)
    is_closed = cursor.take("(")
    names = [cursor.take_name("the name of a column", hint).value]
    while cursor.at(",") and not cursor.at(",", "DESCRIPTOR"):
        cursor.skip(1)
        names.append(cursor.take_name("the name of a column", hint).value)
    if is_closed:
        cursor.expect(")", hint)
    return tuple(names)


def _read_argument(cursor: Cursor, number: int, names: tuple[str, ...]) -> None:
    """``name =>`` if it comes next, which must be the name of this argument."""
    if cursor.peek(1).word != "=>":
        return
    name = cursor.peek().value.lower().replace("_", "")
    if name != names[number].lower():
        raise cursor.failure(f"`{names[number]}`", f"write the arguments in this order: {', '.join(names)}.")
    cursor.position += 2


def _read_ordered(cursor: Cursor, read_named: ReadNamed, hint: str, *, needs_table: bool = True) -> NamedSource:
    """Read the argument of such a function: a table by name, a query, or an IMPOSE_ORDER. ``hint`` has an example.

    ``needs_table``: the word TABLE stands before a name.
    """
    if cursor.at("(", "TABLE"):
        cursor.next()
        named = _read_ordered(cursor, read_named, hint)
        cursor.expect(")", hint)
        return named
    if cursor.at("TABLE", "(") and cursor.peek(2).is_name and cursor.at_any({")"}, ahead=3):
        cursor.skip(2)
        name, span = read_name(cursor)
        cursor.expect(")", hint)
        return NamedSource((Scan(name, name, span),), name, span)
    if cursor.at("TABLE", "(") or cursor.at("("):
        named = read_named(cursor)
        if len(named.scans) > 1:
            raise cursor.failure("`)`", "give each part of the union its own watermark.", cursor.previous)
        return named
    if needs_table or cursor.peek(1).is_name:
        cursor.expect("TABLE", hint)
    name, span = read_name(cursor)
    return NamedSource((Scan(name, name, span),), name, span)
