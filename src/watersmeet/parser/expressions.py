"""The structure of an expression, by Spark's precedence: OR, AND, NOT, predicates, comparisons, bits, sums, products.

Every function takes one level off the cursor. Anything else becomes one ``other`` over its whole text.

ORDER BY ... LIMIT and QUALIFY are read here too: the first n rows of a query, or of each group by ROW_NUMBER() or
RANK(). RANK() gives rows that are equal in the order one number.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import CLOSED, LISTED, Expr, Op
from watersmeet.parser.calls import read_call
from watersmeet.parser.cursor import Cursor, skip_brackets, tokenize
from watersmeet.parser.leaves import NO_OPERAND, SUFFIXES, read_operand, read_type
from watersmeet.parser.references import text_leaf
from watersmeet.parser.subqueries import at_subquery, read_scalar, read_subquery

LONGEST_CHAIN = 200
"""The number of operators of one level that may follow each other: the tree of a sum is as deep as the sum is long."""

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
_QUANTIFIERS = frozenset({"ANY", "ALL", "SOME"})
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


@lru_cache(maxsize=1024)
def read_structure(sql: str) -> Expr:
    """Spark SQL as `Expr.sql` writes it, with its functions, CASE and the like as calls of their args.

    A column has the parts of its name in its reference. What has no such structure stays an ``other``.

    >>> read_structure("upper(`a.k`) || CASE WHEN `a.v` LIKE 'x%' THEN 'x' END").args[1].text
    'case'
    """
    cursor = Cursor("<expression>", sql, tokenize(sql, "<expression>"))
    cursor.is_structured = True
    try:
        expr = read_or(cursor)
    except RecursionError:
        raise too_deep(cursor, 0) from None
    return expr if cursor.peek().kind == "end" else Expr("other", text=sql)


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
        if not cursor.is_structured:
            return _pattern(cursor, first)
        test = _pattern_call(cursor, first, value)
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
    if cursor.at("(", "VALUES") and cursor.at_any({"("}, ahead=2):
        cursor.skip(1)
        raise cursor.refuse_unsupported("VALUES in IN", "write the values alone: `x IN (1, 2, 3)`.")
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
    if cursor.at_any(_QUANTIFIERS) and cursor.at_any({"("}, ahead=1):
        cursor.skip(1)
        skip_brackets(cursor)
    else:
        _read_level(cursor, 0)
    if cursor.take("ESCAPE"):
        cursor.next()
    return text_leaf(cursor, first)


def _pattern_call(cursor: Cursor, first: int, value: Expr) -> Expr:
    function = cursor.peek().text.lower()
    if cursor.at_any(_QUANTIFIERS, ahead=1):
        return _pattern(cursor, first)
    cursor.skip(1)
    args = (value, _read_level(cursor, 0))
    if cursor.take("ESCAPE"):
        args = (*args, read_operand(cursor))
    return Expr("call", args, function, span=cursor.span_from(first))


def _is(cursor: Cursor, first: int, value: Expr) -> Expr:
    negated = cursor.take("NOT")
    if cursor.take("NULL"):
        test = Expr("is_null", (value,), span=cursor.span_from(first))
    elif cursor.take("DISTINCT", "FROM"):
        other = _read_level(cursor, 0)
        test = Expr("<=>", (value, other), span=cursor.span_from(first))
        negated = not negated
    elif cursor.at_any({"TRUE", "FALSE", "UNKNOWN"}):
        word = cursor.peek().word.lower()
        cursor.skip(1)
        if not cursor.is_structured:
            return text_leaf(cursor, first)
        test = Expr("call", (value,), f"is {word}", span=cursor.span_from(first))
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
        if op != "other":
            left = Expr(op, (left, right), span=span)
        elif cursor.is_structured:
            left = Expr("call", (left, right), symbol.lower(), span=span)
        else:
            left = text_leaf(cursor, first)
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
        value = _read_sign(cursor)
        return Expr("call", (value,), "~") if cursor.is_structured else text_leaf(cursor, first)
    if cursor.at("("):
        return _read_bracket(cursor)
    if cursor.at("CAST", "("):
        return _read_cast(cursor)
    if cursor.at_any(_QUANTIFIERS) and cursor.at_any({"("}, ahead=1) and cursor.at_any({"SELECT", "WITH"}, ahead=2):
        hint = "write `x IN (SELECT y FROM b)`, or compare with one value, `(SELECT max(y) FROM b)`."
        raise cursor.refuse_unsupported(f"{cursor.peek().word} with a subquery", hint)
    if cursor.is_structured and (taken := _read_structure(cursor)) is not None:
        return read_operand(cursor, first, taken)
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


def _read_structure(cursor: Cursor) -> Expr | None:
    """A function, CASE, a typed literal or TRY_CAST as a call of its args; None if something else comes next."""
    first, token, following = cursor.position, cursor.peek(), cursor.peek(1)
    if token.word == "CASE":
        return _read_case(cursor)
    if token.word in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ") and following.kind == "string":
        cursor.skip(1)
        return Expr("call", (read_operand(cursor),), token.text.lower())
    if not token.is_name or following.word != "(" or token.word in NO_OPERAND:
        return None
    name = token.value.lower()
    if name == "try_cast":
        cast = _read_cast(cursor)
        return Expr("call", cast.args, name, value=cast.value)
    cursor.skip(2)
    args: list[Expr] = []
    while not cursor.take(")"):
        if args and not cursor.take(","):
            break
        args.append(_read_lambda(cursor) or read_or(cursor))
        word = cursor.peek().word
        if word == "FROM" and name == "extract" and len(args) == 1:
            cursor.skip(1)
            args.append(read_or(cursor))
        elif word == "AS" and name == "struct":
            cursor.skip(1)
            field = cursor.take_name("the name of a field", "write `struct(a AS b)`.")
            args[-1] = Expr("call", (args[-1],), "as", value=field.value)
    if cursor.previous.word != ")":
        cursor.position = first + 1
        skip_brackets(cursor)
        return text_leaf(cursor, first)
    if cursor.at_any({"FILTER", "OVER", "IGNORE", "RESPECT", "WITHIN"}):
        return text_leaf(cursor, first)
    if name in _WITH_UNIT and len(args) == _WITH_UNIT[name] and args[0].op == "column":
        args[0] = Expr("literal", text=args[0].text, value=args[0].text)
    return Expr("call", tuple(args), name, span=cursor.span_from(first))


def _read_lambda(cursor: Cursor) -> Expr | None:
    """``x -> x + 1`` or ``(x, i) -> x > i`` as a call of its body, whose value names the variables; None: no lambda."""
    first, names = cursor.position, list[str]()
    is_list = cursor.take("(")
    while cursor.peek().is_name:
        names.append(cursor.next().value)
        if not is_list or not cursor.take(","):
            break
    if not names or (is_list and not cursor.take(")")) or not cursor.take("->"):
        cursor.position = first
        return None
    return Expr("call", (read_or(cursor),), "->", value=",".join(names), span=cursor.span_from(first))


_WITH_UNIT = {
    "extract": 2, "timestampadd": 3, "timestampdiff": 3, "dateadd": 3, "date_add": 3, "datediff": 3, "date_diff": 3,
}  # fmt: skip
"""Functions whose first argument is the name of a unit, if they have so many."""


def _read_case(cursor: Cursor) -> Expr:
    """CASE as a call of its conditions and values in turn, with that of ELSE as the last."""
    first = cursor.position
    cursor.skip(1)
    value = None if cursor.at("WHEN") else read_or(cursor)
    args: list[Expr] = []
    while cursor.take("WHEN"):
        test = read_or(cursor)
        args.append(test if value is None else Expr("=", (value, test)))
        cursor.expect("THEN", "write `CASE WHEN a THEN b END`.")
        args.append(read_or(cursor))
    if cursor.take("ELSE"):
        args.append(read_or(cursor))
    cursor.expect("END", "close CASE with END.")
    return Expr("call", tuple(args), "case", span=cursor.span_from(first))


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
