"""Text as tokens, and a cursor that reads them.

sqlglot's tokenizer knows Spark's quotes, comments and numbers. Its tokens are simplified here: a keyword is a word
like any other, since no word is reserved where a name is expected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from watersmeet.errors import Place, Refusal, WatersmeetError, refuse

Kind = Literal["word", "quoted", "string", "special", "number", "symbol", "end"]
"""``quoted``: a name in backticks. ``special``: a string with a prefix (raw, hexadecimal). ``end``: behind them all."""

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(l|s|y|d|f|bd)?", re.IGNORECASE)
_WORD = re.compile(r"\w[\w$]*")
_OPENING = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`(?:``|[^`])*`|(/\*|['\"`])", re.DOTALL
)
_STATEMENT = re.compile(
    r"^[ \t]*(CREATE\s+\w+\s+\w|INSERT\s+INTO\s|SELECT\s+(STREAM|TABLE)\s|SET\s+[\w.]+\s|WITH\s+\w+\s+AS\s*\()",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that begins a statement, where quotes are not closed."""


@dataclass(frozen=True)
class Token:
    """A token: ``text`` as written at ``start`` to ``end`` (exclusive), ``value`` without quotes."""

    kind: Kind
    text: str
    value: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The upper-case text of a keyword or symbol for comparison; empty for quoted names, strings and numbers."""
        return self.text.upper() if self.kind in ("word", "symbol") else ""

    @property
    def is_name(self) -> bool:
        """Whether it can name something."""
        return self.kind in ("word", "quoted")


def tokenize(text: str, name: str) -> tuple[Token, ...]:
    """The tokens of a text; an unclosed quote or comment is refused at its place.

    >>> [token.text for token in tokenize("a.`b c` - 5s", "<sql>")]
    ['a', '.', '`b c`', '-', '5s', '']
    """
    try:
        # The bracket keeps sqlglot from swallowing what follows a leading command word such as SHOW as one string.
        raw = sqlglot.tokenize("(" + text, dialect="spark")[1:]
    except SqlglotError:
        start, opening = _find_unclosed(text)
        if start >= 0:
            raise _refuse_unclosed(Place(name, text, start, start + len(opening)), opening) from None
        raise refuse(
            "SYNTAX_ERROR", Place(name, text, 0, len(text)), expected="Spark SQL", found="text without tokens",
            hint="look for unusual characters.",
        ) from None  # fmt: skip
    tokens: list[Token] = []
    for part in raw:
        start, end = part.start - 1, part.end
        if tokens and start < tokens[-1].end:
            continue  # sqlglot reads `5s` as three tokens in the same place
        tokens += _convert_token(text[start:end], part.text, part.token_type, start)
    end = tokens[-1].end if tokens else 0
    return (*_with_fractions(tokens), Token("end", "", "", end, end))


def _convert_token(text: str, value: str, kind: TokenType, start: int) -> list[Token]:
    """One token of sqlglot as ours; its ``GROUP BY`` is two words to us."""
    end = start + len(text)
    if kind == TokenType.IDENTIFIER:
        return [Token("quoted", text, value, start, end)]
    if kind == TokenType.STRING:
        return [Token("string", text, value, start, end)]
    if kind.name.endswith("STRING") and text[-1:] in ("'", '"'):
        return [Token("special", text, value, start, end)]
    if _NUMBER.fullmatch(text):
        return [Token("number", text, text, start, end)]
    if _WORD.match(text):
        words = _WORD.finditer(text)
        return [Token("word", w.group(), w.group(), start + w.start(), start + w.end()) for w in words]
    is_symbol = not re.search(r"\w", text) or kind == TokenType.HINT
    return [Token("symbol" if is_symbol else "word", text, text, start, end)]


def _with_fractions(tokens: list[Token]) -> list[Token]:
    """The tokens with ``.`` and ``5`` made one number where they stand together and behind no name."""
    joined: list[Token] = []
    for token in tokens:
        dot = joined[-1] if joined else None
        touching = dot is not None and dot.text == "." and dot.end == token.start
        owner = joined[-2] if len(joined) > 1 else None
        is_field = owner is not None and dot is not None and owner.end == dot.start and owner.kind != "symbol"
        if dot and touching and token.kind == "number" and not is_field:
            joined[-1] = Token("number", dot.text + token.text, dot.text + token.text, dot.start, token.end)
        else:
            joined.append(token)
    return joined


def readable_tokens(text: str, name: str) -> tuple[tuple[Token, ...], tuple[Refusal, ...]]:
    r"""The tokens of a text and the refusals of unclosed quotes, which are skipped up to the next statement.

    >>> tokens, refusals = readable_tokens("SET a = 'x;\nSET b = 'y';", "<sql>")
    >>> [token.text for token in tokens], [refusal.place.start for refusal in refusals]
    (['SET', 'a', '=', ';', 'SET', 'b', '=', "'y'", ';', ''], [8])
    """
    written, refusals = text, list[Refusal]()
    while True:
        try:
            return tokenize(written, name), tuple(refusals)
        except WatersmeetError as error:
            start, opening = _find_unclosed(written)
            if start < 0:
                return (Token("end", "", "", len(text), len(text)),), error.refusals
            refusals += _refuse_unclosed(Place(name, text, start, start + len(opening)), opening).refusals
            following = None if opening == "/*" else _STATEMENT.search(written, start)
            end = len(text) if following is None else following.start()
            # The statement that it stands in ends here.
            written = written[:start] + ";" + " " * (end - start - 1) + written[end:]


def _find_unclosed(text: str) -> tuple[int, str]:
    """The position of the first unclosed quote or comment, and its opening; -1 if all are closed.

    The next quote of a script may close it, so a quoted text with a statement inside counts as not closed.
    """
    for match in _OPENING.finditer(text):
        opening = match[1] or (match[0][0] if match[0][0] in "'\"`" and _STATEMENT.search(match[0]) else "")
        if opening:
            return match.start(), opening
    return -1, ""


def _refuse_unclosed(place: Place, opening: str) -> WatersmeetError:
    closing = "*/" if opening == "/*" else opening
    kind = "comment" if opening == "/*" else "quote"
    return refuse(
        "SYNTAX_ERROR", place, expected=f"`{closing}` to close the {kind}", found="the end of the script",
        hint=f"add {closing} where the {kind} ends.",
    )  # fmt: skip
