"""Relations behind FROM: streams, tables, views, subqueries and unions with their aliases, joins, LATERAL.

Hints about them stand behind SELECT, as Spark has them in a comment:
``/*+ SKEW('relation', 'column', (value, ...)) */``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from watersmeet.catalog import Amount, Watermark
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import (
    Clause,
    ImpliedCondition,
    Join,
    Lateral,
    Query,
    Relation,
    Scan,
    SkewHint,
    Star,
    Union,
    Within,
    aliases,
)
from watersmeet.parser.cursor import Cursor, tokenize
from watersmeet.parser.expressions import read_or
from watersmeet.parser.leaves import read_amount, starts_amount
from watersmeet.parser.sets import read_parts
from watersmeet.parser.unsupported import KINDS, at_lateral, at_watermark, join_words, read_alias, refuse_clause
from watersmeet.parser.windows import NamedSource, at_window_function, read_name, read_table_function, with_watermark
from watersmeet.schema import quote

_HINT, _HINT_END = "/*+", "*/"
_SKEW_EXAMPLE = "write `SELECT /*+ SKEW('orders', 'customer', (17, 42)) */ STREAM ...`."

ReadQuery = Callable[[Cursor], Query]
"""Reads a query up to the bracket that closes it, or up to UNION ALL."""


def read_bracket(cursor: Cursor, read_query: ReadQuery) -> tuple[Scan, ...]:
    """``(query)`` or ``(query UNION ALL query ...)``: each as a scan of its source, or of a view made of it."""
    opening = cursor.position
    is_nested = cursor.at_any({"("}, ahead=1) and cursor.at_any({"SELECT", "WITH", "("}, ahead=2)
    if not cursor.at_any({"SELECT", "WITH"}, ahead=1) and not is_nested:
        hint = "name a stream, or write a query: `(SELECT STREAM * FROM a) AS s`."
        raise cursor.refuse_unsupported("A bracket after FROM", hint)
    cursor.next()
    cursor.nesting += 1
    parts = read_parts(cursor, read_query)
    close_query(cursor, opening)
    if len(parts) == 1:
        return (_scan_of_view(cursor, parts[0]),)
    return tuple(_as_whole_scan(part) or _scan_of_view(cursor, part) for part in parts)


def close_query(cursor: Cursor, opening: int) -> None:
    """Take the bracket that closes a query; the one that opens it is at index ``opening``.

    A semicolon may stand before it: Lenses ends a query with one wherever it stands.
    """
    if cursor.at(";", ")"):
        cursor.layout.needless.add(cursor.position)
        cursor.next()
    cursor.nesting -= 1
    if not cursor.at(")"):
        raise cursor.failure("`)`", "close the bracket that opens the query.")
    cursor.next()
    cursor.close_block(opening)


def _scan_of_view(cursor: Cursor, query: Query) -> Scan:
    name = cursor.add_subquery(query, query.span)
    return Scan(name, name, query.span)


def _as_whole_scan(query: Query) -> Scan | None:
    """The scan of a source of which all rows and columns are read; None if the query does more."""
    scan = query.relation
    is_plain = query.where is None and not query.group_by and not query.views and query.result != "table"
    is_plain = is_plain and query.having is None and not query.is_distinct
    if not is_plain or not isinstance(scan, Scan) or scan.clause is not None:
        return None
    if len(query.items) != 1 or not isinstance(query.items[0], Star) or query.items[0].alias is not None:
        return None
    return Scan(scan.source, scan.source, scan.span, watermarks=scan.watermarks)


_DELAY = "write `orders WATERMARK order_time DELAY OF INTERVAL 5 SECONDS`, for example."


def read_leaf(cursor: Cursor, read_query: ReadQuery) -> Scan | Union:
    """A source, or several of them made one."""
    named = _read_source(cursor, read_query)
    clause = _read_clause(cursor, None)
    named = _read_watermarks(cursor, named)
    alias = read_alias(cursor)
    clause = _read_clause(cursor, clause)
    named = _read_watermarks(cursor, named)
    # A subquery without an alias gets one when all names of the query are known.
    alias = alias or named.name or cursor.new_name()
    first, *others = named.scans
    if others:
        return Union(named.scans, alias, named.span, clause)
    return replace(first, alias=alias, clause=clause, span=named.span)


def _read_clause(cursor: Cursor, before: Clause | None) -> Clause | None:
    """A clause of a family if one comes next, else the one from ``before``."""
    for grammar in cursor.grammars:
        before = grammar.read_behind_source(cursor, before)
    return before


def _read_source(cursor: Cursor, read_query: ReadQuery) -> NamedSource:
    first = cursor.position
    if cursor.at("("):
        scans = read_bracket(cursor, read_query)
        return NamedSource(scans, None, cursor.span_from(first))
    if cursor.at("TABLE", "(") or at_window_function(cursor):
        return read_table_function(cursor, lambda cursor: _read_source(cursor, read_query))
    name, span = read_name(cursor)
    return NamedSource((Scan(name, name, span),), name, span)


def _read_watermarks(cursor: Cursor, named: NamedSource) -> NamedSource:
    """``WATERMARK column DELAY OF lag``, as often as it comes."""
    while at_watermark(cursor):
        if len(named.scans) > 1:
            hint = "write it in each part: `(SELECT * FROM a WATERMARK t DELAY OF INTERVAL 5 SECONDS UNION ALL ...)`."
            raise cursor.refuse_unsupported("WATERMARK after a union", hint)
        first = cursor.position
        cursor.skip(1)
        column = cursor.next().value
        cursor.skip(1)
        cursor.expect("OF", _DELAY)
        lag = read_amount(cursor)
        named = with_watermark(named, Watermark(column, lag, cursor.span_from(first)))
    return named


DIRECTIONS = ("BEFORE", "AFTER")
"""The interval in which a right row may be, seen from the left one."""
TWO_DIRECTIONS = "write `WITHIN 5 MINUTES BEFORE AND 1 HOUR AFTER`, or one of the two, for example."


def read_relation(cursor: Cursor, read_query: ReadQuery) -> Relation:
    """A source and the joins that follow it, each with all that stands before it as its left side.

    ``read_query`` reads the queries inside its brackets.
    """
    relation: Relation = read_leaf(cursor, read_query)
    while True:
        if (further := _read_further(cursor, relation, read_query)) is not None:
            relation = further
        elif cursor.at(","):
            relation = _read_listed(cursor, relation, read_query)
        else:
            return _name_subqueries(relation)


def _name_subqueries(relation: Relation) -> Relation:
    """The relation with an alias for each subquery that has none: `subquery`, `subquery_2` and so on."""
    taken = {name.lower() for name in aliases(relation)}
    names = (f"subquery_{number}" if number > 1 else "subquery" for number in count(1))
    free = (name for name in names if name not in taken)

    def name_leaf(leaf: Relation) -> Relation:
        if isinstance(leaf, Scan | Union):
            return replace(leaf, alias=next(free)) if leaf.alias.startswith("#") else leaf
        return leaf.with_inputs([name_leaf(side) for side in leaf.inputs])

    return name_leaf(relation) if any(name.startswith("#") for name in taken) else relation


def _read_listed(cursor: Cursor, left: Relation, read_query: ReadQuery) -> Relation:
    """``, source``: a join whose condition is in WHERE. A comma before LATERAL may be left out."""
    first = cursor.position
    cursor.skip(1)
    if at_lateral(cursor):
        cursor.layout.needless.add(first)
        cursor.begin_line()
        return _read_lateral(cursor, left)
    cursor.may_break()
    right = read_leaf(cursor, read_query)
    within = read_within(cursor, None)
    if cursor.at_any({"ON", "USING"}):
        hint = f"write it in WHERE, or JOIN in place of the comma before {_name_text(right.alias)}."
        raise cursor.failure("WHERE", hint)
    return Join(left, right, "inner", None, (), within, cursor.span_from(first + 1), implied="where")


def _is_listed(relation: Relation) -> bool:
    """Whether a list of sources is among the joins of a relation."""
    is_list = isinstance(relation, Join) and relation.implied == "where"
    return is_list or any(_is_listed(side) for side in relation.inputs)


def _name_text(name: str) -> str:
    """A name as SQL has it, in backticks if it needs them."""
    return name if name.isidentifier() else quote(name)


def _read_further(cursor: Cursor, left: Relation, read_query: ReadQuery) -> Relation | None:
    """Read a join or lateral that follows a relation and has it as its left side; None if nothing does."""
    first = cursor.position
    cursor.begin_line()
    for grammar in cursor.grammars:
        if words := join_words(cursor, grammar.joins):
            return grammar.read_join(cursor, left, words, lambda: read_leaf(cursor, read_query))
    if words := join_words(cursor, KINDS):
        return _read_join(cursor, left, words, read_query)
    if at_lateral(cursor):
        return _read_lateral(cursor, left)
    cursor.layout.lines.discard(first)
    return None


def _read_lateral(cursor: Cursor, input: Relation) -> Lateral:
    first, hint = cursor.position, "write `LATERAL readings AS reading`, for example."
    cursor.skip(1)
    if cursor.at("VIEW") and not cursor.at_any({"AS", ".", "["}, ahead=1):
        raise cursor.refuse_unsupported("LATERAL VIEW", "write `LATERAL readings AS reading` without VIEW and explode.")
    array = read_or(cursor)
    alias = read_alias(cursor)
    if alias is None:
        raise cursor.misspelt(("AS",), "AS and a name for the element", hint)
    return Lateral(input, array, alias, cursor.span_from(first))


_IMPLIED: dict[str, ImpliedCondition] = {"CROSS": "where", "NATURAL": "natural"}


def _read_join(cursor: Cursor, left: Relation, words: tuple[str, ...], read_query: ReadQuery) -> Relation:
    first = cursor.position
    implied: ImpliedCondition = _IMPLIED.get(words[0], "key")
    if _is_listed(left) and (implied == "natural" or KINDS[words] in ("right", "full")):
        # In standard SQL a comma binds less tightly than JOIN, which would change what these joins mean.
        hint = "write JOIN with ON in place of the comma before it, or the join first and the list after it."
        raise cursor.refuse_unsupported(f"{' '.join(words)} after a list of sources", hint, len(words))
    cursor.skip(len(words))
    right = read_leaf(cursor, read_query)
    for grammar in cursor.grammars if implied == "key" else ():
        if (instead := grammar.read_instead(cursor, left, right, KINDS[words], first)) is not None:
            return instead
    span = cursor.span_from(first)
    refused = None if cursor.at_query_end else refuse_clause(cursor)
    if refused:
        raise refused
    within = read_within(cursor, None)
    if implied != "key" and cursor.at_any({"ON", "USING"}):
        raise cursor.failure("WITHIN, JOIN or WHERE", f"leave {words[0]} out, or {cursor.peek().word}.")
    on, using = read_condition(cursor)
    # A second one is that of SELECT DISTINCT.
    within = within if within is not None and cursor.is_distinct else read_within(cursor, within)
    if on is None and not using:
        on, using = read_condition(cursor)
    if cursor.at_any({"ON", "USING"}):
        raise cursor.failure("one condition", "join conditions with AND in a single ON.")
    clauses = tuple(clause for grammar in cursor.grammars for clause in grammar.read_behind_join(cursor))
    return Join(left, right, KINDS[words], on, using, within, span, clauses, implied=implied)


def read_within(cursor: Cursor, before: Within | None) -> Within | None:
    """``WITHIN d``, with a direction or two if it has them, if it comes next; else the one from ``before``."""
    first = cursor.position
    if not cursor.at("WITHIN"):
        return before
    if before is not None:
        raise _second_within(cursor)
    cursor.skip(1)
    if cursor.at("("):
        raise _pair_of_amounts(cursor)
    amounts = _read_directions(cursor, read_amount(cursor))
    within = Within(amounts[-1], cursor.span_from(first), amounts[0] if len(amounts) == 2 else None)
    if cursor.at("WITHIN") and not cursor.is_distinct:
        raise _second_within(cursor)
    return within


def _read_directions(cursor: Cursor, amount: Amount) -> tuple[Amount, ...]:
    """The limits before and after, in that order, if directions follow an amount; else only the amount."""
    nothing = Amount(0, amount.is_interval)
    if not cursor.at_any(set(DIRECTIONS)):
        if cursor.at("AND") and starts_amount(cursor, 1):
            raise cursor.failure("BEFORE or AFTER", TWO_DIRECTIONS)
        return (amount,)
    word = cursor.peek().word
    cursor.skip(1)
    amounts = {word: amount}
    if cursor.at("AND") and starts_amount(cursor, 1):
        cursor.skip(1)
        other = read_amount(cursor)
        cursor.expect(next(direction for direction in DIRECTIONS if direction != word), TWO_DIRECTIONS)
        amounts[cursor.previous.word] = other
    before, after = (amounts.get(direction, nothing) for direction in DIRECTIONS)
    return (before, after)


def _pair_of_amounts(cursor: Cursor) -> WatersmeetError:
    """The refusal of ``WITHIN (before, after)``, ksqlDB's form, with the same in words."""
    refused, opening = cursor.failure("a duration", TWO_DIRECTIONS), cursor.position
    cursor.skip(1)
    if not starts_amount(cursor):
        return refused
    first = cursor.position
    read_amount(cursor)
    before = cursor.text_from(first)
    if not cursor.take(",") or not starts_amount(cursor):
        return refused
    first = cursor.position
    read_amount(cursor)
    hint = f"write `WITHIN {before} BEFORE AND {cursor.text_from(first)} AFTER`."
    words, cursor.position = cursor.position - opening + 1, opening
    return cursor.refuse_unsupported("WITHIN with a pair", hint, words)


def _second_within(cursor: Cursor) -> WatersmeetError:
    return cursor.failure("one WITHIN", "write WITHIN once, before or after ON.")


def read_condition(cursor: Cursor) -> tuple[Expr | None, tuple[str, ...]]:
    """``ON condition`` or ``USING (column, ...)``, if one comes next."""
    if cursor.at_any({"ON", "USING"}):
        cursor.may_break()
    if cursor.take("ON"):
        return read_or(cursor), ()
    if not cursor.take("USING"):
        return None, ()
    hint = "write `USING (id, day)`, for example."
    cursor.expect("(", hint)
    names = cursor.read_list(lambda cursor: cursor.take_name("the name of a column", hint).value)
    cursor.expect(")", hint)
    return None, names


def read_hints(cursor: Cursor) -> tuple[SkewHint, ...]:
    """The hints that come next."""
    if not cursor.peek().text.startswith(_HINT):
        return ()
    token = cursor.next()
    inner = token.text.removeprefix(_HINT).removesuffix(_HINT_END)
    shift = token.start + len(_HINT)
    tokens = tuple(replace(t, start=t.start + shift, end=t.end + shift) for t in tokenize(inner, cursor.name))
    hints = Cursor(cursor.name, cursor.text, tokens, cursor.offset)
    read = [_read_hint(hints)]
    while hints.take(",") or not hints.at_end:
        read.append(_read_hint(hints))
    return tuple(read)


def check_late_hints(cursor: Cursor) -> None:
    """Refuse hints behind STREAM or TABLE, where they are a comment like any other."""
    if _HINT in cursor.text[cursor.previous.end : cursor.peek().start]:
        raise cursor.failure("the hint before STREAM or TABLE", _SKEW_EXAMPLE)


def with_hints(relation: Relation, hints: tuple[SkewHint, ...], cursor: Cursor) -> Relation:
    """The relation of a query with its hints."""
    if not hints:
        return relation
    if not isinstance(relation, Join):
        raise cursor.failure("a join for the hint", "leave the hint out: only a join has skewed keys.")
    return replace(relation, hints=hints)


def _read_hint(cursor: Cursor) -> SkewHint:
    first, name = cursor.position, cursor.peek()
    if not cursor.take("SKEW"):
        raise cursor.refuse_unsupported(
            f"The hint {name.text}", "leave it out, or write SKEW('relation', 'column', 1)."
        )
    cursor.expect("(", _SKEW_EXAMPLE)
    relation = _read_hint_text(cursor, "the name of a relation")
    cursor.expect(",", _SKEW_EXAMPLE)
    column = _read_hint_text(cursor, "the name of a column")
    cursor.expect(",", _SKEW_EXAMPLE)
    if cursor.take("("):
        values = cursor.read_list(_read_hint_value)
        cursor.expect(")", _SKEW_EXAMPLE)
    else:
        values = (_read_hint_value(cursor),)
    cursor.expect(")", _SKEW_EXAMPLE)
    return SkewHint(relation, column, values, cursor.span_from(first))


def _read_hint_text(cursor: Cursor, expected: str) -> str:
    if cursor.peek().kind not in ("string", "word", "quoted"):
        raise cursor.failure(expected, _SKEW_EXAMPLE)
    return cursor.next().value


def _read_hint_value(cursor: Cursor) -> int | str:
    sign = -1 if cursor.take("-") else 1
    token = cursor.peek()
    if token.kind == "string" and sign == 1:
        return cursor.next().value
    if token.kind != "number" or not token.text.isdecimal():
        raise cursor.failure("an integer or a string", _SKEW_EXAMPLE)
    return sign * int(cursor.next().text)
