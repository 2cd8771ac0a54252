"""Text that Spark alone understands (functions, casts, CASE), and the columns that sqlglot finds in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import sqlglot
from sqlglot import Expr as Tree
from sqlglot import exp
from sqlglot.errors import ParseError

from watersmeet.errors import Place, WatersmeetError, refuse
from watersmeet.logical.expressions import Expr, Reference
from watersmeet.parser.calls import NAMES_FIELDS, ZIP, find_aggregate, note_calls, read_aggregate, without_functions
from watersmeet.parser.cursor import SUBQUERY_HINT, Cursor, Token
from watersmeet.schema import quote

_PREFIX = "SELECT ("
_UNIT_FIRST = re.compile(r"\b(?:date_trunc|trunc)(?=\s*\()", re.IGNORECASE)
"""Functions whose unit sqlglot takes for a keyword, though Spark also takes a column."""

_KEYWORDS = frozenset({
    "CASE", "WHEN", "THEN", "ELSE", "END", "AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE",
    "ESCAPE", "DIV", "DISTINCT", "INTERVAL",
})  # fmt: skip
"""Words inside such a text that are not names, unless a reference is found there."""

_VALUES = frozenset({"NULL", "TRUE", "FALSE", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER"})
"""Words that stand for a value, and not for a column."""


_ZIPPED = "zipped_row"
"""A row of ``arrays_zip``, for the function that names its fields."""


def text_leaf(cursor: Cursor, first: int) -> Expr:
    """The text from token ``first`` to the one last taken as one leaf, with the references sqlglot finds in it.

    An array in square brackets is written as Spark's function. A text around aggregates is split.
    """
    if cursor.is_structured:
        return Expr("other", text=cursor.text_from(first), span=cursor.span_from(first))
    # A window function reads lengths of time, which are leaves.
    from watersmeet.parser import windows

    note_calls(cursor, first, cursor.position)
    arrays = dict(sorted((_arrays(cursor, first) | windows.rewrite_window_functions(cursor, first)).items()))
    text = _with_arrays(cursor, first, arrays)
    place = cursor.place(cursor.tokens[first], cursor.previous)
    refs = _references(text, place)
    if not arrays:
        _note_keywords(cursor, first, refs)
    names = _field_names(cursor, first, arrays)
    if names:
        arrays = dict(sorted((arrays | names).items()))
        text = _with_arrays(cursor, first, arrays)
        refs = _references(text, place)
    whole = Expr("other", text=text, refs=refs, span=cursor.span_from(first))
    return (
        _split_around_aggregates(cursor, first, whole, arrays)
        if find_aggregate(cursor, first, cursor.position)
        else whole
    )


def _split_around_aggregates(cursor: Cursor, first: int, whole: Expr, arrays: dict[int, str]) -> Expr:
    """A text as the pieces of it that stand around aggregates, and these."""
    begin, end = cursor.tokens[first].start, cursor.position

    def offset(index: int) -> int:
        tokens, added = cursor.tokens, 0
        for i, written in arrays.items():
            if i < index:
                space = 0 if written else tokens[i].start - tokens[i - 1].end
                added += len(written) - len(tokens[i].text) - space
        return tokens[index].start - begin + added

    parts, position = list[Expr](), 0
    for index, behind, aggregate in _aggregates(cursor, first, end):
        last = behind - 1
        parts += [_piece(whole, position, offset(index)), aggregate]
        closing, written = cursor.tokens[last].text, arrays.get(last, "")
        # A name behind the bracket belongs to the text around it.
        position = offset(last) + len(closing if written.startswith(closing) else written or closing)
    parts.append(_piece(whole, position, len(whole.text)))
    return Expr("around", tuple(part for part in parts if part.text or part.args), span=whole.span)


def _aggregates(cursor: Cursor, first: int, end: int) -> list[tuple[int, int, Expr]]:
    """The aggregates from token ``first`` to before ``end``, each with its first token and the one behind it."""
    # Reading an argument is reading an expression, which is made of leaves.
    from watersmeet.parser.expressions import read_or

    aggregates: list[tuple[int, int, Expr]] = []
    while (token := find_aggregate(cursor, first, end)) is not None:
        index = cursor.tokens.index(token, first)
        cursor.position = index
        aggregate = read_aggregate(cursor, read_or)
        aggregates.append((index, cursor.position, aggregate))
        first = cursor.position
    cursor.position = end
    return aggregates


def _piece(whole: Expr, start: int, end: int) -> Expr:
    inside = (ref for ref in whole.refs if start <= ref.start < end)
    refs = tuple(replace(ref, start=ref.start - start, end=ref.end - start) for ref in inside)
    return Expr("other", text=whole.text[start:end], refs=refs, span=whole.span)


def _arrays(cursor: Cursor, first: int) -> dict[int, str]:
    """The square brackets that make an array, by the index of their tokens, each with what Spark writes there."""
    written, stack = dict[int, str](), list[bool]()
    for i in range(first, cursor.position):
        word = cursor.tokens[i].word
        if word == "[":
            before = cursor.tokens[i - 1] if i > first else None
            stack.append(before is None or not _ends_operand(before))
            written |= {i: "array("} if stack[-1] else {}
        elif word == "]" and stack and stack.pop():
            written[i] = ")"
    return written


def _field_names(cursor: Cursor, first: int, written: dict[int, str]) -> dict[int, str]:
    """The last tokens of arguments after which Spark names a field, each with its replacement and this name.

    Spark names the field of ``struct(k)`` after the column, and columns have other names where Spark evaluates the
    text. An aggregate is a column there, too, and Spark numbers its field.
    """
    names, end = dict[int, str](), cursor.position
    for index in range(first, end - 1):
        is_called = cursor.tokens[index + 1].word == "(" and cursor.tokens[index - 1].word != "."
        if not is_called or cursor.tokens[index].word not in NAMES_FIELDS:
            continue
        if cursor.tokens[index].word == ZIP:
            names |= _zip_names(cursor, index, names, written)
            continue
        for number, (begin, behind) in enumerate(_arguments(cursor, index + 2, end), 1):
            name = _field_name(cursor, begin, behind, number)
            if name is not None:
                last = behind - 1
                names[last] = f"{names.get(last, written.get(last, cursor.tokens[last].text))} AS {quote(name)}"
    return names


def _zip_names(cursor: Cursor, index: int, names: dict[int, str], written: dict[int, str]) -> dict[int, str]:
    """The tokens of the call of ``arrays_zip`` at ``index``, rewritten such that its fields have their names.

    Spark takes no AS there. Inside of ``coalesce`` every argument is a number to it, which a function then renames.
    """
    tokens, changes, fields = cursor.tokens, dict[int, str](), list[str]()

    def text(i: int) -> str:
        return changes.get(i, names.get(i, written.get(i, tokens[i].text)))

    arguments = list(_arguments(cursor, index + 2, cursor.position))
    if not arguments:
        return {}
    for number, (begin, behind) in enumerate(arguments):
        path = _column_path(tokens[begin:behind])
        name = path[-1].value if path else str(number)
        fields.append(f"'{name.replace(chr(39), chr(92) + chr(39))}', {_ZIPPED}['{number}']")
        changes[begin - 1] = f"{text(begin - 1)}coalesce("
        changes[behind - 1] = f"{text(behind - 1)})"
    closing = arguments[-1][1]
    changes[index] = f"transform({text(index)}"
    # What is written behind the bracket belongs to a call around this one.
    changes[closing] = f"), {_ZIPPED} -> named_struct({', '.join(fields)})){text(closing)[1:]}"
    return changes


def _column_path(tokens: Sequence[Token]) -> Sequence[Token]:
    """The names of a column with dots between them, without brackets around it; nothing if it is something else."""
    while len(tokens) > 1 and tokens[0].word == "(" and tokens[-1].word == ")":
        tokens = tokens[1:-1]
    is_path = len(tokens) % 2 == 1 and all(
        token.is_name if i % 2 == 0 else token.word == "." for i, token in enumerate(tokens)
    )
    return tokens if is_path and not (len(tokens) == 1 and tokens[0].word in _VALUES) else ()


def _field_name(cursor: Cursor, begin: int, behind: int, number: int) -> str | None:
    """The name that Spark would give the field of an argument, where it cannot see it; None: it can."""
    tokens = cursor.tokens[begin:behind]
    path = _column_path(tokens)
    if path:
        return path[-1].value
    has_name = tokens[-1].is_name and len(tokens) > 1 and (tokens[-2].word == "AS" or _ends_operand(tokens[-2]))
    return None if has_name or find_aggregate(cursor, begin, behind) is None else f"col{number}"


def _arguments(cursor: Cursor, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The arguments of a call from token ``begin`` on, each by its first token and the one behind it."""
    depth = 0
    for index in range(begin, end):
        word = cursor.tokens[index].word
        if depth == 0 and word in (",", ")"):
            if index > begin:
                yield begin, index
            begin = index + 1
            if word == ")":
                return
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)


def _ends_operand(token: Token) -> bool:
    return (token.kind != "symbol" and token.word not in _KEYWORDS) or token.word in (")", "]")


def _with_arrays(cursor: Cursor, first: int, arrays: dict[int, str]) -> str:
    text, begin, parts, position = cursor.text_from(first), cursor.tokens[first].start, list[str](), 0
    for i, written in arrays.items():
        start = cursor.tokens[i].start - begin
        # A removed part leaves no space behind.
        parts += [text[position:start] if written else "", written]
        position = start + len(cursor.tokens[i].text)
    return "".join(parts) + text[position:]


def _note_keywords(cursor: Cursor, first: int, refs: tuple[Reference, ...]) -> None:
    begin = cursor.tokens[first].start
    named = frozenset(place for ref in refs for place in range(ref.start, ref.end))
    for i in range(first, cursor.position):
        token = cursor.tokens[i]
        if (
            token.word in _KEYWORDS
            and token.start - begin not in named
            and cursor.tokens[i - 1].word not in (".", "AS")
        ):
            cursor.layout.keywords.add(i)


def _references(text: str, place: Place) -> tuple[Reference, ...]:
    tree = _parse(text, place)
    if tree.find(exp.Query):
        raise refuse("UNSUPPORTED_STATEMENT", place, what="A subquery", hint=SUBQUERY_HINT)
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        hint = "name the columns, for example `struct(a, b)`."
        raise refuse("UNSUPPORTED_STATEMENT", place, what="`*` inside an expression", hint=hint)
    try:
        # sqlglot writes some functions in terms of others and so may repeat a column.
        references = {reference.start: reference for reference in _columns(tree)}
    except KeyError:
        raise _unreadable(text, place) from None
    return tuple(references[start] for start in sorted(references))


def _parse(text: str, place: Place) -> Tree:
    try:
        # Brackets keep a function such as `replace(..)` from being read as a statement.
        plain = _UNIT_FIRST.sub(lambda name: "_" * len(name.group()), text)
        tree = _parse_sql(f"{_PREFIX}{plain}\n)")
        if isinstance(tree, exp.Select) and len(tree.expressions) == 1:
            return tree.expressions[0]
    except RecursionError:
        raise
    except ParseError as error:
        raise _unreadable(text, place, _error_place(error, text, place)) from None
    except Exception as error:
        # Any other error of the parser is reported with its place.
        raise _unreadable(text, place) from error
    raise _unreadable(text, place)


def _parse_sql(sql: str) -> Tree:
    """The tree of a text. How many arguments a function takes is Spark's to say, and not a matter of reading."""
    try:
        return sqlglot.parse_one(sql, dialect="spark")
    except (ParseError, ValueError) as error:
        anonymous = without_functions(sql)
        with suppress(ParseError):
            return sqlglot.parse_one(anonymous, dialect="spark")
        raise error


def _unreadable(text: str, place: Place, stumble: Place | None = None) -> WatersmeetError:
    """The refusal of a text that sqlglot cannot read, at the word it stumbled over if that is known."""
    shown = text if stumble is None else stumble.text[stumble.start : stumble.end]
    shown = f"`{shown}`" if len(shown) <= 30 else f"`{shown[:27]}...`"
    is_parted = stumble is not None and re.search(r"[\w)'\"`]\s*$", text[: stumble.start - place.start]) is not None
    is_comma = is_parted and re.match(r"`[\w'\"`]", shown) is not None
    hint = f"put a comma before {shown}." if is_comma else "compare it with the SQL reference of Spark."
    return refuse("SYNTAX_ERROR", stumble or place, expected="an expression of Spark SQL", found=shown, hint=hint)


def _error_place(error: ParseError, text: str, place: Place) -> Place | None:
    """The place of the word that sqlglot complains of; None where that is not inside the text."""
    detail = error.errors[0] if error.errors else {}
    line, highlight = detail.get("line"), detail.get("highlight")
    if not isinstance(line, int) or not highlight:
        return None
    lines = f"{_PREFIX}{text}".split("\n")
    end = sum(len(earlier) + 1 for earlier in lines[: line - 1]) + int(detail.get("col") or 0) - len(_PREFIX)
    start = end - len(highlight)
    if not 0 <= start < end <= len(text) or text[start:end] != highlight:
        return None
    return Place(place.name, place.text, place.start + start, place.start + end)


def _columns(tree: Tree) -> Iterator[Reference]:
    for column in tree.find_all(exp.Column):
        parts: list[Tree] = list(column.parts)
        node: Tree = column
        while (
            isinstance(dot := node.parent, exp.Dot) and dot.this is node and isinstance(dot.expression, exp.Identifier)
        ):
            node = dot
            parts.append(dot.expression)
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        yield Reference(tuple(part.name for part in parts), start - len(_PREFIX), end - len(_PREFIX))
