"""What stands behind FROM: sources, the joins between them and LATERAL."""

from __future__ import annotations

from watersmeet.catalog import Amount
from watersmeet.errors import WatersmeetError
from watersmeet.language.reader.clauses import KINDS, at_lateral, join_words, read_alias, refuse_clause
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.expression import read_or
from watersmeet.language.reader.leaves import read_amount, starts_amount
from watersmeet.language.reader.sources import ReadQuery, read_leaf
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Join, Lateral, Relation, Within

DIRECTIONS = ("BEFORE", "AFTER")
"""Where a right row may be, seen from the left one."""
TWO_DIRECTIONS = "write `WITHIN 5 MINUTES BEFORE AND 1 HOUR AFTER`, or one of the two, for example."


def read_relation(cursor: Cursor, read_query: ReadQuery) -> Relation:
    """A source and the joins that follow it, each with all that stands before it as its left side.

    ``read_query`` reads the queries inside its brackets.
    """
    relation: Relation = read_leaf(cursor, read_query)
    while (further := _read_further(cursor, relation, read_query)) is not None:
        relation = further
    if cursor.at(","):
        raise cursor.refuse_unsupported("A list of sources", "write `a JOIN b ON ...` in place of `a, b`.")
    return relation


def _read_further(cursor: Cursor, left: Relation, read_query: ReadQuery) -> Relation | None:
    """What follows a relation and has it as its left side; None if nothing does."""
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


def _read_join(cursor: Cursor, left: Relation, words: tuple[str, ...], read_query: ReadQuery) -> Relation:
    first = cursor.position
    cursor.skip(len(words))
    right = read_leaf(cursor, read_query)
    for grammar in cursor.grammars:
        if (instead := grammar.read_instead(cursor, left, right, KINDS[words], first)) is not None:
            return instead
    span = cursor.span_from(first)
    refused = None if cursor.at_query_end else refuse_clause(cursor)
    if refused:
        raise refused
    within = read_within(cursor, None)
    on, using = read_condition(cursor)
    within = read_within(cursor, within)
    if on is None and not using:
        on, using = read_condition(cursor)
    if cursor.at_any({"ON", "USING"}):
        raise cursor.failure("one condition", "join conditions with AND in a single ON.")
    clauses = tuple(clause for grammar in cursor.grammars for clause in grammar.read_behind_join(cursor))
    return Join(left, right, KINDS[words], on, using, within, span, clauses)


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
    if cursor.at("WITHIN"):
        raise _second_within(cursor)
    return within


def _read_directions(cursor: Cursor, amount: Amount) -> tuple[Amount, ...]:
    """How far before and how far after, in that order, if directions follow an amount; else the amount alone."""
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
