"""Which functions are called in an expression, and with how many arguments: what can be known of them without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from watersmeet.language.reader.cursor import Cursor
from watersmeet.plan.nodes import CalledFunction
from watersmeet.type_names import BY_NAME

_GRAMMAR = frozenset({
    "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "ANY", "ALL", "SOME", "DIV", "CASE",
    "WHEN", "THEN", "ELSE", "DISTINCT", "AS", "FROM", "FOR", "OVER", "FILTER", "INTERVAL", "ESCAPE", "EXISTS",
    "CAST", "TRY_CAST", "EXTRACT", "TRIM", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR", "TIMESTAMPADD",
    "TIMESTAMPDIFF", "DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF", "IDENTIFIER", "STRUCT", "ARRAY", "MAP",
    "TUMBLE", "TUMBLE_START", "TUMBLE_END", "HOP", "HOP_START", "HOP_END", "SESSION",
    "SESSION_START", "SESSION_END", "NEAREST",
})  # fmt: skip
"""Words that stand before a bracket and are no functions, or have a grammar of their own, or of ours."""

_UNCOUNTED = frozenset({"FROM", "FOR", "IN", "AS", "=>", "*", "DISTINCT", "ALL", "PLACING", "ORDER"})
"""Words among the arguments of a call whose number says nothing."""

NAMES_FIELDS = frozenset({"STRUCT"})
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
    """A bracket that is open: the name before it, if that is of a function, and what was seen in it so far."""

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
    """A text with names that nobody knows in place of those of the functions it calls.

    >>> without_functions("SELECT (upper(a, CAST(b AS DECIMAL(10, 2))))")
    'SELECT (_____(a, CAST(b AS DECIMAL(10, 2))))'
    """
    return _NAME.sub(lambda name: name[0] if _is_grammar(name[0].upper()) else "_" * len(name[0]), sql)


def _is_grammar(word: str) -> bool:
    return word in _GRAMMAR or word in BY_NAME or word == "SELECT"
