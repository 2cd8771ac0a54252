"""Which functions are called in an expression, and with how many arguments: what can be known of them without Spark."""

from __future__ import annotations

import re

from watersmeet.language.reader.cursor import Cursor
from watersmeet.plan.nodes import Call
from watersmeet.type_names import BY_NAME

_GRAMMAR = frozenset({
    "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "ANY", "ALL", "SOME", "DIV", "CASE",
    "WHEN", "THEN", "ELSE", "DISTINCT", "AS", "FROM", "FOR", "OVER", "FILTER", "INTERVAL", "ESCAPE", "EXISTS",
    "CAST", "TRY_CAST", "EXTRACT", "TRIM", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR", "TIMESTAMPADD",
    "TIMESTAMPDIFF", "DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF", "IDENTIFIER", "STRUCT", "ARRAY", "MAP",
    "TUMBLE", "TUMBLE_START", "TUMBLE_END", "HOP", "HOP_START", "HOP_END", "NEAREST",
})  # fmt: skip
"""Words that stand before a bracket and are no functions, or have a grammar of their own, or of ours."""

_UNCOUNTED = frozenset({"FROM", "FOR", "IN", "AS", "=>", "*", "DISTINCT", "ALL", "PLACING", "ORDER"})
"""Words among the arguments of a call whose number says nothing."""


def note_calls(cursor: Cursor, first: int, end: int) -> None:
    """Note the functions that are called by the tokens from index ``first`` to ``end`` (exclusive)."""
    for i in range(first, end):
        token, before = cursor.tokens[i], cursor.tokens[i - 1].word if i else ""
        is_called = token.is_name and cursor.tokens[i + 1].word == "(" and before not in (".", "AS", "::")
        if is_called and not _is_grammar(token.word):
            cursor.calls[i] = Call(token.value, cursor.span_of(token), _count(cursor, i + 1))


def _count(cursor: Cursor, opening: int) -> int | None:
    """How many arguments stand in a bracket; None if that cannot be told."""
    depth, commas, i = 1, 0, opening + 1
    while depth and cursor.tokens[i].kind != "end":
        word = cursor.tokens[i].word
        if depth == 1 and word in _UNCOUNTED:
            return None
        commas += depth == 1 and word == ","
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
        i += 1
    return 0 if i == opening + 2 else commas + 1


_NAME = re.compile(r"(?<![\w.`])[A-Za-z_]\w*(?=\s*\()")


def without_functions(sql: str) -> str:
    """A text with names that nobody knows in place of those of the functions it calls.

    >>> without_functions("SELECT (upper(a, CAST(b AS DECIMAL(10, 2))))")
    'SELECT (_____(a, CAST(b AS DECIMAL(10, 2))))'
    """
    return _NAME.sub(lambda name: name[0] if _is_grammar(name[0].upper()) else "_" * len(name[0]), sql)


def _is_grammar(word: str) -> bool:
    return word in _GRAMMAR or word in BY_NAME or word == "SELECT"
