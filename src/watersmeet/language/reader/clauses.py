"""Where clauses begin: a word is an alias only where none does."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.language.reader.amounts import starts_amount
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.unsupported import refused_clause
from watersmeet.plan.nodes import JoinKind

LATE = ("LATE", "INTO")

KINDS: dict[tuple[str, ...], JoinKind] = {
    ("JOIN",): "inner",
    ("INNER", "JOIN"): "inner",
    ("LEFT", "JOIN"): "left",
    ("LEFT", "OUTER", "JOIN"): "left",
    ("RIGHT", "JOIN"): "right",
    ("RIGHT", "OUTER", "JOIN"): "right",
    ("FULL", "JOIN"): "full",
    ("FULL", "OUTER", "JOIN"): "full",
    ("OUTER", "JOIN"): "full",
    ("LEFT", "SEMI", "JOIN"): "semi",
    ("SEMI", "JOIN"): "semi",
    ("LEFT", "ANTI", "JOIN"): "anti",
    ("ANTI", "JOIN"): "anti",
}

_CLAUSES = (("USING", "("), LATE, ("GROUP", "BY"), ("STORE", "KEY", "AS"), ("STORE", "VALUE", "AS"))


def at_clause(cursor: Cursor) -> bool:
    """Whether a clause begins here, so that the next word is no alias."""
    if cursor.at_any({"JOIN", "ON", "WHERE", "AS"}) or refused_clause(cursor):
        return True
    if cursor.nesting > 0 and cursor.at("UNION"):
        return True
    if join_words(cursor, KINDS) or any(cursor.at(*words) for words in _CLAUSES) or _at_clause_of_family(cursor):
        return True
    return (cursor.at("WITHIN") and starts_amount(cursor, 1)) or at_watermark(cursor) or at_lateral(cursor)


def _at_clause_of_family(cursor: Cursor) -> bool:
    return any(
        grammar.at_clause(cursor) or any(cursor.at(*words) for words in (*grammar.joins, *grammar.outputs))
        for grammar in cursor.grammars
    )


def at_watermark(cursor: Cursor) -> bool:
    """Whether ``WATERMARK column DELAY OF`` begins here, Spark's clause behind a source."""
    return cursor.at("WATERMARK") and cursor.peek(1).is_name and cursor.at_any({"DELAY"}, ahead=2)


def at_lateral(cursor: Cursor) -> bool:
    """Whether ``LATERAL array AS name`` begins here, and not an alias of that name before a clause."""
    if not cursor.at("LATERAL") or not (cursor.peek(1).is_name or cursor.at_any({"(", "["}, ahead=1)):
        return False
    cursor.position += 1
    is_alias = at_clause(cursor)
    cursor.position -= 1
    return not is_alias


def join_words(cursor: Cursor, kinds: Mapping[tuple[str, ...], JoinKind]) -> tuple[str, ...]:
    """The words of the join that begins here, if it is one of these kinds."""
    return next((words for words in kinds if cursor.at(*words)), ())


def at_join(cursor: Cursor, ahead: int = 0) -> bool:
    """Whether a join of any family begins here, or so many tokens ahead."""
    cursor.position += ahead
    found = any(join_words(cursor, kinds) for kinds in (KINDS, *(grammar.joins for grammar in cursor.grammars)))
    cursor.position -= ahead
    return found


def read_alias(cursor: Cursor) -> str | None:
    """The alias that comes next, with or without AS."""
    if cursor.take("AS"):
        return cursor.take_name("an alias", "write `orders AS o`, for example.").value
    if cursor.peek().is_name and not at_clause(cursor):
        return cursor.take_bare_alias().value
    return None
