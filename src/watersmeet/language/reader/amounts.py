"""Lengths of time outside expressions: behind WITHIN and in WATERMARK."""

from __future__ import annotations

from watersmeet.catalog import Amount
from watersmeet.duration import CALENDAR_UNITS, SHORT_UNITS, SPARK_UNITS, parse_duration
from watersmeet.errors import refuse
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.leaves import read_interval

_UNITS = SPARK_UNITS.keys() | SHORT_UNITS.keys() | CALENDAR_UNITS
_HINT = "write a duration such as `5s`, `10 MINUTES` or `INTERVAL '1' HOUR`."


def starts_amount(cursor: Cursor, ahead: int = 0) -> bool:
    """Whether what comes next can be a duration or a number."""
    token = cursor.peek(ahead)
    return token.kind in ("number", "string") or token.text[:1].isdecimal() or token.word in ("INTERVAL", "-", "+")


def read_amount(cursor: Cursor) -> Amount:
    """A duration in any of its spellings, or a whole number for event times that are integers."""
    if not starts_amount(cursor):
        raise cursor.failure("a duration", _HINT)
    first = cursor.position
    if cursor.at("INTERVAL"):
        value = read_interval(cursor).value
        if isinstance(value, int):
            return _not_negative(cursor, first, Amount(value, is_interval=True))
        return _parse(cursor, first, cursor.text_from(first))
    if cursor.peek().text.isdecimal() and cursor.peek(1).text.lower() not in _UNITS:
        return _read_plain(cursor)
    words = [cursor.next().text]
    while cursor.peek().text.lower() in _UNITS or (cursor.peek().kind == "number" and len(words) > 1):
        if cursor.peek().text.lower() in SPARK_UNITS:
            cursor.layout.keywords.add(cursor.position)
        words.append(cursor.next().text)
    return _parse(cursor, first, " ".join(words).replace('"', "'"))


def _read_plain(cursor: Cursor) -> Amount:
    digits = cursor.peek().text
    if len(digits) > 19 or int(digits) >= 2**63:
        raise cursor.failure("a number that BIGINT can hold", "write it with fewer digits.")
    cursor.next()
    return Amount(int(digits), is_interval=False)


def _parse(cursor: Cursor, first: int, text: str) -> Amount:
    try:
        return _not_negative(cursor, first, Amount(parse_duration(text), is_interval=True))
    except ValueError as error:
        place = cursor.place(cursor.tokens[first], cursor.previous)
        raise refuse("SYNTAX_ERROR", place, expected="a duration", found=f"`{text}`", hint=str(error)) from None


def _not_negative(cursor: Cursor, first: int, amount: Amount) -> Amount:
    if amount.value < 0:
        place = cursor.place(cursor.tokens[first], cursor.previous)
        found = f"`{cursor.text_from(first)}`"
        raise refuse("SYNTAX_ERROR", place, expected="a duration of zero or more", found=found, hint=_HINT)
    return amount
