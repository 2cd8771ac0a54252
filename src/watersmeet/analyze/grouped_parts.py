"""What is grouped by as part of a longer text: ``window(t, '5 minutes').start``, ``upper(trim(name))``.

Only Spark understands such texts, so a part is found by its words: it is the same however it is spaced and whatever the
case of its letters, and its names are the same if they mean the same columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from watersmeet.analyze.scope import splice
from watersmeet.plan.expressions import Expr, Reference

_WORDS = re.compile(r"\x00\d+\x00|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\w+|\S")
_EXACT = ("'", '"', "`", "\x00")


def with_parts(expr: Expr, parts: Iterable[Expr], named: Mapping[str, Expr]) -> Expr:
    """A text with every part that is grouped by replaced; ``named`` has what stands for a part, by the part's SQL.

    >>> from watersmeet.plan.expressions import column
    >>> t = Reference(("t",), 7, 8, "s", "t")
    >>> whole = Expr("other", text="WINDOW(t,'5 minutes').start", refs=(t,))
    >>> part = Expr("other", text="window(t, '5 minutes')", refs=(t,))
    >>> with_parts(whole, [part], {part.sql(): column(("w",))}).text
    '`w`.start'
    """
    for part in parts:
        if part.op == "other" and part.refs and expr.op == "other":
            expr = _replaced(expr, part, named[part.sql()])
    return expr


def _replaced(expr: Expr, part: Expr, other: Expr) -> Expr:
    columns = {(ref.column, ref.path): n for n, ref in enumerate((*part.refs, *expr.refs))}
    coded = _coded(expr, columns)
    sought = _coded(part, columns)
    found = [(match.start(), match.end()) for match in _pattern(sought).finditer(coded.text)]
    if not _is_call(sought.text):
        # What stands beside `a | b` may bind one of the two more tightly, as in `c & a | b`.
        found = [(start, end) for start, end in found if _is_closed(coded.text, start, end)]
    if not found:
        return expr
    if found == [(0, len(coded.text))]:
        return replace(other, span=expr.span)
    holes = [(Reference((), start, end), other) for start, end in found]
    kept = [
        (ref, _written(expr, before))
        for ref, before in zip(coded.refs, expr.refs, strict=True)
        if not any(start <= ref.start < end for start, end in found)
    ]
    return splice(coded, [*holes, *kept])


def _is_call(text: str) -> bool:
    """Whether a text is one call from its first to its last character, which nothing beside it can take apart."""
    words = _WORDS.findall(text)
    depth = 0
    for place, word in enumerate(words[1:], start=1):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0:
            return place == len(words) - 1 and word == ")" and words[1] == "("
    return False


def _is_closed(text: str, start: int, end: int) -> bool:
    """Whether a stretch of a text stands between parentheses, commas or the ends of the text."""
    before, after = text[:start].rstrip(), text[end:].lstrip()
    return before[-1:] in ("", "(", ",") and after[:1] in ("", ")", ",")


def _coded(expr: Expr, columns: Mapping[tuple[str, tuple[str, ...]], int]) -> Expr:
    """The text with a number for every column, which nothing else in a text looks like."""
    codes = [f"\x00{columns[ref.column, ref.path]}\x00" for ref in expr.refs]
    leaves = [replace(_written(expr, ref), text=code) for ref, code in zip(expr.refs, codes, strict=True)]
    sized = [replace(leaf, refs=(replace(leaf.refs[0], end=len(leaf.text)),)) for leaf in leaves]
    return splice(expr, zip(expr.refs, sized, strict=True))


def _written(expr: Expr, ref: Reference) -> Expr:
    text = expr.text[ref.start : ref.end]
    return Expr("column", text=text, refs=(replace(ref, start=0, end=len(text)),))


def _pattern(part: Expr) -> re.Pattern[str]:
    """What finds the words of a part, and not the end of a longer name or the beginning of one."""
    words = _WORDS.findall(part.text)
    spaced = r"\s*".join(re.escape(word) if word.startswith(_EXACT) else f"(?i:{re.escape(word)})" for word in words)
    return re.compile(rf"(?<![\w.`]){spaced}(?![\w(])" if words[-1] != ")" else rf"(?<![\w.`]){spaced}")
