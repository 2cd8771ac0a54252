"""Column types of Spark's DDL, kept as text in one spelling: ``decimal( 10 , 2 )`` is ``DECIMAL(10,2)``."""

from __future__ import annotations

from watersmeet.errors import Refusal
from watersmeet.logical.words import word
from watersmeet.parser.cursor import Cursor, skip_brackets
from watersmeet.parser.tokens import Token
from watersmeet.schema import BY_NAME, FOREIGN_TYPES, TypeName, did_you_mean_type

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
    numbers = cursor.read_list(_number)
    cursor.expect(")", "close the size of the type with `)`.")
    return f"({','.join(numbers)})"


def _number(cursor: Cursor) -> str:
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
