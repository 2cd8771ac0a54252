"""The clauses of a window join: WINDOW behind a source, and PAD behind the condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from watersmeet.catalog import Amount
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import Expr, column
from watersmeet.logical.nodes import Clause, Side
from watersmeet.operators.window.relation import LimitKind, Pad, PartitionLimitClause, WindowClause, WindowKind
from watersmeet.parser.cursor import Cursor, Grammar, Words, tokenize
from watersmeet.parser.expressions import read_or, too_deep
from watersmeet.parser.leaves import read_amount
from watersmeet.parser.statements import read_values
from watersmeet.parser.unsupported import at_join

_KINDS: dict[str, WindowKind] = {"COUNT": "count", "TIME": "time", "DELTA": "delta"}
_LIMITS: dict[tuple[str, str], LimitKind] = {
    ("PARTITION", "AGE"): "age",
    ("PARTITION", "COUNT"): "partitions",
    ("TUPLE", "COUNT"): "rows",
}
_HINT = "write `WINDOW (COUNT 100)`, `WINDOW (TIME 10s)` or `WINDOW (DELTA column 10)`."
_SLIDING = "leave it out: a window always slides, row by row."
_SIZE = "write a whole number such as `100`, or a duration such as `10s`."
_PAD = "write `PAD RIGHT WITH (name '', amount 0)`, `PAD RIGHT ZEROS` or `PAD RIGHT NULLS`."


class WindowGrammar(Grammar):
    """Windows stand behind sources, PAD behind conditions."""

    outputs: ClassVar[Mapping[Words, str]] = {
        ("UNMATCHED", "LEFT", "INTO"): "_unmatched_left",
        ("UNMATCHED", "RIGHT", "INTO"): "_unmatched_right",
    }
    words = ("WINDOW", "PAD", "UNMATCHED")
    spaced = frozenset({"WINDOW"})

    def at_clause(self, cursor: Cursor) -> bool:
        return cursor.at("WINDOW", "(") or self.at_padding(cursor)

    def at_padding(self, cursor: Cursor) -> bool:
        """PAD, and not an alias of that name before LEFT JOIN."""
        return cursor.at("PAD") and cursor.at_any({"LEFT", "RIGHT"}, 1) and not at_join(cursor, 1)

    def read_behind_source(self, cursor: Cursor, before: Clause | None) -> Clause | None:
        if not cursor.at("WINDOW", "("):
            return before
        if before is not None:
            raise cursor.failure("one window", "write WINDOW once, after the name or after the alias.")
        first = cursor.position
        cursor.skip(2)
        window = _read_inside(cursor, first)
        if cursor.at(","):
            raise cursor.failure("PARTITION BY or `)`", "give one size: every row is a trigger, and the window slides.")
        if not cursor.at(")"):
            raise cursor.misspelt(("PARTITION", "TUPLE"), "PARTITION BY or `)`", _HINT)
        cursor.next()
        return replace(window, span=cursor.span_from(first))

    def read_behind_join(self, cursor: Cursor) -> tuple[Clause, ...]:
        """``PAD ...``, at most one for each side."""
        pads: list[Pad] = []
        while self.at_padding(cursor):
            pads.append(_read_pad(cursor, pads))
        return tuple(pads)

    def refuse_misplaced(self, cursor: Cursor, end: str) -> WatersmeetError | None:
        if cursor.at_any({"PAD"}):
            return cursor.failure(end, "write PAD after JOIN, before WHERE.")
        if cursor.at("WINDOW", "("):
            return cursor.failure(end, "write WINDOW after the name of a source.")
        return None


def read_window(text: str, name: str = "<window>") -> WindowClause:
    """The window that a text describes, as it stands inside the brackets of ``WINDOW (...)``.

    >>> window = read_window("COUNT 100 PARTITION BY ticker")
    >>> window.kind, window.amount.value, window.partition_by[0].text
    ('count', 100, 'ticker')
    """
    cursor = Cursor(name, text, tokenize(text, name))
    try:
        window = _read_inside(cursor, 0)
    except RecursionError:
        raise too_deep(cursor, 0) from None
    if cursor.peek().kind != "end":
        raise cursor.misspelt(("PARTITION", "TUPLE"), "PARTITION BY or the end", _HINT)
    if cursor.refusals:
        raise WatersmeetError(cursor.refusals)
    return window


def _read_inside(cursor: Cursor, first: int) -> WindowClause:
    word = cursor.peek().word
    if word in ("TUMBLING", "SLIDING", "PARTITIONED"):
        raise cursor.failure("COUNT, TIME or DELTA", _SLIDING if word != "PARTITIONED" else "write PARTITION BY.")
    if word not in _KINDS:
        raise cursor.misspelt(tuple(_KINDS), "COUNT, TIME or DELTA", _HINT)
    cursor.skip(1)
    kind = _KINDS[word]
    measured = _read_column(cursor) if kind == "delta" else None
    amount = _read_size(cursor)
    partition_by = cursor.read_list(read_or) if cursor.take("PARTITION", "BY") else ()
    return WindowClause(kind, amount, measured, partition_by, _read_limit(cursor), cursor.span_from(first))


def _read_column(cursor: Cursor) -> Expr:
    first, hint = cursor.position, "write the column that is measured, then a size: `DELTA sold_at 10s`."
    return column(cursor.take_path("the name of a column", hint), cursor.span_from(first))


def _read_size(cursor: Cursor) -> Amount:
    """A number of rows, a distance or a duration, neither negative nor fractional."""
    token = cursor.peek()
    is_plain = token.kind == "number" and not token.text[-1].isalpha() and cursor.peek(1).kind != "word"
    if (is_plain and not token.text.isdecimal()) or cursor.at_any({"-", "+"}):
        raise cursor.failure("a whole number of zero or more", _SIZE)
    if token.kind not in ("number", "string") and not token.text[:1].isdecimal() and not cursor.at("INTERVAL"):
        raise cursor.failure("a size", _SIZE)
    return read_amount(cursor)


def _read_limit(cursor: Cursor) -> PartitionLimitClause | None:
    words = next((words for words in _LIMITS if cursor.at(*words)), None)
    if words is None:
        return None
    first = cursor.position
    cursor.skip(2)
    limit = PartitionLimitClause(_LIMITS[words], _read_size(cursor), cursor.span_from(first))
    if any(cursor.at(*words) for words in _LIMITS):
        raise cursor.failure("`)`", "give one limit: PARTITION AGE, PARTITION COUNT or TUPLE COUNT.")
    return limit


def _read_pad(cursor: Cursor, before: list[Pad]) -> Pad:
    first = cursor.position
    cursor.may_break()
    side: Side = "left" if cursor.peek(1).word == "LEFT" else "right"
    if any(pad.side == side for pad in before):
        raise cursor.failure("one PAD for each side", f"write PAD {side.upper()} once.")
    cursor.skip(2)
    is_with = cursor.take("WITH")
    if cursor.at_any({"ZEROS", "NULLS"}):
        cursor.skip(1)
        return Pad(side, "zeros" if cursor.previous.word == "ZEROS" else "nulls", cursor.span_from(first))
    if not is_with:
        raise cursor.misspelt(("WITH", "ZEROS", "NULLS"), "WITH, ZEROS or NULLS", _PAD)
    return Pad(side, read_values(cursor, _PAD), cursor.span_from(first))


READ = WindowGrammar()
