"""The leaves of an expression: columns, literals, intervals, types, and text that Spark alone understands.

With them what has the same form outside expressions: lengths of time behind WITHIN and in WATERMARK, and the types of
declared columns. A type is kept as text in one spelling: ``decimal( 10 , 2 )`` is ``DECIMAL(10,2)``.
"""

from __future__ import annotations

import re
from decimal import Decimal

from watersmeet.catalog import Amount
from watersmeet.duration import CALENDAR_UNITS, SHORT_UNITS, SPARK_UNITS, CalendarDurationError, parse_duration
from watersmeet.errors import Refusal, refuse
from watersmeet.logical.expressions import Expr, Reference, Value
from watersmeet.logical.words import word
from watersmeet.parser.calls import OVER_HINT
from watersmeet.parser.cursor import Cursor, Token, skip_brackets
from watersmeet.parser.references import text_leaf
from watersmeet.schema import BY_NAME, FOREIGN_TYPES, TYPES, TypeName, did_you_mean_type

NO_OPERAND = frozenset({
    "AND", "OR", "FROM", "WHERE", "ON", "SELECT", "AS", "JOIN", "BETWEEN", "IN", "IS", "LIKE", "UNION", "INTO",
    "WHEN", "THEN", "ELSE", "END",
})  # fmt: skip
"""Words that end an expression, so that a forgotten operand is noticed where it is missing."""

SUFFIXES = frozenset({"[", ".", "::", "COLLATE"})
"""Suffixes of an operand."""

_TYPED = frozenset(name for type_ in TYPES if type_.values == "time" for name in type_.names)
_WITHOUT_BRACKETS = frozenset({"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP"})
_CONSTANTS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_SHORT_DURATION = re.compile(r"(\d+)(ms|m|h)", re.IGNORECASE)


def read_operand(cursor: Cursor, first: int | None = None, taken: Expr | None = None) -> Expr:
    """An operand and its suffixes: ``[index]``, ``.field``, ``::type``.

    With ``first``, the index of its first token, the operand itself is taken already; ``taken`` is its expression, None
    if only its text counts.
    """
    begin = cursor.position if first is None else first
    operand = _read_primary(cursor) if first is None else taken
    while cursor.at_any(SUFFIXES):
        if cursor.at("::"):
            inner = operand or text_leaf(cursor, begin)
            cursor.next()
            operand = Expr("cast", (inner,), value=read_type(cursor), span=cursor.span_from(begin))
        elif cursor.is_structured and operand is not None and not cursor.at("COLLATE"):
            operand = _read_access(cursor, operand)
        else:
            _read_suffix(cursor)
            operand = None
    return operand or text_leaf(cursor, begin)


def _read_access(cursor: Cursor, operand: Expr) -> Expr:
    """An element or a field of an operand, as a call."""
    # An index is an expression, which is made of leaves.
    from watersmeet.parser.expressions import read_or

    if cursor.take("."):
        field = cursor.take_name("the name of a field", "write `struct.field`.")
        return Expr("call", (operand,), ".", value=field.value)
    cursor.skip(1)
    index = read_or(cursor)
    cursor.expect("]", "close the bracket with `]`.")
    return Expr("call", (operand, index), "[]")


def _read_suffix(cursor: Cursor) -> None:
    if cursor.at("["):
        skip_brackets(cursor)
    elif cursor.take("."):
        cursor.take_name("the name of a field", "write `struct.field`.")
    else:
        cursor.next()
        cursor.take_name("the name of a collation", "write `COLLATE UTF8_LCASE`, for example.")


def _read_primary(cursor: Cursor) -> Expr:
    first, token = cursor.position, cursor.peek()
    match token.kind:
        case "number":
            return _read_number(cursor)
        case "string":
            return _string(cursor)
        case "special":
            cursor.next()
            return text_leaf(cursor, first)
        case "quoted":
            return _name(cursor)
        case "symbol" if token.word == "[":
            skip_brackets(cursor)
            return text_leaf(cursor, first)
        case "word" if token.word not in NO_OPERAND:
            return _word(cursor)
        case _:
            raise cursor.failure("an expression", "write a column, a value or a function here.")


def _word(cursor: Cursor) -> Expr:
    first, token, following = cursor.position, cursor.peek(), cursor.peek(1)
    if following.word in ("(", "."):
        return _name(cursor)
    if token.word in _CONSTANTS:
        cursor.next()
        return Expr("literal", text=token.text, value=_CONSTANTS[token.word], span=cursor.span_of(token))
    if token.word == "INTERVAL" and _starts_interval(cursor):
        return read_interval(cursor)
    if token.word == "CASE" and _skip_case(cursor):
        return text_leaf(cursor, first)
    if token.word in _TYPED and following.kind == "string":
        cursor.skip(2)
        return text_leaf(cursor, first)
    if token.word in _WITHOUT_BRACKETS:
        cursor.next()
        return text_leaf(cursor, first)
    short = _SHORT_DURATION.fullmatch(token.text)
    if short:
        unit = {"ms": "MILLISECONDS", "m": "MINUTES", "h": "HOURS"}[short[2].lower()]
        raise cursor.failure("an expression", f"write `INTERVAL {short[1]} {unit}`.")
    return _name(cursor)


def _name(cursor: Cursor) -> Expr:
    """A column, or a function if brackets follow its name."""
    first = cursor.position
    parts = [cursor.next().value]
    while cursor.at(".") and cursor.peek(1).kind != "end":
        cursor.next()
        hint = "`*` may stand alone or after an alias in SELECT." if cursor.at("*") else "write `alias.column`."
        parts.append(cursor.take_name("the name of a column", hint).value)
    if not cursor.at("("):
        text = cursor.text_from(first)
        refs = (Reference(tuple(parts), 0, len(text)),)
        return Expr("column", text=text, refs=refs, span=cursor.span_from(first))
    skip_brackets(cursor)
    if cursor.at("FILTER", "("):
        cursor.next()
        skip_brackets(cursor)
    if cursor.at("OVER"):
        hint = _OTHER_RANKS.get(parts[-1].lower())
        what = "A window function of this kind" if hint is None else f"{parts[-1].lower()}() OVER"
        raise cursor.refuse_unsupported(what, hint or OVER_HINT)
    return text_leaf(cursor, first)


_OTHER_RANKS = {
    "ntile": (
        "number the rows, `ROW_NUMBER() OVER (PARTITION BY k ORDER BY x)`, and over a table count them, `count(*) OVER "
        "(PARTITION BY k)`: both say which part a row is in."
    ),
    "percent_rank": (
        "over a table, write `coalesce(try_divide(RANK() OVER (PARTITION BY k ORDER BY x) - 1, "
        "count(*) OVER (PARTITION BY k) - 1), 0)`."
    ),
    "cume_dist": "over a table, write `count(*) OVER (PARTITION BY k ORDER BY x) / count(*) OVER (PARTITION BY k)`.",
    "nth_value": (
        "number the rows in a subquery, `ROW_NUMBER() OVER (PARTITION BY k ORDER BY t) AS n`, and write "
        "`max(x) FILTER (WHERE n = 2) OVER (PARTITION BY k ORDER BY t)` around it."
    ),
}
"""Functions of other systems by name, and what gives their values."""


def _skip_case(cursor: Cursor) -> bool:
    """Skip CASE up to its END; False if END is missing, as for a column named `case`."""
    first, depth = cursor.position, 0
    while not cursor.at_end:
        is_field = cursor.position > first and cursor.previous.word == "."
        if cursor.at("CASE") and not is_field:
            depth += 1
        elif cursor.at("END") and not is_field:
            depth -= 1
        if cursor.at("("):
            skip_brackets(cursor)
        else:
            cursor.next()
        if depth == 0:
            return True
    if first + 1 < len(cursor.tokens) and cursor.tokens[first + 1].word == "WHEN":
        raise cursor.failure("END", "close CASE with END.")
    cursor.position = first
    return False


def _string(cursor: Cursor) -> Expr:
    """A string; Spark reads strings that follow each other as one."""
    first = cursor.position
    value = cursor.next().value
    while cursor.peek().kind == "string":
        doubled = cursor.peek().start == cursor.previous.end and cursor.peek().text[0] == cursor.previous.text[0]
        value += (cursor.peek().text[0] if doubled else "") + cursor.peek().value
        cursor.next()
    text = cursor.text_from(first)
    # Only Spark defines the meaning of a backslash.
    if "\\" in text:
        return Expr("other", text=text, span=cursor.span_from(first))
    return Expr("literal", text=text, value=value, span=cursor.span_from(first))


def _read_number(cursor: Cursor) -> Expr:
    token = cursor.peek()
    try:
        value = _number(token.text)
    except (ValueError, ArithmeticError):
        raise cursor.failure("a number that Spark can hold", "write it with fewer digits.") from None
    cursor.next()
    return Expr("literal", text=token.text, value=value, span=cursor.span_of(token))


def _number(text: str) -> Value:
    """Read a number as Spark: an exponent, D or F make a double; a point, BD or too many digits for BIGINT a decimal.

    >>> _number("10L"), _number("1.5"), _number("1e3"), _number("2d")
    (10, Decimal('1.5'), 1000.0, 2.0)
    """
    lowered = text.lower()
    if lowered.endswith("bd"):
        return Decimal(lowered[:-2])
    digits = lowered.rstrip("lsydf")
    if "e" in digits or lowered[-1] in "df":
        return float(digits)
    if "." in digits or abs(int(digits)) >= 2**63:
        return Decimal(digits)
    return int(digits)


def _starts_interval(cursor: Cursor) -> bool:
    ahead = 2 if cursor.at_any({"+", "-"}, ahead=1) else 1
    value, unit = cursor.peek(ahead), cursor.peek(ahead + 1).text.lower()
    if value.kind == "string":
        return True
    return value.kind == "number" and (ahead == 1 or unit in SPARK_UNITS or unit in CALENDAR_UNITS)


def read_interval(cursor: Cursor) -> Expr:
    """``INTERVAL`` and its parts: microseconds, or text if it counts months or years."""
    first = cursor.position
    words = [cursor.peek().text]
    cursor.skip(1)
    while _at_amount(cursor):
        if cursor.at_any({"+", "-"}):
            words.append(cursor.next().text)
        is_text = cursor.peek().kind == "string"
        words.append(cursor.next().text.replace('"', "'"))
        unit = cursor.peek().text.lower()
        if unit in SPARK_UNITS or unit in CALENDAR_UNITS:
            words.append(cursor.peek().text)
            cursor.skip(1)
        elif not is_text:
            raise cursor.failure("a unit of time", "write `INTERVAL 5 SECONDS`, for example.")
        if cursor.at("TO"):
            words += [cursor.peek().text, cursor.peek(1).text]
            cursor.skip(2)
    span = cursor.span_from(first)
    try:
        value = parse_duration(" ".join(words))
    except CalendarDurationError:
        return Expr("other", text=cursor.text_from(first), span=span)
    except ValueError as error:
        expected = {"expected": "an interval", "found": f"`{' '.join(words)}`", "hint": str(error)}
        place = cursor.place(cursor.tokens[first], cursor.previous)
        raise refuse("SYNTAX_ERROR", place, **expected) from None
    return Expr("interval", text=cursor.text_from(first), value=value, span=span)


def _at_amount(cursor: Cursor) -> bool:
    ahead = 1 if cursor.at_any({"+", "-"}) else 0
    if cursor.previous.word != "INTERVAL" and ahead:
        return False  # behind the first part a sign is arithmetic
    return cursor.peek(ahead).kind in ("number", "string")


_UNITS = SPARK_UNITS.keys() | SHORT_UNITS.keys() | CALENDAR_UNITS
_HINT = "write a duration such as `5s`, `10 MINUTES` or `INTERVAL '1' HOUR`."


def starts_amount(cursor: Cursor, ahead: int = 0) -> bool:
    """Whether a duration or a number can come next."""
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
        text = f"`{cursor.text_from(first)}`"
        raise refuse("SYNTAX_ERROR", place, expected="a duration of zero or more", found=text, hint=_HINT)
    return amount


_INTERVAL_FIELDS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"})

_ZONES = (
    (("WITHOUT", "TIME", "ZONE"), "TIMESTAMP_NTZ"),
    (("WITH", "TIME", "ZONE"), "TIMESTAMP"),
    (("WITH", "LOCAL", "TIME", "ZONE"), "TIMESTAMP"),
)


def read_type(cursor: Cursor) -> str:  # noqa: PLR0911 - one return per form of type
    """A type. An unknown name is recorded as a refusal and parsing continues, so that all of them are reported."""
    token = cursor.take_name("a type", "write the type of the column, for example BIGINT, STRING or TIMESTAMP.")
    word, type_name = token.word, BY_NAME.get(token.word)
    if type_name:
        cursor.layout.keywords.add(cursor.position - 1)
    if cursor.at("PRECISION") or cursor.at("VARYING"):
        return _unknown(cursor, token)
    if type_name and type_name.form == "plain":
        _check_plain(cursor, type_name)
        return type_name.name + _collation(cursor, word)
    if type_name and type_name.form == "sized":
        size = _numbers(cursor) or ("(10,0)" if type_name.name == "DECIMAL" else "")
        if type_name.name == "DECIMAL":
            _check_decimal(cursor, token, size)
        return type_name.name + size
    if word == "ARRAY" and cursor.at("<"):
        return f"ARRAY<{_inner(cursor)}>"
    if word == "MAP" and cursor.at("<"):
        return f"MAP<{_pair(cursor)}>"
    if word == "STRUCT" and cursor.take("<>"):
        return "STRUCT<>"
    if word == "STRUCT" and cursor.at("<"):
        return f"STRUCT<{_fields(cursor)}>"
    if word == "INTERVAL" and cursor.at_any(_INTERVAL_FIELDS):
        return _interval(cursor)
    return _unknown(cursor, token)


def _unknown(cursor: Cursor, token: Token) -> str:
    """Note that a type is not known, and take what belongs to it."""
    first, name = cursor.position - 1, token.value.upper()
    if (name == "DOUBLE" and cursor.at("PRECISION")) or (name == "CHARACTER" and cursor.at("VARYING")):
        name = f"{name} {cursor.next().word}"
    hint = f"write {FOREIGN_TYPES[name]}." if name in FOREIGN_TYPES else did_you_mean_type(name)
    parameters = {"type": cursor.text_from(first).strip("`"), "hint": hint}
    cursor.refusals.append(Refusal("UNKNOWN_TYPE", parameters, cursor.place(token, cursor.previous)))
    if cursor.at("("):
        skip_brackets(cursor)
    return name


def _check_plain(cursor: Cursor, type_name: TypeName) -> None:
    """Refuse a size or WITH TIME ZONE behind a type that takes none."""
    first, written = cursor.position - 1, type_name.name
    if cursor.at("("):
        skip_brackets(cursor)
    for words, meant in _ZONES:
        if type_name.time_type == "timestamp" and cursor.at(*words):
            written = meant
            cursor.skip(len(words))
    if cursor.position > first + 1:
        why = "it holds microseconds" if type_name.time_type in ("timestamp", "timestamp_ntz") else "it has one size"
        parameters = {"type": cursor.text_from(first), "hint": f"write {written} alone: {why}."}
        place = cursor.place(cursor.tokens[first], cursor.previous)
        cursor.refusals.append(Refusal("UNKNOWN_TYPE", parameters, place))


def _check_decimal(cursor: Cursor, token: Token, size: str) -> None:
    """Refuse a DECIMAL of more digits than Spark has, or of more behind the point than there are."""
    precision, scale = (*map(int, size.strip("()").split(",")), 0)[:2]
    if precision > 38 or scale > precision:
        hint = f"write DECIMAL(38,{min(scale, 38)}): it has at most 38 digits, those behind the point among them."
        parameters = {"type": f"DECIMAL{size}", "hint": hint}
        cursor.refusals.append(Refusal("UNKNOWN_TYPE", parameters, cursor.place(token, cursor.previous)))


def _collation(cursor: Cursor, word: str) -> str:
    if word != "STRING" or not cursor.take("COLLATE"):
        return ""
    return f" COLLATE {cursor.take_name('the name of a collation', 'write `STRING COLLATE UTF8_LCASE`.').text}"


def _numbers(cursor: Cursor) -> str:
    """``(10,2)`` if brackets come next."""
    if not cursor.take("("):
        return ""
    numbers = cursor.read_list(_type_size)
    cursor.expect(")", "close the size of the type with `)`.")
    return f"({','.join(numbers)})"


def _type_size(cursor: Cursor) -> str:
    if not cursor.peek().text.isdecimal():
        raise cursor.failure("a number", "write the size of the type, for example DECIMAL(10,2).")
    return cursor.next().text


def _inner(cursor: Cursor) -> str:
    cursor.next()
    inner = read_type(cursor)
    cursor.expect(">", "write `ARRAY<type>`.")
    return inner


def _pair(cursor: Cursor) -> str:
    cursor.next()
    key = read_type(cursor)
    cursor.expect(",", "write `MAP<key type, value type>`.")
    value = read_type(cursor)
    cursor.expect(">", "write `MAP<key type, value type>`.")
    return f"{key}, {value}"


def _fields(cursor: Cursor) -> str:
    cursor.next()
    fields = cursor.read_list(_field)
    cursor.expect(">", "write `STRUCT<name: type, ...>`.")
    return ", ".join(fields)


def _field(cursor: Cursor) -> str:
    name = cursor.take_name("the name of a field", "write `STRUCT<name: type, ...>`.")
    cursor.take(":")
    written = f"{word(name.value)}: {read_type(cursor)}"
    if cursor.take("NOT", "NULL"):
        written += " NOT NULL"
    if cursor.at("COMMENT") and cursor.peek(1).kind == "string":
        cursor.skip(1)
        written += f" COMMENT {cursor.next().text}"
    return written


def _interval(cursor: Cursor) -> str:
    first = cursor.peek().word
    cursor.skip(1)
    if not cursor.take("TO"):
        return f"INTERVAL {first}"
    if not cursor.at_any(_INTERVAL_FIELDS):
        raise cursor.misspelt(tuple(_INTERVAL_FIELDS), "a unit of time", "write `INTERVAL DAY TO SECOND`.")
    cursor.skip(1)
    return f"INTERVAL {first} TO {cursor.previous.word}"
