"""Calls in an expression: aggregates, functions over them, and how many arguments each call has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from watersmeet.catalog import Amount
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.logical.expressions import (
    AGGREGATES,
    EACH,
    FILTERED,
    IGNORES_NULLS,
    NO_ROWS,
    OFFSETS,
    RANKS,
    SORTS,
    WINDOW_FUNCTIONS,
    Expr,
    WindowCall,
    constants_of,
)
from watersmeet.logical.nodes import CalledFunction
from watersmeet.operators.core.aggregates import NAMES, function_of
from watersmeet.parser.cursor import Cursor, Token, skip_brackets
from watersmeet.schema import BY_NAME

_GRAMMAR = frozenset({
    "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "ANY", "ALL", "SOME", "DIV", "CASE",
    "WHEN", "THEN", "ELSE", "DISTINCT", "AS", "FROM", "FOR", "OVER", "FILTER", "INTERVAL", "ESCAPE", "EXISTS",
    "CAST", "TRY_CAST", "EXTRACT", "TRIM", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR", "TIMESTAMPADD",
    "TIMESTAMPDIFF", "DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF", "IDENTIFIER", "STRUCT", "ARRAY", "MAP",
    "TUMBLE", "TUMBLE_START", "TUMBLE_END", "HOP", "HOP_START", "HOP_END", "SESSION",
    "SESSION_START", "SESSION_END", "NEAREST", "WHERE", "HAVING", "ON", "BY", "VALUES",
})  # fmt: skip
"""Words before a bracket that are not functions, or have their own grammar, Spark's or ours."""

_UNCOUNTED = frozenset({"FROM", "FOR", "IN", "AS", "=>", "*", "DISTINCT", "ALL", "PLACING", "ORDER"})
"""Words among the arguments of a call whose number says nothing."""

ZIP = "ARRAYS_ZIP"
NAMES_FIELDS = frozenset({"STRUCT", ZIP})
"""Functions whose result has fields named after the columns among their arguments, where Spark reads other names."""


def note_calls(cursor: Cursor, first: int, end: int) -> None:
    """Note the functions that are called by the tokens from index ``first`` to ``end`` (exclusive)."""
    open_: list[_Bracket] = []
    for i in range(first, end):
        word, before = cursor.tokens[i].word, cursor.tokens[i - 1].word if i else ""
        if word in ("(", "["):
            open_.append(_Bracket(_function_index(cursor, i - 1) if word == "(" else None))
        elif word in (")", "]") and open_:
            closed = open_.pop()
            if closed.call is not None:
                count = 0 if before == "(" else closed.commas + 1
                _note(cursor, closed.call, count if closed.is_counted else None)
        elif open_:
            open_[-1].commas += word == ","
            open_[-1].is_counted &= word not in _UNCOUNTED
    for bracket in open_:
        if bracket.call is not None:
            _note(cursor, bracket.call, None)


@dataclass
class _Bracket:
    """An open bracket: the function name before it, if any, and its content up to now."""

    call: int | None
    commas: int = 0
    is_counted: bool = True


def _function_index(cursor: Cursor, name: int) -> int | None:
    """The index of a name before a bracket, if it is that of a function."""
    before = cursor.tokens[name - 1].word if name > 0 else ""
    is_called = name >= 0 and cursor.tokens[name].is_name and before not in (".", "AS", "::")
    return name if is_called and not _is_grammar(cursor.tokens[name].word) else None


def _note(cursor: Cursor, name: int, arguments: int | None) -> None:
    token = cursor.tokens[name]
    cursor.calls[name] = CalledFunction(token.value, cursor.span_of(token), arguments)


_NAME = re.compile(r"(?<![\w.`])[A-Za-z_]\w*(?=\s*\()")


def without_functions(sql: str) -> str:
    """A text with the names of the functions it calls replaced by unknown ones.

    >>> without_functions("SELECT (upper(a, CAST(b AS DECIMAL(10, 2))))")
    'SELECT (_____(a, CAST(b AS DECIMAL(10, 2))))'
    """
    return _NAME.sub(lambda name: name[0] if _is_grammar(name[0].upper()) else "_" * len(name[0]), sql)


def _is_grammar(word: str) -> bool:
    return word in _GRAMMAR or word in BY_NAME or word == "SELECT"


Read = Callable[[Cursor], Expr]
"""Reads one argument."""

_PATTERNS = frozenset({"LIKE", "ILIKE", "RLIKE", "REGEXP"})
_WITH_NULLS = frozenset({"first", "first_value", "any_value", "last", "last_value"})
"""Aggregates for which NULL is a value like any other, so that a FILTER cannot make NULLs of rows."""
_WITHIN_GROUP = {
    "listagg": "write `listagg(x, ',') WITHIN GROUP (ORDER BY t)`.",
    "string_agg": "write `string_agg(x, ',') WITHIN GROUP (ORDER BY t)`.",
    "percentile_cont": "write `percentile_cont(0.5) WITHIN GROUP (ORDER BY x)`.",
    "percentile_disc": "write `percentile_disc(0.5) WITHIN GROUP (ORDER BY x)`.",
}
"""The functions that WITHIN GROUP may follow, each with how one writes it."""
_CONSTANTS = {
    **_WITHIN_GROUP,
    "median": "write `median(x)`.",
    "percentile": "write `percentile(x, 0.5)` or `percentile(x, array(0.25, 0.75))`, with numbers from 0 to 1.",
}
OVER_HINT = (
    "write `sum(x) OVER (PARTITION BY k ORDER BY t ROWS 10 PRECEDING)`, or count, avg, min, max, first_value,"
    " last_value, lag or lead; or leave OVER out, and write `GROUP BY window(t, '5 minutes')`."
)
_VIEW_HINT = "compute it in a view and use it there."
_BEHIND = (
    (("WITHIN", "GROUP"), "WITHIN GROUP", "leave it out, or write `listagg(x, ',') WITHIN GROUP (ORDER BY t)`."),
    (("IGNORE", "NULLS"), "IGNORE NULLS", "leave it out: NULLs do not count here."),
    (("RESPECT", "NULLS"), "RESPECT NULLS", "leave it out: NULLs count as any other value."),
)


def read_call(cursor: Cursor, read: Read) -> Expr | None:
    """The aggregate that comes next, or the function with an aggregate in its arguments; None if it is neither."""
    count = 1
    while cursor.peek(count).word == "." and cursor.peek(count + 1).is_name:
        count += 2
    if not cursor.peek().is_name or cursor.peek(count).word != "(":
        return None
    if count == 1 and _is_rank(cursor, cursor.position):
        return _read_rank(cursor, read)
    if count == 1 and (cursor.peek().value.lower() in AGGREGATES or _is_offset(cursor, cursor.position)):
        return read_aggregate(cursor, read)
    opening = cursor.position + count
    if cursor.tokens[opening + 1].word == "SELECT":
        return None
    if find_aggregate(cursor, opening, _find_closing_bracket(cursor, opening)) is None:
        return _read_grouping(cursor, read) if cursor.at("GROUPING", "(") else None
    return _read_function(cursor, read, opening)


def find_aggregate(cursor: Cursor, first: int, end: int) -> Token | None:
    """The first token from index ``first`` to ``end`` (exclusive) with the name of an aggregate that is called.

    LAG, LEAD and ranks count as such.
    """
    for i in range(first, min(end, len(cursor.tokens) - 1)):
        token, before = cursor.tokens[i], cursor.tokens[i - 1].word if i else ""
        is_called = token.is_name and cursor.tokens[i + 1].word == "(" and token.value.lower() in AGGREGATES
        is_called |= _is_offset(cursor, i) or _is_rank(cursor, i)
        if is_called and before != "." and before not in _PATTERNS:
            return token
    return None


def _is_offset(cursor: Cursor, index: int) -> bool:
    """Whether LAG or LEAD is called there as a window function; a function of that name may be another."""
    if (
        cursor.tokens[index].value.lower() not in OFFSETS
        or cursor.tokens[min(index + 1, len(cursor.tokens) - 1)].word != "("
    ):
        return False
    behind = _find_closing_bracket(cursor, index + 1) + 1
    return behind < len(cursor.tokens) and cursor.tokens[behind].word in ("OVER", "IGNORE", "RESPECT")


def _is_rank(cursor: Cursor, index: int) -> bool:
    """Whether ``ROW_NUMBER() OVER`` or another rank is there."""
    words = [token.word for token in cursor.tokens[index : index + 4]]
    return len(words) > 3 and words[0].lower() in RANKS and words[1:] == ["(", ")", "OVER"]


def refuse_nested_aggregate(cursor: Cursor, token: Token) -> WatersmeetError:
    """The refusal of an aggregate inside what only Spark understands."""
    parameters = {"what": f"The aggregate `{token.text}` inside this expression", "hint": _VIEW_HINT}
    return WatersmeetError([Refusal("UNSUPPORTED_STATEMENT", parameters, cursor.place(token))])


def _find_closing_bracket(cursor: Cursor, opening: int) -> int:
    """The index of the bracket that closes the one at index ``opening``, or of the last token if none does."""
    depth = 0
    for i in range(opening, len(cursor.tokens)):
        depth += {"(": 1, ")": -1}.get(cursor.tokens[i].word, 0)
        if depth == 0:
            return i
    return len(cursor.tokens) - 1


def read_aggregate(cursor: Cursor, read: Read) -> Expr:
    """The aggregate that comes next, with its order, its FILTER and what is behind OVER."""
    first, token = cursor.position, cursor.next()
    name = token.value.lower()
    if name in OFFSETS:
        return _read_offset(cursor, read, first, token)
    cursor.next()
    is_named = cursor.at_any({",", ")", "."}, ahead=1)
    is_distinct = not is_named and cursor.take("DISTINCT")
    if not is_named and not is_distinct:
        cursor.take("ALL")
    if name == "count" and cursor.at("*", ")"):
        cursor.next()
        args: tuple[Expr, ...] = ()
    else:
        args = _read_arguments(cursor, read, token)
    is_one = name in _WITH_NULLS and not is_distinct
    is_ignored = is_one and cursor.take("IGNORE", "NULLS")
    args, keys = _read_keys(cursor, read, token, args)
    conditions = _read_nulls(cursor, name, args, is_ignored=is_ignored) if is_one else ()
    for words, construct, hint in _BEHIND:
        if cursor.at(*words):
            raise cursor.refuse_unsupported(construct, hint, len(words) - ("(" in words))
    inner = find_aggregate(cursor, first + 1, cursor.position)
    if inner is not None:
        raise refuse_nested_aggregate(cursor, inner)
    if cursor.at("FILTER", "("):
        conditions = (*conditions, _read_filter(cursor, read))
    value = "distinct" if is_distinct else None
    if is_one:
        both = (Expr("and", conditions, span=conditions[-1].span),) if len(conditions) > 1 else conditions
        args, value = (*args[:1], *both), FILTERED if conditions else None
    elif conditions:
        name, args = _apply_filter(name, args, conditions[0])
    call = Expr("aggregate", (*args, *keys), name, value=value, span=cursor.span_from(first))
    if not cursor.at("OVER"):
        return _check_constants(cursor, first, call)
    if name not in WINDOW_FUNCTIONS or is_distinct or keys:
        what = f"{token.text}({'DISTINCT ...' if is_distinct else 'ORDER BY ...' if keys else ''}) OVER"
        cursor.position = first
        raise cursor.refuse_unsupported(what, OVER_HINT)
    return _read_window(cursor, read, first, call)


_WINDOW = "write `OVER (PARTITION BY k ORDER BY t ROWS 10 PRECEDING)`, for example."


def _read_offset(cursor: Cursor, read: Read, first: int, function: Token) -> Expr:
    """``LAG(x, 1, default) IGNORE NULLS OVER (...)``, or LEAD: its name has been read."""
    name = function.text.upper()
    cursor.next()
    args = _read_arguments(cursor, read, function)
    is_ignored = cursor.take("IGNORE", "NULLS")
    cursor.expect(")", f"close the arguments of `{function.text}` with `)`.")
    is_ignored = cursor.take("IGNORE", "NULLS") or is_ignored
    cursor.take("RESPECT", "NULLS")
    offset = args[1].value if len(args) > 1 and args[1].op == "literal" else 1 if len(args) == 1 else None
    if not isinstance(offset, int) or isinstance(offset, bool) or len(args) > 3 or offset < 0:
        cursor.position = first
        raise cursor.refuse_unsupported(f"{name}() of these arguments", f"write `{name}(x)` or `{name}(x, 1, 0)`.")
    # The row itself is shown whether its value is NULL or not.
    value = IGNORES_NULLS if is_ignored and offset else None
    call = Expr("call", (*args[:1], *args[2:]), function.value.lower(), value=value, span=cursor.span_from(first))
    return _read_window(cursor, read, first, call, Amount(offset, is_interval=False))


def _read_rank(cursor: Cursor, read: Read) -> Expr:
    """``ROW_NUMBER() OVER (...)``, or another rank."""
    first = cursor.position
    cursor.skip(3)
    call = Expr("call", text=cursor.tokens[first].value.lower(), span=cursor.span_from(first))
    return _read_window(cursor, read, first, call)


def _read_window(cursor: Cursor, read: Read, first: int, call: Expr, offset: Amount | None = None) -> Expr:
    """``OVER (PARTITION BY a, ... ORDER BY t ROWS 10 PRECEDING)`` behind a call; ``offset``: that of LAG or LEAD."""
    inner = find_aggregate(cursor, first + 1, cursor.position)
    if inner is not None:
        raise refuse_nested_aggregate(cursor, inner)
    cursor.skip(1)
    behind = open_window(cursor)
    window = _read_window_content(cursor, read, call, offset)
    cursor.position = cursor.position if behind is None else behind
    return window.as_expr(cursor.span_from(first))


def open_window(cursor: Cursor) -> int | None:
    """Go to the bracket of the window that comes next: if it is a name, to that in the WINDOW clause.

    Returns the position behind the name.
    """
    if cursor.at("("):
        return None
    name = cursor.take_name("a window", _WINDOW)
    behind = cursor.position
    cursor.position = _find_window(cursor, name)
    return behind


def _find_window(cursor: Cursor, name: Token) -> int:
    """The index of the bracket of a window of that name, in the WINDOW clause further on."""
    depth, words = 0, [token.word for token in cursor.tokens]
    for i in range(cursor.position, len(words) - 3):
        depth += {"(": 1, ")": -1}.get(words[i], 0)
        is_here = depth == 0 and words[i] in ("WINDOW", ",") and words[i + 2 : i + 4] == ["AS", "("]
        if depth < 0 or words[i] == ";":
            break
        if is_here and cursor.tokens[i + 1].value.lower() == name.value.lower():
            return i + 3
    cursor.position -= 1
    raise cursor.failure("`(` or the name of a window", f"add `WINDOW {name.text} AS (PARTITION BY k ORDER BY t)`.")


def skip_windows(cursor: Cursor) -> None:
    """Skip ``WINDOW w AS (...), ...`` if it comes next: it is read where OVER names a window."""
    if not (cursor.at("WINDOW") and cursor.peek(1).is_name and cursor.peek(2).word == "AS"):
        return
    cursor.begin_line()
    cursor.skip(1)
    while True:
        cursor.take_name("a name for the window", _WINDOW)
        cursor.expect("AS", "write `WINDOW w AS (PARTITION BY k ORDER BY t)`.")
        if not cursor.at("("):
            raise cursor.failure("`(`", "write `WINDOW w AS (PARTITION BY k ORDER BY t)`.")
        skip_brackets(cursor)
        if not cursor.take(","):
            return


def _read_window_content(cursor: Cursor, read: Read, call: Expr, offset: Amount | None) -> WindowCall:
    """``(PARTITION BY a, ... ORDER BY t ROWS 10 PRECEDING)``: the window of a call."""
    cursor.skip(1)
    by: tuple[Expr, ...] = ()
    if cursor.take("PARTITION"):
        cursor.expect("BY", _WINDOW)
        by = cursor.read_list(read)
    order: tuple[Expr, ...] = ()
    if cursor.take("ORDER"):
        cursor.expect("BY", _WINDOW)
        order = _read_sort_keys(cursor, read)
    unit: Literal["ROWS", "RANGE", ""] = "ROWS" if call.text in RANKS else ""
    preceding, following = offset, NO_ROWS
    if unit or offset is not None:
        if cursor.at_any({"ROWS", "RANGE"}):
            hint = "leave the frame out: " + (
                "its second argument says which row it is." if offset is not None else "it counts all rows before it."
            )
            raise cursor.refuse_unsupported(f"A frame for {call.text}()", hint)
    else:
        unit, preceding, following = _read_frame(cursor, has_order=bool(order))
    if not cursor.take(")"):
        raise cursor.failure("ROWS, RANGE or `)`", _WINDOW)
    return WindowCall(call, by, order, unit, preceding, following)


_FRAME_WORDS = frozenset({"ROWS", "RANGE"})


def _read_frame(cursor: Cursor, *, has_order: bool) -> tuple[Literal["ROWS", "RANGE"], Amount | None, Amount | None]:
    """``ROWS 10 PRECEDING`` or ``RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING AND CURRENT ROW``, if it comes next.

    Without it, it is all rows up to those of the row's own place, and all rows if they have no order.
    """
    first = cursor.position
    if cursor.at("GROUPS"):
        raise cursor.refuse_unsupported(
            "A frame in GROUPS", "write `ROWS 10 PRECEDING` or `RANGE 5 MINUTES PRECEDING`."
        )
    if not cursor.at_any(_FRAME_WORDS):
        return "RANGE", None, NO_ROWS if has_order else None
    unit: Literal["ROWS", "RANGE"] = "ROWS" if cursor.next().word == "ROWS" else "RANGE"
    is_between = cursor.take("BETWEEN")
    begin = _read_frame_bound(cursor, unit, "PRECEDING")
    end: Amount | None = NO_ROWS
    if is_between:
        cursor.expect("AND", f"write `{unit} BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW`.")
        end = _read_frame_bound(cursor, unit, "FOLLOWING")
    if begin is not None and end is not None and -begin.value > end.value:
        cursor.position = first
        hint = "write the earlier row first: `ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING`."
        raise cursor.refuse_unsupported("A frame that ends before it begins", hint)
    return unit, begin, end


def _read_frame_bound(cursor: Cursor, unit: str, onward: Literal["PRECEDING", "FOLLOWING"]) -> Amount | None:
    """The distance that a frame reaches in a direction, less than zero if it is the other one; None: to the end."""
    if cursor.take("UNBOUNDED", onward):
        return None
    if cursor.take("CURRENT", "ROW"):
        return NO_ROWS
    # A length of time is a leaf, and leaves are made of calls.
    from watersmeet.parser.leaves import read_amount

    first = cursor.position
    example = f"write `{unit} {'10' if unit == 'ROWS' else '5 MINUTES'} PRECEDING`."
    amount = read_amount(cursor)
    if unit == "ROWS" and amount.is_interval:
        cursor.position = first
        raise cursor.failure("a number of rows", example)
    back = "FOLLOWING" if onward == "PRECEDING" else "PRECEDING"
    if cursor.take(back):
        return replace(amount, value=-amount.value)
    cursor.expect(onward, example)
    return amount


def _check_constants(cursor: Cursor, first: int, call: Expr) -> Expr:
    """The aggregate, if its constants are what it takes, and DISTINCT values are ordered by themselves."""
    if call.text.startswith("percentile") and len(call.args) > 1 and call.args[1].op == "other" and not call.value:
        call = replace(call, value=EACH)
    if constants_of(call) is None:
        cursor.position = first
        raise cursor.refuse_unsupported(f"{call.text}() of these arguments", _CONSTANTS[call.text])
    ordered, aggregated = ([_spell(expr) for expr in some] for some in (call.inputs[1:], call.arguments))
    if call.value == "distinct" and call.sort_keys and ordered != aggregated:
        cursor.position = first
        hint = f"order by what is aggregated, or leave DISTINCT out of `{call.text}`."
        raise cursor.refuse_unsupported("DISTINCT with ORDER BY another expression", hint)
    return call


def _spell(expr: Expr) -> str:
    return expr.sql(lambda ref: ".".join(ref.parts).lower())


def _read_keys(
    cursor: Cursor, read: Read, function: Token, args: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The args and the sort keys, which may also stand behind the closing bracket, in WITHIN GROUP."""
    name = function.value.lower()
    keys = _read_order(cursor, read, function) if cursor.at("ORDER", "BY") else ()
    if not cursor.at(")"):
        construct = f"{cursor.peek().word or 'This'} in a function with an aggregate"
        raise cursor.refuse_unsupported(construct, _VIEW_HINT)
    cursor.expect(")", f"close the arguments of `{function.text}` with `)`.")
    if not keys and name in _WITHIN_GROUP and cursor.at("WITHIN", "GROUP", "("):
        cursor.skip(3)
        keys = _read_order(cursor, read, function)
        cursor.expect(")", _WITHIN_GROUP[name])
    if not name.startswith("percentile_") or name not in _WITHIN_GROUP:
        return args, keys
    if len(keys) != 1 or len(args) != 1:
        cursor.position = cursor.tokens.index(function)
        raise cursor.refuse_unsupported(f"{name}() without WITHIN GROUP", _WITHIN_GROUP[name])
    # What it is a percentile of is the argument; an order from the least up says nothing more.
    return (keys[0].args[0], *args), keys if keys[0].text.startswith("DESC") else ()


def _read_order(cursor: Cursor, read: Read, function: Token) -> tuple[Expr, ...]:
    """``ORDER BY a [ASC | DESC] [NULLS FIRST | LAST], ...`` inside an aggregate."""
    name = function.value.lower()
    if not cursor.at("ORDER", "BY"):
        raise cursor.failure("ORDER BY", _WITHIN_GROUP[name])
    if name not in _WITHIN_GROUP and not (name in NAMES and function_of(name).is_ordered):
        hint = f"leave it out: the order of rows makes no difference to {name}()."
        raise cursor.refuse_unsupported(f"ORDER BY in {name}()", hint, 2)
    cursor.skip(2)
    return _read_sort_keys(cursor, read)


def _read_sort_keys(cursor: Cursor, read: Read) -> tuple[Expr, ...]:
    """``a [ASC | DESC] [NULLS FIRST | LAST], ...``, each as an ``order``."""
    keys = list[Expr]()
    while not keys or cursor.take(","):
        first = cursor.position
        expr = read(cursor)
        is_descending = cursor.take("DESC")
        if not is_descending:
            cursor.take("ASC")
        nulls_last = is_descending
        if cursor.take("NULLS", "FIRST") or cursor.take("NULLS", "LAST"):
            nulls_last = cursor.previous.word == "LAST"
        keys.append(Expr("order", (expr,), SORTS[is_descending, nulls_last], span=cursor.span_from(first)))
    return tuple(keys)


def _read_nulls(cursor: Cursor, name: str, args: tuple[Expr, ...], *, is_ignored: bool) -> tuple[Expr, ...]:
    """The condition under which the value of one row counts: ``first(x, true)`` and ``first(x) IGNORE NULLS``.

    ``is_ignored``: these words stand inside the brackets.
    """
    flag = args[1].value if len(args) == 2 and args[1].op == "literal" else None
    if len(args) != 1 and not isinstance(flag, bool):
        hint = f"write `{name}(x)`, or `{name}(x) IGNORE NULLS` for the values that are not NULL."
        raise cursor.refuse_unsupported(f"{name}() of these arguments", hint)
    is_respected = cursor.take("RESPECT", "NULLS")
    if not is_respected and (cursor.take("IGNORE", "NULLS") or is_ignored or flag):
        return (Expr("not", (Expr("is_null", args[:1]),), span=args[0].span),)
    return ()


def _read_filter(cursor: Cursor, read: Read) -> Expr:
    """``FILTER (WHERE condition)``."""
    hint = "write `count(*) FILTER (WHERE x > 5)`, for example."
    cursor.skip(2)
    cursor.expect("WHERE", hint)
    first = cursor.position
    condition = read(cursor)
    inner = find_aggregate(cursor, first, cursor.position)
    if inner is not None:
        raise refuse_nested_aggregate(cursor, inner)
    cursor.expect(")", hint)
    return condition


def _apply_filter(name: str, args: tuple[Expr, ...], condition: Expr) -> tuple[str, tuple[Expr, ...]]:
    """An aggregate of the rows for which a condition is true: these passes over NULLs, so the others are NULL."""
    if not args:
        return "count_if", (condition,)
    place = len(args) - 1 if name in ("min_by", "max_by") else 0
    nothing = Expr("literal", text="NULL")
    some = Expr("call", (condition, args[place], nothing), "if", span=args[place].span)
    return name, (*args[:place], some, *args[place + 1 :])


def _read_grouping(cursor: Cursor, read: Read) -> Expr | None:
    """``grouping(...)`` of what is computed; None of a column or a text, which is found in any text around it."""
    first = cursor.position
    # A function, not a keyword of the language, so that its letters stay as they are.
    cursor.next()
    cursor.next()
    key = None if cursor.at(")") else read(cursor)
    if key is None or key.op in ("column", "other") or not cursor.at(")"):
        cursor.position = first
        return None
    cursor.next()
    return Expr("call", (key,), "grouping", span=cursor.span_from(first))


def _read_function(cursor: Cursor, read: Read, opening: int) -> Expr | None:
    """A call whose arguments are expressions; None if there is more between its brackets, as in ``struct(x AS y)``.

    None also of a function that names fields after its arguments: the text around aggregates says these names.
    """
    first = cursor.position
    if cursor.tokens[first].word in NAMES_FIELDS:
        return None
    cursor.position = opening
    name = cursor.text_from(first)
    cursor.next()
    args = cursor.read_list(read)
    if not cursor.at(")"):
        cursor.position = first
        return None
    cursor.next()
    note_calls(cursor, first, cursor.position)
    if cursor.at("OVER"):
        raise cursor.refuse_unsupported("A window function of this kind", OVER_HINT)
    return Expr("call", args, name, span=cursor.span_from(first))


def _read_arguments(cursor: Cursor, read: Read, function: Token) -> tuple[Expr, ...]:
    """Expressions up to the closing bracket, which is left to be taken."""
    args = cursor.read_list(read)
    if cursor.at_end:
        raise cursor.failure("`)`", f"close the arguments of `{function.text}` with `)`.")
    return args
