"""The structure of an expression, by Spark's precedence: OR, AND, NOT, predicates, comparisons, bits, sums, products.

Every function takes one level off the cursor. Anything else becomes one ``other`` over its whole text.

ORDER BY ... LIMIT and QUALIFY are read here too: the first n rows of a query, or of each group by ROW_NUMBER() or
RANK(). RANK() gives rows that are equal in the order one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.catalog import NOWHERE
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import CLOSED, LISTED, Expr, Op, conjuncts
from watersmeet.logical.nodes import Item, Query, Relation, RowNumber, Scan, SortKey, Star, View
from watersmeet.parser.calls import read_call
from watersmeet.parser.cursor import Cursor, skip_brackets
from watersmeet.parser.leaves import NO_OPERAND, SUFFIXES, read_operand
from watersmeet.parser.references import text_leaf
from watersmeet.parser.subqueries import at_subquery, read_scalar, read_subquery
from watersmeet.parser.tokens import tokenize
from watersmeet.parser.types import read_type

LONGEST_CHAIN = 200
"""How many operators of one level may follow each other: the tree of a sum is as deep as the sum is long."""

_LEVELS: tuple[dict[str, Op], ...] = (
    {"=": "=", "==": "=", "<=>": "<=>", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="},
    {"|": "other"},
    {"^": "other"},
    {"&": "other"},
    {"<<": "other", ">>": "other", ">>>": "other"},
    {"+": "+", "-": "-", "||": "other"},
    {"*": "*", "/": "/", "%": "%", "DIV": "other"},
)
_PATTERNS = frozenset({"LIKE", "ILIKE", "RLIKE", "REGEXP"})
_ENDS = frozenset({",", ")", "]", ";", ".", "FROM", "AS"})


def read_expression(text: str, script_offset: int = 0, name: str = "<expression>") -> Expr:
    """The expression a text consists of; its spans count from ``script_offset``.

    >>> expr = read_expression("left.id = right.order_id")
    >>> expr.op, [ref.parts for ref in expr.references]
    ('=', [('left', 'id'), ('right', 'order_id')])
    """
    cursor = Cursor(name, text, tokenize(text, name), script_offset)
    try:
        expr = read_or(cursor)
    except RecursionError:
        raise too_deep(cursor, 0) from None
    if cursor.peek().kind != "end":
        raise cursor.misspelt(("AND", "OR", "BETWEEN", "LIKE"), "an operator or the end", "join conditions with AND.")
    if cursor.refusals:
        raise WatersmeetError(cursor.refusals)
    return expr


def too_deep(cursor: Cursor, first: int) -> WatersmeetError:
    """The refusal of an expression that is nested too deeply."""
    hint = "split it into parts that are nested less deeply."
    return cursor.failure("an expression of ordinary depth", hint, cursor.tokens[first])


def read_or(cursor: Cursor) -> Expr:
    """An expression: operands of OR."""
    return _chain(cursor, "OR")


def _chain(cursor: Cursor, word: str) -> Expr:
    first = cursor.position
    parts = [_operand_of(cursor, word)]
    while cursor.at(word):
        cursor.may_break()
        cursor.skip(1)
        parts.append(_operand_of(cursor, word))
    op: Op = "or" if word == "OR" else "and"
    return parts[0] if len(parts) == 1 else Expr(op, tuple(parts), span=cursor.span_from(first))


def _operand_of(cursor: Cursor, word: str) -> Expr:
    return _chain(cursor, "AND") if word == "OR" else _read_not(cursor)


def _read_not(cursor: Cursor) -> Expr:
    first = cursor.position
    is_name = cursor.at_any(_ENDS, ahead=1)
    if not is_name and (cursor.take("NOT") or cursor.take("!")):
        return Expr("not", (_read_not(cursor),), span=cursor.span_from(first))
    return _read_predicate(cursor)


def _read_predicate(cursor: Cursor) -> Expr:
    first = cursor.position
    if cursor.at("EXISTS", "(") and cursor.at_any({"SELECT", "WITH"}, ahead=2) and not cursor.at_any((",", ")"), 3):
        cursor.skip(1)
        return read_subquery(cursor, first, None)
    value = _read_level(cursor, 0)
    negated = cursor.at("NOT") and cursor.at_any({"BETWEEN", "IN", *_PATTERNS}, ahead=1)
    if negated:
        cursor.skip(1)
    if cursor.take("BETWEEN"):
        test = _between(cursor, first, value)
    elif cursor.take("IN"):
        test = _in(cursor, first, value)
    elif cursor.at_any(_PATTERNS):
        return _pattern(cursor, first)
    elif cursor.take("IS"):
        return _is(cursor, first, value)
    else:
        return value
    return Expr("not", (test,), span=cursor.span_from(first)) if negated else test


def _between(cursor: Cursor, first: int, value: Expr) -> Expr:
    low = _read_level(cursor, 0)
    cursor.expect("AND", "write `x BETWEEN low AND high`.")
    high = _read_level(cursor, 0)
    span = cursor.span_from(first)
    tests = Expr(">=", (value, low), span=span), Expr("<=", (value, high), span=span)
    return Expr("and", tests, value=CLOSED, span=span)


def _in(cursor: Cursor, first: int, value: Expr) -> Expr:
    if at_subquery(cursor):
        return read_subquery(cursor, first, value)
    cursor.expect("(", "write `x IN (1, 2, 3)`.")
    members = cursor.read_list(_read_member)
    cursor.expect(")", "close the list of IN with `)`.")
    span = cursor.span_from(first)
    tests = tuple(Expr("=", (value, member), span=span) for member in members)
    return tests[0] if len(tests) == 1 else Expr("or", tests, value=LISTED, span=span)


def _read_member(cursor: Cursor) -> Expr:
    """A member of a list as an operand of ``=``, which would tear apart a text such as ``b LIKE c``."""
    # Most members are one token, and there may be many.
    member = read_operand(cursor) if cursor.at_any((",", ")"), ahead=1) else read_or(cursor)
    if member.op != "other":
        return member
    refs = tuple(replace(ref, start=ref.start + 1, end=ref.end + 1) for ref in member.refs)
    return replace(member, text=f"({member.text})", refs=refs)


def _pattern(cursor: Cursor, first: int) -> Expr:
    cursor.skip(1)
    if cursor.at_any({"ANY", "ALL", "SOME"}) and cursor.at_any({"("}, ahead=1):
        cursor.skip(1)
        skip_brackets(cursor)
    else:
        _read_level(cursor, 0)
    if cursor.take("ESCAPE"):
        cursor.next()
    return text_leaf(cursor, first)


def _is(cursor: Cursor, first: int, value: Expr) -> Expr:
    negated = cursor.take("NOT")
    if cursor.take("NULL"):
        test = Expr("is_null", (value,), span=cursor.span_from(first))
    elif cursor.take("DISTINCT", "FROM"):
        other = _read_level(cursor, 0)
        test = Expr("<=>", (value, other), span=cursor.span_from(first))
        negated = not negated
    elif cursor.at_any({"TRUE", "FALSE", "UNKNOWN"}):
        cursor.skip(1)
        return text_leaf(cursor, first)
    else:
        words = ("NULL", "DISTINCT", "TRUE", "FALSE", "UNKNOWN")
        raise cursor.misspelt(words, "NULL, TRUE, FALSE or DISTINCT FROM", "write `x IS NULL` or `x IS NOT NULL`.")
    return Expr("not", (test,), span=cursor.span_from(first)) if negated else test


def _read_level(cursor: Cursor, level: int) -> Expr:
    if level == len(_LEVELS):
        return _read_sign(cursor)
    first = cursor.position
    left = _read_level(cursor, level + 1)
    for _ in range(LONGEST_CHAIN):
        symbol, count = _operator(cursor)
        if symbol not in _LEVELS[level]:
            return left
        cursor.layout.operators.update(range(cursor.position, cursor.position + count))
        cursor.skip(count)
        right = _read_level(cursor, level + 1)
        op = _LEVELS[level][symbol]
        span = cursor.span_from(first)
        left = text_leaf(cursor, first) if op == "other" else Expr(op, (left, right), span=span)
    raise too_deep(cursor, first)


def _operator(cursor: Cursor) -> tuple[str, int]:
    """The operator that comes next and how many tokens it has: shifts are written with two or three."""
    symbol = cursor.peek().word
    if symbol == "DIV" and cursor.at_any(_ENDS, ahead=1):
        return "", 0
    count = 1
    while symbol in ("<", ">", ">>") and _touches(cursor, count):
        symbol += cursor.peek(count).word
        count += 1
    return symbol, count


def _touches(cursor: Cursor, ahead: int) -> bool:
    before, token = cursor.peek(ahead - 1), cursor.peek(ahead)
    return token.word == before.word and token.start == before.end


def _read_sign(cursor: Cursor) -> Expr:
    first = cursor.position
    if cursor.take("-"):
        return Expr("negate", (_read_sign(cursor),), span=cursor.span_from(first))
    if cursor.take("+"):
        return _read_sign(cursor)
    if cursor.take("~"):
        _read_sign(cursor)
        return text_leaf(cursor, first)
    if cursor.at("("):
        return _read_bracket(cursor)
    if cursor.at("CAST", "("):
        return _read_cast(cursor)
    call = None if cursor.peek().word in NO_OPERAND else read_call(cursor, read_or)
    return read_operand(cursor, first, call) if call is not None else read_operand(cursor)


def _read_cast(cursor: Cursor) -> Expr:
    """``CAST(x AS type)``, and its suffixes."""
    first, hint = cursor.position, "write `CAST(x AS BIGINT)`, for example."
    cursor.skip(2)
    inner = read_or(cursor)
    if not cursor.take("AS"):
        raise cursor.misspelt(("AS",), "AS", hint)
    type_ = read_type(cursor)
    cursor.expect(")", hint)
    return read_operand(cursor, first, Expr("cast", (inner,), value=type_, span=cursor.span_from(first)))


def _read_bracket(cursor: Cursor) -> Expr:
    first = cursor.position
    if at_subquery(cursor):
        return read_scalar(cursor)
    cursor.next()
    inner = read_or(cursor)
    if cursor.at(","):
        cursor.position = first
        skip_brackets(cursor)
        return read_operand(cursor, first)
    cursor.expect(")", "close the bracket with `)`.")
    if cursor.at_any(SUFFIXES):
        return read_operand(cursor, first, inner)
    # An `other` is text: without its brackets it would fall apart inside a product.
    if inner.op == "other":
        return text_leaf(cursor, first)
    return replace(inner, value=inner.value or CLOSED) if inner.op in ("and", "or") else inner


_NUMBER = "write `ROW_NUMBER() OVER (PARTITION BY item ORDER BY price DESC)`, for example."
_QUALIFY = "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY price DESC) <= 10`, for example."
NUMBERS = ("ROW_NUMBER", "RANK")
_LESS, _TURNED = ("<=", "<", "="), {">=": "<=", ">": "<", "=": "="}
_HINT = "write `ORDER BY price DESC LIMIT 10`: the first rows of a table, kept up to date."


def read_order(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[tuple[SortKey, ...], int | None]:
    """Read ORDER BY with LIMIT, if it comes next: the sort keys and the number of rows."""
    if not cursor.at("ORDER", "BY"):
        return (), None
    first = cursor.position
    cursor.begin_line()
    order = _read_by(cursor, items)
    if not cursor.at("LIMIT"):
        cursor.position = first
        raise cursor.refuse_unsupported("ORDER BY without LIMIT", _HINT, 2)
    cursor.begin_line()
    cursor.skip(1)
    digits = cursor.peek().text
    if not digits.isdecimal() or len(digits) > 9:
        raise cursor.failure("a number of rows", _HINT)
    cursor.next()
    return order, int(digits)


def at_number(cursor: Cursor) -> bool:
    """Whether ROW_NUMBER() OVER or RANK() OVER comes next."""
    return any(cursor.at(function, "(", ")", "OVER") for function in NUMBERS)


def read_number(cursor: Cursor, items: Sequence[Item | Star] = ()) -> RowNumber:
    """``ROW_NUMBER() OVER ([PARTITION BY a, ...] ORDER BY b, ...)``, or RANK()."""
    first, function = cursor.position, cursor.peek().word
    cursor.skip(4)
    cursor.expect("(", _NUMBER)
    by: tuple[Item, ...] = ()
    if cursor.take("PARTITION"):
        cursor.expect("BY", _NUMBER)
        by = tuple(Item(_resolve_item(expr, items), f"#by{n}") for n, expr in enumerate(cursor.read_list(read_or)))
    if not cursor.at("ORDER", "BY"):
        raise cursor.failure("ORDER BY", _NUMBER)
    order = _read_by(cursor, items)
    cursor.expect(")", _NUMBER)
    return RowNumber(by, order, span=cursor.span_from(first), function=function)


def read_qualify(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[RowNumber, int] | None:
    """``QUALIFY ROW_NUMBER() OVER (...) <= n`` if it comes next."""
    if not cursor.at("QUALIFY"):
        return None
    cursor.begin_line()
    cursor.skip(1)
    if not at_number(cursor):
        raise cursor.failure("ROW_NUMBER() or RANK()", _QUALIFY)
    numbered = read_number(cursor, items)
    sign = cursor.peek().word
    if sign not in _LESS:
        raise cursor.failure("`<=`", _QUALIFY)
    cursor.next()
    is_negative = cursor.take("-")
    digits = cursor.peek().text
    is_number = digits.isdecimal() and len(digits) <= 9
    limit = _limit(sign, -int(digits) if is_negative else int(digits)) if is_number else None
    if limit is None:
        raise cursor.failure("how many rows of each group", _QUALIFY)
    cursor.next()
    return numbered, limit


def first_rows(query: Query, numbered: RowNumber, limit: int, name: str) -> Query:
    """The query for the first of its rows: over all of them, which a view of that name has."""
    further = (*numbered.by, *(Item(by.expr, by.column) for by in numbered.order))
    inner = replace(
        query, items=(*query.items, *further), into=None, into_span=NOWHERE, late_into=None, late_into_span=NOWHERE,
        side_outputs=(), result="stream" if query.result == "stream" else None, store=None, number=None, views=(),
    )  # fmt: skip
    return Query(
        Scan(name, name, query.span), (Star(),), None, query.into, query.into_span, query.span, query.late_into,
        query.late_into_span, query.side_outputs, query.result,
        views=(*query.views, View(name, inner, query.span)), store=query.store, order=numbered.order, limit=limit,
        by=tuple(item.name or "" for item in numbered.by), ties=numbered.function == "RANK",
    )  # fmt: skip


def apply_row_limit(
    cursor: Cursor, relation: Relation, items: Sequence[Item | Star], where: Expr | None
) -> Expr | None:
    """WHERE without its limit on the row number of a subquery, which then only has its first rows."""
    views = cursor.views[-1]
    source = relation.source if isinstance(relation, Scan) else None
    place = next((n for n, view in enumerate(views) if view.name == source), None)
    number = None if place is None else views[place].query.number
    if place is None or number is None:
        return where
    limits = [(part, _row_limit(part, number.name)) for part in conjuncts(where)]
    left = [part for part, limit in limits if limit is None]
    row_limits = [limit for _, limit in limits if limit is not None]
    shown = [item.expr for item in items if isinstance(item, Item)]
    if len(row_limits) != 1 or any(_mentions(expr, number.name) for expr in (*left, *shown)):
        construct = f"{number.function}() as `{number.name}` without a limit, or for anything else"
        hint = (
            f"write `WHERE {number.name} <= 10` around it, and leave it out of SELECT: positions change with every row."
        )
        cursor.position = max(cursor.position - 1, 0)
        raise cursor.refuse_unsupported(construct, hint)
    view = views[place]
    views[place] = replace(view, query=first_rows(view.query, number, row_limits[0], f"{view.name}.rows"))
    return None if where is None or not left else left[0] if len(left) == 1 else replace(where, args=tuple(left))


def _row_limit(part: Expr, name: str) -> int | None:
    """How many rows ``number <= n`` and the like leave; None for anything else."""
    if len(part.args) != 2:
        return None
    column, other = part.args
    sign = part.op
    if other.op == "column":
        column, other, sign = other, column, _TURNED.get(part.op, "")
    is_negative = other.op == "negate"
    number = other.args[0] if is_negative else other
    is_whole = number.op == "literal" and isinstance(number.value, int) and not isinstance(number.value, bool)
    if not is_whole or not _is_column(column, name) or sign not in _LESS:
        return None
    return _limit(sign, -int(str(number.value)) if is_negative else int(str(number.value)))


def _limit(sign: str, number: int) -> int | None:
    """How many rows have a number like that, which begins with 1; None where it is not the first ones."""
    limit = number - 1 if sign == "<" else number
    return None if sign == "=" and number > 1 else max(limit, 0)


def _is_column(expr: Expr, name: str) -> bool:
    return expr.op == "column" and expr.refs[0].parts[-1].lower() == name.lower()


def _mentions(expr: Expr, name: str) -> bool:
    return any(ref.parts[-1].lower() == name.lower() for ref in expr.references)


def _read_by(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[SortKey, ...]:
    cursor.skip(2)
    order: list[SortKey] = []
    while not order or cursor.take(","):
        order.append(_read_ordering(cursor, items, f"#order{len(order)}"))
    return tuple(order)


def _read_ordering(cursor: Cursor, items: Sequence[Item | Star], column: str) -> SortKey:
    expr = _resolve_item(read_or(cursor), items)
    descending = cursor.take("DESC")
    if not descending:
        cursor.take("ASC")
    # As in Spark, NULL is less than everything unless it is said where it goes.
    nulls_last = descending
    if cursor.take("NULLS", "FIRST") or cursor.take("NULLS", "LAST"):
        nulls_last = cursor.previous.word == "LAST"
    return SortKey(expr, column, descending, nulls_last)


def _resolve_item(expr: Expr, items: Sequence[Item | Star]) -> Expr:
    """A column of SELECT, if ORDER BY names it or gives its place; any other expression as it is."""
    place = expr.value if expr.op == "literal" else None
    if isinstance(place, int) and not isinstance(place, bool) and 0 < place <= len(items):
        item = items[place - 1]
        return item.expr if isinstance(item, Item) else expr
    if expr.op == "column" and len(expr.refs[0].parts) == 1:
        name = expr.refs[0].parts[0].lower()
        return next((i.expr for i in items if isinstance(i, Item) and (i.name or "").lower() == name), expr)
    return expr
