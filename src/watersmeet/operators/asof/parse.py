"""``[LEFT] ASOF JOIN b MATCH_CONDITION (...)``, and ``JOIN b FOR SYSTEM_TIME AS OF time``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from watersmeet.catalog import Span
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Clause, Join, JoinKind, Leaf, ParsedJoin, Relation, Values, Within
from watersmeet.operators.asof.analyze import ParsedAsofJoin
from watersmeet.parser.cursor import Cursor, Grammar, ReadLeaf, Words
from watersmeet.parser.expressions import read_or
from watersmeet.parser.relations import read_condition, read_within
from watersmeet.parser.statements import read_values
from watersmeet.parser.unsupported import read_alias

_NOW = (("PROCTIME", "(", ")"), ("CURRENT_TIMESTAMP", "(", ")"), ("CURRENT_TIMESTAMP",), ("NOW", "(", ")"))
"""The words for the time at which a row is processed."""


class AsofGrammar(Grammar):
    """An as-of join has a match condition, or the time of FOR SYSTEM_TIME in its place."""

    joins: ClassVar[Mapping[Words, JoinKind]] = {
        ("ASOF", "JOIN"): "inner",
        ("INNER", "ASOF", "JOIN"): "inner",
        ("ASOF", "INNER", "JOIN"): "inner",
        ("LEFT", "ASOF", "JOIN"): "left",
        ("LEFT", "OUTER", "ASOF", "JOIN"): "left",
        ("ASOF", "LEFT", "JOIN"): "left",
        ("RIGHT", "ASOF", "JOIN"): "right",
        ("ASOF", "RIGHT", "JOIN"): "right",
        ("FULL", "ASOF", "JOIN"): "full",
        ("ASOF", "FULL", "JOIN"): "full",
    }
    words = ("ASOF",)
    spaced = frozenset({"DEFAULT", "MATCH_CONDITION"})

    def at_clause(self, cursor: Cursor) -> bool:
        return cursor.at("FOR", "SYSTEM_TIME") or cursor.at("MATCH_CONDITION") or cursor.at("DEFAULT", "(")

    def read_join(self, cursor: Cursor, left: Relation, words: Words, read_leaf: ReadLeaf) -> ParsedAsofJoin:
        first = cursor.position
        cursor.skip(len(words))
        right = read_leaf()
        if cursor.at("FOR", "SYSTEM_TIME"):
            hint = "write JOIN in place of ASOF JOIN, or MATCH_CONDITION in its place."
            raise cursor.failure("MATCH_CONDITION", hint)
        clauses = _read_clauses(cursor, _Clauses(span=cursor.span_from(first)))
        return _asof(left, right, self.joins[words], clauses)

    def read_instead(
        self, cursor: Cursor, left: Relation, right: Leaf, kind: JoinKind, first: int
    ) -> ParsedJoin | None:
        """``FOR SYSTEM_TIME AS OF time``, optionally followed by the alias; of now, it reads the table as it is."""
        if not cursor.take("FOR", "SYSTEM_TIME"):
            return None
        hint = "write `JOIN rates FOR SYSTEM_TIME AS OF orders.t ON ...`, for example."
        cursor.expect("AS", hint)
        cursor.expect("OF", hint)
        is_now = any(cursor.take(*words) for words in _NOW)
        as_of = None if is_now else read_or(cursor)
        alias = read_alias(cursor)
        right = right if alias is None else replace(right, alias=alias)
        if is_now:
            on, using = read_condition(cursor)
            return Join(left, right, kind, on, using, span=cursor.span_from(first), at_processing_time=True)
        clauses = _read_clauses(cursor, _Clauses(as_of=as_of, span=cursor.span_from(first)))
        return _asof(left, right, kind, clauses)

    def read_behind_join(self, cursor: Cursor) -> tuple[Clause, ...]:
        """Nothing: a match condition makes no plain join an as-of join."""
        if cursor.at("MATCH_CONDITION", "("):
            hint = "write ASOF JOIN in place of JOIN: MATCH_CONDITION belongs to it."
            raise cursor.failure("ON, WITHIN or WHERE", hint)
        return ()

    def refuse_misplaced(self, cursor: Cursor, end: str) -> WatersmeetError | None:
        if cursor.at_any({"MATCH_CONDITION", "DEFAULT"}):
            return cursor.failure(end, f"write {cursor.peek().word} after JOIN, before WHERE.")
        if cursor.at("FOR", "SYSTEM_TIME"):
            return cursor.failure(end, "write FOR SYSTEM_TIME AS OF after the source that JOIN names.")
        return None


@dataclass
class _Clauses:
    """The clauses behind the right side of an as-of join."""

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
            read.on, read.using = read_condition(cursor)
        elif cursor.at("WITHIN"):
            read.within = read_within(cursor, read.within)
            if read.within is not None and read.within.earlier is not None:
                hint = "write `WITHIN 5 MINUTES` without BEFORE or AFTER: MATCH_CONDITION gives the direction."
                raise cursor.refuse_unsupported("WITHIN with a direction in an as-of join", hint)
        elif cursor.at("DEFAULT", "(") and not read.defaults:
            cursor.may_break()
            cursor.skip(1)
            read.defaults = read_values(cursor, hint)
        elif cursor.at("MATCH_CONDITION") or cursor.at_any({"ON", "USING"}) or cursor.at("DEFAULT", "("):
            raise cursor.failure("each clause once", f"write {cursor.peek().word} once for a join, or leave it out.")
        elif any(grammar.at_padding(cursor) for grammar in cursor.grammars):
            raise cursor.refuse_unsupported("PAD of an as-of join", hint.replace("write", "write PAD as"))
        else:
            return read


def _read_match(cursor: Cursor) -> Expr:
    hint = "write `MATCH_CONDITION (a.t >= b.t)`, for example."
    cursor.expect("(", hint)
    match = read_or(cursor)
    cursor.expect(")", hint)
    return match


def _asof(left: Relation, right: Leaf, kind: JoinKind, read: _Clauses) -> ParsedAsofJoin:
    return ParsedAsofJoin(
        left, right, kind, read.on, read.using, read.within, read.span, read.match, read.as_of, read.defaults
    )


READ = AsofGrammar()
