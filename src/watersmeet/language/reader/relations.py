"""What stands behind FROM: sources, the joins between them and LATERAL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watersmeet.catalog import Span
from watersmeet.errors import WatersmeetError
from watersmeet.language.reader.amounts import read_amount
from watersmeet.language.reader.clauses import ASOF_KINDS, KINDS, at_lateral, join_words, read_alias
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.expression import read_or
from watersmeet.language.reader.sources import read_leaf
from watersmeet.language.reader.subqueries import ReadQuery
from watersmeet.language.reader.unsupported import refused_clause
from watersmeet.language.reader.windows import at_pad, read_pads, read_values
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import AsofJoin, Join, JoinKind, Lateral, Relation, Scan, SyncJoin, Union, Values, Within

JOIN_WORDS = ("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "OUTER", "SEMI", "ANTI", "SYNC", "ASOF")
CLAUSE_WORDS = (
    *JOIN_WORDS, "WITHIN", "ON", "USING", "WINDOW", "PAD", "LATERAL", "WHERE", "GROUP", "LATE", "UNMATCHED", "PORTS",
    "STORE", "WATERMARK",
)  # fmt: skip


def read_relation(cursor: Cursor, read_query: ReadQuery) -> Relation:
    """A source and the joins that follow it, each with all that stands before it as its left side.

    ``read_query`` reads the queries inside its brackets.
    """
    relation: Relation = read_leaf(cursor, read_query)
    while True:
        cursor.begin_line()
        if cursor.at("SYNC", "JOIN"):
            relation = _read_sync(cursor, relation, read_query)
        elif words := join_words(cursor, ASOF_KINDS):
            relation = _read_asof(cursor, relation, words, read_query)
        elif words := join_words(cursor, KINDS):
            relation = _read_join(cursor, relation, words, read_query)
        elif at_lateral(cursor):
            relation = _read_lateral(cursor, relation)
        else:
            cursor.layout.lines.discard(cursor.position)
            break
    if cursor.at(","):
        raise cursor.unsupported("A list of sources", "write `a JOIN b ON ...` in place of `a, b`.")
    return relation


def _read_lateral(cursor: Cursor, input: Relation) -> Lateral:
    first, hint = cursor.position, "write `LATERAL readings AS reading`, for example."
    cursor.skip(1)
    if cursor.at("VIEW") and not cursor.at_any({"AS", ".", "["}, ahead=1):
        raise cursor.unsupported("LATERAL VIEW", "write `LATERAL readings AS reading` without VIEW and explode.")
    array = read_or(cursor)
    alias = read_alias(cursor)
    if alias is None:
        raise cursor.misspelt(("AS",), "AS and a name for the element", hint)
    return Lateral(input, array, alias, cursor.span_from(first))


def _read_join(cursor: Cursor, left: Relation, words: tuple[str, ...], read_query: ReadQuery) -> Join | AsofJoin:
    first = cursor.position
    cursor.skip(len(words))
    right = read_leaf(cursor, read_query)
    if cursor.at("FOR", "SYSTEM_TIME"):
        return _read_as_of(cursor, left, right, KINDS[words], first)
    span = cursor.span_from(first)
    refused = None if cursor.at_query_end else refused_clause(cursor)
    if refused:
        raise refused
    within = _read_within(cursor, None)
    on, using = _read_condition(cursor)
    within = _read_within(cursor, within)
    if on is None and not using:
        on, using = _read_condition(cursor)
    if cursor.at_any({"ON", "USING"}):
        raise cursor.failure("one condition", "join conditions with AND in a single ON.")
    if cursor.at("MATCH_CONDITION", "("):
        raise cursor.failure("ON, WITHIN or WHERE", "write ASOF JOIN in place of JOIN: MATCH_CONDITION belongs to it.")
    return Join(left, right, KINDS[words], on, using, within, span, read_pads(cursor))


def _read_sync(cursor: Cursor, left: Relation, read_query: ReadQuery) -> SyncJoin:
    if not isinstance(left, Scan | Union):
        what = "LATERAL" if isinstance(left, Lateral) else "another join"
        raise cursor.unsupported(f"SYNC JOIN behind {what}", "write the SYNC JOIN first, then the others.", 2)
    first, inputs = cursor.position, [left]
    while cursor.at("SYNC", "JOIN"):
        cursor.begin_line()
        cursor.skip(2)
        inputs.append(read_leaf(cursor, read_query))
    span = cursor.span_from(first)
    if cursor.at_any({"ON", "USING", "WITHIN"}) or at_pad(cursor):
        hint = "leave it out: rows meet at equal times. Write a further condition in WHERE."
        raise cursor.unsupported(f"{cursor.peek().word} of a SYNC JOIN", hint)
    return SyncJoin(tuple(inputs), span)


def _read_asof(cursor: Cursor, left: Relation, words: tuple[str, ...], read_query: ReadQuery) -> AsofJoin:
    first = cursor.position
    cursor.skip(len(words))
    right = read_leaf(cursor, read_query)
    if cursor.at("FOR", "SYSTEM_TIME"):
        raise cursor.failure("MATCH_CONDITION", "write JOIN in place of ASOF JOIN, or MATCH_CONDITION in its place.")
    clauses = _read_clauses(cursor, _Clauses(span=cursor.span_from(first)))
    return _asof(left, right, ASOF_KINDS[words], clauses)


def _read_as_of(cursor: Cursor, left: Relation, right: Scan | Union, kind: JoinKind, first: int) -> AsofJoin:
    """``FOR SYSTEM_TIME AS OF time``, behind which the alias may stand as well."""
    cursor.skip(2)
    hint = "write `JOIN rates FOR SYSTEM_TIME AS OF orders.t ON ...`, for example."
    cursor.expect("AS", hint)
    cursor.expect("OF", hint)
    as_of = read_or(cursor)
    alias = read_alias(cursor)
    right = right if alias is None else replace(right, alias=alias)
    clauses = _read_clauses(cursor, _Clauses(as_of=as_of, span=cursor.span_from(first)))
    return _asof(left, right, kind, clauses)


@dataclass
class _Clauses:
    """What has been read behind the right side of an as-of join."""

    span: Span
    match: Expr | None = None
    as_of: Expr | None = None
    on: Expr | None = None
    using: tuple[str, ...] = ()
    within: Within | None = None
    defaults: Values = ()


def _read_clauses(cursor: Cursor, read: _Clauses) -> _Clauses:
    """MATCH_CONDITION, ON or USING, WITHIN and DEFAULT, in any order, each at most once."""
    hint = "write `DEFAULT (rate 1, name '')`, for example."
    while True:
        if cursor.at("MATCH_CONDITION") and read.match is None and read.as_of is None:
            cursor.may_break()
            cursor.skip(1)
            read.match = _read_match(cursor)
        elif cursor.at_any({"ON", "USING"}) and read.on is None and not read.using:
            read.on, read.using = _read_condition(cursor)
        elif cursor.at("WITHIN"):
            read.within = _read_within(cursor, read.within)
        elif cursor.at("DEFAULT", "(") and not read.defaults:
            cursor.may_break()
            cursor.skip(1)
            read.defaults = read_values(cursor, hint)
        elif cursor.at("MATCH_CONDITION") or cursor.at_any({"ON", "USING"}) or cursor.at("DEFAULT", "("):
            raise cursor.failure("each clause once", f"write {cursor.peek().word} once for a join, or leave it out.")
        elif at_pad(cursor):
            raise cursor.unsupported("PAD of an as-of join", hint.replace("write", "write PAD as"))
        else:
            return read


def _read_match(cursor: Cursor) -> Expr:
    hint = "write `MATCH_CONDITION (a.t >= b.t)`, for example."
    cursor.expect("(", hint)
    match = read_or(cursor)
    cursor.expect(")", hint)
    return match


def _asof(left: Relation, right: Scan | Union, kind: JoinKind, read: _Clauses) -> AsofJoin:
    return AsofJoin(
        left, right, kind, read.match, read.as_of, read.on, read.using, read.within, read.defaults, read.span
    )


def _read_within(cursor: Cursor, before: Within | None) -> Within | None:
    first = cursor.position
    if not cursor.at("WITHIN"):
        return before
    if before is not None:
        raise _second_within(cursor)
    cursor.skip(1)
    within = Within(read_amount(cursor), cursor.span_from(first))
    if cursor.at("WITHIN"):
        raise _second_within(cursor)
    return within


def _second_within(cursor: Cursor) -> WatersmeetError:
    return cursor.failure("one WITHIN", "write WITHIN once, before or after ON.")


def _read_condition(cursor: Cursor) -> tuple[Expr | None, tuple[str, ...]]:
    if cursor.at_any({"ON", "USING"}):
        cursor.may_break()
    if cursor.take("ON"):
        return read_or(cursor), ()
    if not cursor.take("USING"):
        return None, ()
    hint = "write `USING (id, day)`, for example."
    cursor.expect("(", hint)
    names = [cursor.take_name("the name of a column", hint).value]
    while cursor.take(","):
        names.append(cursor.take_name("the name of a column", hint).value)
    cursor.expect(")", hint)
    return None, tuple(names)
