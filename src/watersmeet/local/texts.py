r"""Texts in this process: their parts, LIKE, and regular expressions.

Regular expressions are Java's to Spark. A pattern is read into what Java and Python agree on, and written again for
Python, with `re.ASCII`: literals, classes of letters and ranges, ``\d \w \s \b``, groups, alternatives, greedy and lazy
repetitions. All others are left to Spark, and so are texts for which the two differ: lines behind ``.`` and ``$``,
letters beyond ASCII at ``\b`` and ``(?i)``; and repetitions of what may be empty, or of a group that is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import pyarrow as pa

from watersmeet.local.casts import (
    BOOLEAN,
    INT,
    TEXT,
    Evaluator,
    Values,
    as_argument,
    by_value,
    letters_of,
    map_values,
    python_list,
)
from watersmeet.local.cells import NeedsSparkError
from watersmeet.logical.expressions import Expr

_STRING = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def read_string(text: str) -> str | None:
    r"""The value of a string as Spark SQL writes it, with its escapes; None: the text is no such string.

    >>> read_string(r"'\\d\t\'\u0041'"), read_string("a || 'b'")
    ("\\d\t'A", None)
    """
    return None if _STRING.fullmatch(text) is None else _ESCAPE.sub(_unescape, text[1:-1])


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code or match[3]:
        number = int(code, 16) if code else int(match[3], 8)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else _refuse(match[0])
    return _ESCAPED.get(match[4], match[4])


def _refuse(what: str) -> str:
    raise NeedsSparkError(what)


@dataclass(frozen=True)
class Pattern:
    """A regular expression that Java and Python match alike.

    - ``python``: the pattern for Python
    - ``may_be_empty``: it matches the empty text
    - ``repeats_groups``: a group that captures is repeated, or inside of what is repeated
    - ``is_of_lines``, ``is_of_letters``: texts with other ends of lines than Python knows, or with letters beyond
      ASCII, are left to Spark
    """

    python: re.Pattern[str]
    may_be_empty: bool
    repeats_groups: bool
    is_of_lines: bool
    is_of_letters: bool

    def search(self, text: str) -> re.Match[str] | None:
        """The first match."""
        self.check(text)
        return self.python.search(text)

    def check(self, text: str) -> None:
        """Leave a text to Spark that the two may match differently."""
        if (self.is_of_lines and _LINE_ENDS.search(text)) or (self.is_of_letters and not text.isascii()):
            raise NeedsSparkError(f"{self.python.pattern!r} in {text!r}")


_LINE_ENDS = re.compile("[\n\r\u0085\u2028\u2029]")
_CLASSES = {"d", "D", "w", "W", "s", "S"}
_CONTROLS = {"n": "\\n", "t": "\\t", "r": "\\r", "f": "\\f"}
_COUNTS = re.compile(r"\{(\d{1,3})(?:(,)(\d{1,3})?)?\}")


class _Reader:
    """Reads a pattern of Java, and writes it for Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.groups = 0
        self.repeats_groups = self.is_of_lines = self.is_of_letters = False

    def read(self) -> Pattern:
        flags = re.ASCII
        if self.text.startswith("(?i)"):
            if not self.text.isascii():
                raise self.unknown()
            self.place, flags, self.is_of_letters = 4, re.ASCII | re.IGNORECASE, True
        written, may_be_empty = self.alternatives()
        if self.place < len(self.text):
            raise self.unknown()
        return Pattern(
            re.compile(written, flags), may_be_empty, self.repeats_groups, self.is_of_lines,
            self.is_of_letters,
        )  # fmt: skip

    def unknown(self) -> NeedsSparkError:
        return NeedsSparkError(f"the pattern {self.text!r}")

    def peek(self) -> str:
        return self.text[self.place : self.place + 1]

    def take(self, letters: str) -> bool:
        is_next = self.text.startswith(letters, self.place)
        self.place += len(letters) * is_next
        return is_next

    def alternatives(self) -> tuple[str, bool]:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return "|".join(written for written, _ in parts), any(may_be_empty for _, may_be_empty in parts)

    def sequence(self) -> tuple[str, bool]:
        out, may_be_empty = list[str](), True
        while self.peek() not in ("", "|", ")"):
            groups = self.groups
            written, is_empty, can_repeat = self.item()
            counts, least = self.counts()
            if counts:
                if is_empty or not can_repeat:
                    raise self.unknown()
                self.repeats_groups |= self.groups > groups
            out.append(written + counts)
            may_be_empty &= is_empty or (bool(counts) and least == 0)
        return "".join(out), may_be_empty

    def counts(self) -> tuple[str, int]:
        """A repetition and the least number of times; "" without one."""
        match = _COUNTS.match(self.text, self.place)
        if match is not None:
            counts, least = match[0], int(match[1])
            if match[3] and int(match[3]) < least:
                raise self.unknown()
        elif self.peek() and self.peek() in "*+?":
            counts, least = self.peek(), int(self.peek() == "+")
        else:
            return "", 1
        self.place += len(counts)
        counts += "?" * self.take("?")
        if (self.peek() and self.peek() in "*+?") or _COUNTS.match(self.text, self.place):
            raise self.unknown()
        return counts, least

    def item(self) -> tuple[str, bool, bool]:
        """An element, whether it may be empty, and whether it can be repeated."""
        letter = self.peek()
        self.place += 1
        match letter:
            case "(":
                is_plain = self.take("?:")
                if not is_plain and self.peek() == "?":
                    raise self.unknown()
                self.groups += not is_plain
                written, may_be_empty = self.alternatives()
                if not self.take(")"):
                    raise self.unknown()
                return f"({'?:' * is_plain}{written})", may_be_empty, True
            case "[":
                return self.letters(), False, True
            case ".":
                self.is_of_lines = True
                return ".", False, True
            case "^":
                return "\\A", True, False
            case "$":
                self.is_of_lines = True
                return "\\Z", True, False
            case "\\":
                return self.escape()
            case "*" | "+" | "?" | "{" | "}" | "]":
                raise self.unknown()
            case _:
                return re.escape(letter), False, True

    def escape(self) -> tuple[str, bool, bool]:
        letter = self.peek()
        self.place += 1
        if letter == "b":
            self.is_of_letters = True
            return "\\b", True, False
        return self.letter_behind(letter), False, True

    def letter_behind(self, letter: str) -> str:
        if letter in _CLASSES:
            return f"\\{letter}"
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if not letter or letter.isalnum() or not letter.isascii():
            raise self.unknown()
        return re.escape(letter)

    def letters(self) -> str:
        """A class of letters, behind its bracket."""
        out = "[^" if self.take("^") else "["
        if self.peek() == "]":
            raise self.unknown()
        while not self.take("]"):
            first, is_letter = self.member()
            if self.peek() == "-" and self.text[self.place + 1 : self.place + 2] != "]":
                self.place += 1
                last, is_last = self.member()
                if not (is_letter and is_last) or last < first or "-" in (first, last):
                    raise self.unknown()
                out += f"{_in_class(first)}-{_in_class(last)}"
            else:
                out += _in_class(first) if is_letter else first
        return f"{out}]"

    def member(self) -> tuple[str, bool]:
        """A letter of a class, or a class in it, and whether it is a letter."""
        letter = self.peek()
        self.place += 1
        if letter == "\\":
            letter = self.peek()
            self.place += 1
            if letter in _CLASSES:
                return f"\\{letter}", False
            return self.letter_behind(letter)[-1] if letter not in _CONTROLS else _ESCAPED.get(letter, "\f"), True
        if not letter or letter in "[&":
            # Java has classes in classes, and `&&`.
            raise self.unknown()
        return letter, True


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in "\\]^-[&~|" else letter


@lru_cache(maxsize=256)
def read_pattern(text: str) -> Pattern:
    r"""A pattern of Java, where Python matches alike.

    >>> read_pattern(r"(\d+)-[a-z_]*$").python.pattern
    '(\\d+)\\-[a-z_]*\\Z'
    >>> read_pattern("(?<=a)b")
    Traceback (most recent call last):
    ...
    watersmeet.local.cells.NeedsSparkError: the pattern '(?<=a)b'
    """
    return _Reader(text).read()


def _rlike(text: str, pattern: str) -> bool:
    return read_pattern(pattern).search(text) is not None


def _extract(text: str, pattern: str, number: int = 1) -> str:
    match = _read_with_groups(pattern, number).search(text)
    if match is None:
        return ""
    if not 0 <= number <= match.re.groups:
        raise ArithmeticError(f"{pattern!r} has no group {number}")
    return match[number] or ""


def _read_with_groups(pattern: str, number: int) -> Pattern:
    """A pattern whose groups are asked for."""
    read = read_pattern(pattern)
    if number and read.repeats_groups:
        raise NeedsSparkError(f"the groups of {pattern!r}")
    return read


def _read_of_letters(pattern: str) -> Pattern:
    """A pattern that matches at least one letter."""
    read = read_pattern(pattern)
    if read.may_be_empty:
        raise NeedsSparkError(f"matches of {pattern!r}, which may be empty")
    return read


_GROUP = re.compile(r"\$(\d)(?!\d)")


def _replace_matches(text: str, pattern: str, new: str) -> str:
    parts = _GROUP.split(new)
    if any("$" in part or "\\" in part for part in parts[::2]):
        raise NeedsSparkError(f"the replacement {new!r}")
    numbers = [int(number) for number in parts[1::2]]
    _read_with_groups(pattern, max(numbers, default=0))
    read = _read_of_letters(pattern)
    read.check(text)
    if any(number > read.python.groups for number in numbers):
        if read.python.search(text) is None:
            return text
        raise ArithmeticError(f"{pattern!r} has no group {max(numbers)}")

    def replacement(match: re.Match[str]) -> str:
        return "".join((match[int(part)] or "") if place % 2 else part for place, part in enumerate(parts))

    return read.python.sub(replacement, text)


def _count_matches(text: str, pattern: str) -> int:
    read = _read_of_letters(pattern)
    read.check(text)
    return sum(1 for _ in read.python.finditer(text))


def _split(expr: Expr, values: Values) -> pa.Array:
    if len(values) != 2:
        raise NeedsSparkError(expr.sql())
    texts, patterns = (as_argument(value, TEXT) for value in values)
    return map_values(_split_text, pa.list_(TEXT), texts, patterns)


def _split_text(text: str, pattern: str) -> list[str]:
    read = _read_of_letters(pattern)
    read.check(text)
    ends = [0, *(end for match in read.python.finditer(text) for end in match.span()), len(text)]
    return [text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)]


def _part_of_text(text: str, position: int, length: int = 2**31 - 1) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = min(start + length, 2**31 - 1)
    return text[max(start, 0) : max(end, 0)] if end > start else ""


def _split_part(text: str, delimiter: str, number: int) -> str:
    if number == 0:
        raise ArithmeticError("split_part counts from 1")
    parts = text.split(delimiter) if delimiter else [text]
    place = number - 1 if number > 0 else len(parts) + number
    return parts[place] if 0 <= place < len(parts) else ""


def _pad(is_left: bool, text: str, length: int, pad: str = " ") -> str:
    if length <= len(text) or not pad:
        return text[: max(length, 0)]
    if length > 10**6:
        raise NeedsSparkError(f"a text of {length} characters")
    filled = (pad * (length // len(pad) + 1))[: length - len(text)]
    return filled + text if is_left else text + filled


def _repeat_text(text: str, number: int) -> str:
    if number * len(text) > 10**6:
        raise NeedsSparkError(f"a text of {number * len(text)} characters")
    return text * max(number, 0)


def _like(is_folded: bool, text: str, pattern: str, escape: str = "\\") -> bool:
    out, place = list[str](), 0
    while place < len(pattern):
        letter = pattern[place]
        if letter == escape:
            place += 1
            if pattern[place : place + 1] not in ("_", "%", escape) or not pattern[place : place + 1]:
                raise ArithmeticError(f"the pattern {pattern!r} has no character to escape")
            out.append(re.escape(pattern[place]))
        else:
            out.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
        place += 1
    if is_folded and not (text.isascii() and pattern.isascii()):
        raise NeedsSparkError("ILIKE of letters beyond ASCII")
    return re.fullmatch("".join(out), text, re.DOTALL | (re.IGNORECASE if is_folded else 0)) is not None


def _translate(text: str, letters: str, others: str) -> str:
    table: dict[int, str] = {}
    for place, letter in enumerate(letters):
        table.setdefault(ord(letter), others[place : place + 1])
    return text.translate(table)


def _initcap(text: str) -> str:
    if not text.isascii():
        raise NeedsSparkError("initcap of letters beyond ASCII")
    return " ".join(word[:1].upper() + word[1:].lower() for word in text.split(" "))


def _trim_function(method: Callable[[str, str], str], expr: Expr, values: Values) -> pa.Array:
    if len(expr.args) != 1:
        raise NeedsSparkError(expr.sql())
    return by_value(TEXT, lambda text: method(text, " "), TEXT)(expr, values)


def _concat(expr: Expr, values: Values) -> pa.Array:
    if not values or any(pa.types.is_nested(value.type) or pa.types.is_binary(value.type) for value in values):
        raise NeedsSparkError(expr.sql())
    texts = [python_list(as_argument(value, TEXT)) for value in values]
    return pa.array([None if None in row else "".join(row) for row in zip(*texts, strict=True)], TEXT)


def _concat_ws(expr: Expr, values: Values) -> pa.Array:
    texts = [python_list(as_argument(value, TEXT)) for value in values]
    joined = (
        None if separator is None else separator.join(text for text in row if text is not None)
        for separator, *row in zip(*texts, strict=True)
    )
    return pa.array(joined, TEXT)


def _length(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if pa.types.is_binary(value.type):
        return map_values(len, INT, value)
    return map_values(len, INT, as_argument(value, TEXT))


_PATH = re.compile(r"\$((?:\.[A-Za-z_][A-Za-z_0-9]*|\[[0-9]{1,9}\])*)")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]", re.ASCII)
_PLAIN_JSON = re.compile(r"[ -!#-\[\]-\uffff]*")
"""Texts that JSON has without escapes."""


def _json_object(text: str, path: str) -> str | None:
    """``get_json_object`` of valid JSON with plain texts and whole numbers, by a path of names and indexes."""
    if _PATH.fullmatch(path) is None:
        raise NeedsSparkError(f"the path {path!r}")
    try:
        value: Any = json.loads(
            text, parse_float=_refuse, parse_constant=_refuse, object_pairs_hook=_read_object, parse_int=_read_number
        )
    except ValueError as error:
        # Spark also reads JSON that is only right up to the value.
        raise NeedsSparkError(f"{text!r} as JSON") from error
    for name, index in _STEP.findall(path):
        if not isinstance(value, dict if name else list):
            if isinstance(value, dict | list):
                raise NeedsSparkError(f"{path!r} in {text!r}")
            return None
        step: Any = name or int(index)
        if (step not in value) if name else step >= len(cast("list[Any]", value)):
            return None
        value = cast("Any", value)[step]
    return value if isinstance(value, str) else None if value is None else _json_text(value)


def _read_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise NeedsSparkError("an object with a name twice")
    return dict(pairs)


def _read_number(text: str) -> int:
    return int(text) if len(text) < 19 and text != "-0" else _refuse(text)  # type: ignore[return-value]


def _json_text(value: Any) -> str:
    texts = re.findall(r'"((?:[^"\\]|\\.)*)"', json.dumps(value, ensure_ascii=False))
    if not all(map(_PLAIN_JSON.fullmatch, texts)):
        raise NeedsSparkError("JSON with escapes")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


TEXTS: Mapping[str, Evaluator] = {
    "||": _concat,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "length": _length,
    "char_length": _length,
    "character_length": _length,
    "len": _length,
    "upper": by_value(TEXT, lambda text: letters_of(text).upper(), TEXT),
    "ucase": by_value(TEXT, lambda text: letters_of(text).upper(), TEXT),
    "lower": by_value(TEXT, lambda text: letters_of(text).lower(), TEXT),
    "lcase": by_value(TEXT, lambda text: letters_of(text).lower(), TEXT),
    "initcap": by_value(TEXT, _initcap, TEXT),
    "trim": partial(_trim_function, str.strip),
    "ltrim": partial(_trim_function, str.lstrip),
    "rtrim": partial(_trim_function, str.rstrip),
    "substring": by_value(TEXT, _part_of_text, TEXT, INT, INT, optional=1),
    "substr": by_value(TEXT, _part_of_text, TEXT, INT, INT, optional=1),
    "left": by_value(TEXT, lambda text, number: text[: max(number, 0)], TEXT, INT),
    "right": by_value(TEXT, lambda text, number: _part_of_text(text, -number) if number > 0 else "", TEXT, INT),
    "replace": by_value(
        TEXT, lambda text, part, new="": text.replace(part, new) if part else text, TEXT, TEXT, TEXT, optional=1
    ),
    "translate": by_value(TEXT, _translate, TEXT, TEXT, TEXT),
    "split_part": by_value(TEXT, _split_part, TEXT, TEXT, INT),
    "lpad": by_value(TEXT, partial(_pad, True), TEXT, INT, TEXT, optional=1),
    "rpad": by_value(TEXT, partial(_pad, False), TEXT, INT, TEXT, optional=1),
    "repeat": by_value(TEXT, _repeat_text, TEXT, INT),
    "reverse": by_value(TEXT, lambda text: text[::-1], TEXT),
    "startswith": by_value(BOOLEAN, str.startswith, TEXT, TEXT),
    "endswith": by_value(BOOLEAN, str.endswith, TEXT, TEXT),
    "contains": by_value(BOOLEAN, str.__contains__, TEXT, TEXT),
    "instr": by_value(INT, lambda text, part: text.find(part) + 1, TEXT, TEXT),
    "locate": by_value(INT, lambda part, text: text.find(part) + 1, TEXT, TEXT),
    "position": by_value(INT, lambda part, text: text.find(part) + 1, TEXT, TEXT),
    "like": by_value(BOOLEAN, partial(_like, False), TEXT, TEXT, TEXT, optional=1),
    "ilike": by_value(BOOLEAN, partial(_like, True), TEXT, TEXT, TEXT, optional=1),
    "rlike": by_value(BOOLEAN, _rlike, TEXT, TEXT),
    "regexp": by_value(BOOLEAN, _rlike, TEXT, TEXT),
    "regexp_like": by_value(BOOLEAN, _rlike, TEXT, TEXT),
    "regexp_extract": by_value(TEXT, _extract, TEXT, TEXT, INT, optional=1),
    "regexp_replace": by_value(TEXT, _replace_matches, TEXT, TEXT, TEXT),
    "regexp_count": by_value(INT, _count_matches, TEXT, TEXT),
    "split": _split,
    "get_json_object": by_value(TEXT, _json_object, TEXT, TEXT),
}
"""Functions of texts."""
