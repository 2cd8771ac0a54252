"""Text as tokens, and the cursor over them: looks ahead, takes what it expects, refuses others with their place.

sqlglot's tokenizer knows Spark's quotes, comments and numbers. Its tokens are simplified here: a keyword is a word
like any other, since no word is reserved where a name is expected.

Also the layout recorded for the formatter, and the grammar of a family of joins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from watersmeet.catalog import Span
from watersmeet.errors import Place, Refusal, WatersmeetError, did_you_mean, refuse
from watersmeet.logical.nodes import CalledFunction, Clause, JoinKind, Leaf, Query, Relation, View

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


T = TypeVar("T")


@dataclass
class TokenLayout:
    """Positions of tokens, by role.

    - ``statements``: the first token of each statement and the one behind its last
    - ``keywords``: words of the language itself, which may be written in capitals
    - ``operators``: tokens between two operands
    - ``lines``: the first tokens of clauses, each on a separate line
    - ``breaks``: where a line that is too long may be broken
    - ``blocks``: brackets around a query, the opening one with the closing one
    - ``lists``: brackets around a list that has a line for each entry if it is too long for one line
    - ``exact``: tokens before which all spaces count
    - ``needless``: tokens that may be left out
    """

    statements: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    keywords: set[int] = field(default_factory=set[int])
    operators: set[int] = field(default_factory=set[int])
    lines: set[int] = field(default_factory=set[int])
    breaks: set[int] = field(default_factory=set[int])
    blocks: dict[int, int] = field(default_factory=dict[int, int])
    lists: dict[int, int] = field(default_factory=dict[int, int])
    exact: set[int] = field(default_factory=set[int])
    needless: set[int] = field(default_factory=set[int])


OBJECTS = frozenset({
    "STREAM", "TABLE", "SINK", "VIEW", "OR", "TEMPORARY", "TEMP", "MATERIALIZED", "EXTERNAL", "SOURCE", "STREAMING",
})  # fmt: skip
"""The words that may follow CREATE."""

_SEMICOLON = "`;`"
SUBQUERY_HINT = "write it in WHERE or SELECT, not inside a function or CASE, or join with a view that has its rows."


@dataclass(frozen=True)
class Subquery:
    """A query inside an expression; ``name``: that of the value of a scalar subquery, empty for IN and EXISTS."""

    query: Query
    span: Span
    name: str = ""


class Cursor:
    """Reads tokens from first to last. ``offset`` is where the text begins in the script that contains it.

    ``begin`` is the index of the first token of the current statement, ``nesting`` counts the brackets around the
    current query, ``views`` holds the subqueries found in each of the queries around the cursor, ``calls`` the
    functions found by the index of their names, and ``layout`` is for the formatter. ``subqueries`` has those inside
    expressions of each of these queries; while ``read_query`` is None, an expression may have none. ``grammars``: the
    grammars of the families. ``is_structured``: functions, CASE and the like are read as calls, and not as text.
    ``is_distinct``: the current FROM is that of SELECT DISTINCT, which a second WITHIN may follow.
    """

    def __init__(
        self,
        name: str,
        text: str,
        tokens: tuple[Token, ...],
        offset: int = 0,
        grammars: tuple[Grammar, ...] = (),
    ) -> None:
        self.name = name
        self.text = text
        self.tokens = tokens
        self.offset = offset
        self.grammars = grammars
        self.position = 0
        self.begin = 0
        self.refusals: list[Refusal] = []
        self.nesting = 0
        self.views: list[list[View]] = []
        self.layout = TokenLayout()
        self.calls: dict[int, CalledFunction] = {}
        self.read_query: Callable[[Cursor], Query] | None = None
        self.subqueries: list[list[Subquery]] = []
        self.is_structured = False
        self.is_distinct = False
        self._subqueries = 0
        self._bare_alias: int | None = None

    def peek(self, ahead: int = 0) -> Token:
        """The token ``ahead`` of the cursor; beyond the last, the end token."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    @property
    def previous(self) -> Token:
        """The token last taken."""
        return self.tokens[max(self.position - 1, 0)]

    def at(self, *words: str) -> bool:
        """Whether these words or symbols come next, in this order."""
        return all(self.peek(i).word == word for i, word in enumerate(words))

    def at_any(self, words: Iterable[str], ahead: int = 0) -> bool:
        """Whether one of these words or symbols comes next."""
        return self.peek(ahead).word in words and self.peek(ahead).kind != "end"

    @property
    def at_end(self) -> bool:
        """Whether the statement ends here."""
        return self.peek().kind == "end" or self.at(";")

    @property
    def at_statement(self) -> bool:
        """Whether the next statement seems to begin here, though the current one has not ended."""
        if self.position == self.begin:
            return False
        if self.at("CREATE"):
            return self.at_any(OBJECTS, ahead=1)
        if self.at("SET"):
            return self.peek(1).is_name and self.at_any({".", "="}, ahead=2)
        if self.at("WITH"):
            return self.peek(1).is_name and self.at_any({"AS"}, ahead=2) and self.at_any({"("}, ahead=3)
        return self.at("INSERT", "INTO") or self.at("SELECT", "STREAM") or self.at("SELECT", "TABLE")

    @property
    def begins_line(self) -> bool:
        """Whether the next token is the first of its line."""
        return "\n" in self.text[self.previous.end : self.peek().start]

    @property
    def at_query_end(self) -> bool:
        """Whether the query ends here: where its statement does, its bracket or its part of a UNION."""
        return self.at_end or (self.nesting > 0 and self.at(")"))

    def next(self) -> Token:
        """Take a token."""
        token = self.peek()
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def take(self, *words: str) -> bool:
        """Take these words or symbols if they come next."""
        is_next = self.at(*words)
        if is_next:
            self.skip(len(words))
        return is_next

    def skip(self, count: int) -> None:
        """Take this many words or symbols of the language itself."""
        self.layout.keywords.update(range(self.position, self.position + count))
        self.position = min(self.position + count, len(self.tokens) - 1)

    def expect(self, word: str, hint: str) -> Token:
        """Take this word or symbol, which must come next."""
        if not self.at(word):
            raise self.misspelt((word,), f"`{word}`", hint)
        self.skip(1)
        return self.previous

    def take_name(self, expected: str, hint: str) -> Token:
        """Take a name, which must come next."""
        if not self.peek().is_name:
            raise self.failure(expected, _in_backticks(self.peek()) or hint)
        return self.next()

    def take_path(self, expected: str, hint: str) -> tuple[str, ...]:
        """Take names with dots between them; the first must come next."""
        parts = [self.take_name(expected, hint).value]
        while self.take("."):
            parts.append(self.take_name(expected, hint).value)
        return tuple(parts)

    def read_list(self, read: Callable[[Cursor], T], *, on_lines: bool = False) -> tuple[T, ...]:
        """The results of ``read``, repeated after every comma; ``on_lines``: a line may be broken before each."""
        items: list[T] = []
        while not items or self.take(","):
            if on_lines:
                self.may_break()
            items.append(read(self))
        return tuple(items)

    def take_bare_alias(self) -> Token:
        """Take a name given without AS, which may turn out to be a misspelt keyword."""
        self._bare_alias = self.position
        return self.next()

    @property
    def is_bare_alias(self) -> bool:
        """Whether the name last taken was given without AS."""
        return self._bare_alias == self.position - 1

    def begin_line(self) -> None:
        """Record that a clause begins here, on a separate line."""
        self.layout.lines.add(self.position)

    def may_break(self) -> None:
        """Record that a long line may be broken here."""
        self.layout.breaks.add(self.position)

    def close_block(self, opening: int) -> None:
        """Record that the bracket last taken closes the one at index ``opening``, with a query between the two."""
        self.layout.blocks[opening] = self.position - 1

    def close_list(self, opening: int) -> None:
        """Record that the bracket last taken closes the one at index ``opening``, with a list between the two."""
        self.layout.lists[opening] = self.position - 1

    def forget_queries(self) -> None:
        """Leave all queries, as at the beginning of a statement."""
        self.nesting = 0
        self.views.clear()
        self.subqueries.clear()
        self.read_query = None
        self.is_distinct = False

    def add_subquery(self, query: Query, span: Span) -> str:
        """Add a subquery to the current query; returns its generated name."""
        name = self.new_name()
        self.views[-1].append(View(name, query, span))
        return name

    def new_name(self) -> str:
        """A generated name, which no identifier in a script can equal."""
        self._subqueries += 1
        return f"#{self._subqueries}"

    def span_from(self, first: int) -> Span:
        """From the token at index ``first`` to the token last taken."""
        return Span(self.tokens[first].start + self.offset, self.previous.end + self.offset)

    def span_of(self, token: Token) -> Span:
        """The place of one token in the script."""
        return Span(token.start + self.offset, token.end + self.offset)

    def place(self, first: Token, last: Token | None = None) -> Place:
        """A place for a refusal."""
        return Place(self.name, self.text, first.start, (last or first).end)

    def text_from(self, first: int) -> str:
        """The text from the token at index ``first`` to the token last taken, comments turned into spaces."""
        taken = self.tokens[first : self.position]
        parts: list[str] = []
        for token, following in zip(taken, (*taken[1:], None), strict=True):
            parts.append(token.text)
            if following is not None:
                gap = self.text[token.end : following.start]
                parts.append(" " * len(gap) if gap.strip() else gap)
        return "".join(parts)

    def failure(self, expected: str, hint: str, token: Token | None = None) -> WatersmeetError:
        """The refusal of an unexpected token, the next one by default."""
        wrong = token or self.peek()
        if wrong is self.peek() and _SEMICOLON in expected and self.at_statement:
            hint = f"end the statement before {describe(wrong)} with {_SEMICOLON}."
        parameters = {"expected": expected, "found": describe(wrong), "hint": hint}
        return WatersmeetError([Refusal("SYNTAX_ERROR", parameters, self.place(wrong))])

    def misspelt(self, words: tuple[str, ...], expected: str, hint: str) -> WatersmeetError:
        """The same where one of ``words`` could follow: a similar token gets "did you mean".

        A keyword with a typing mistake may have been parsed as an alias; then the refusal names the alias.
        """
        alias = self.previous if self.is_bare_alias and not self.at_end else None
        for token, shortest in ((alias, 3), (self.peek(), 2)):
            if token is not None and token.kind == "word" and len(token.text) >= shortest and not self.at_statement:
                suggestion = did_you_mean(token.text, words)
                if suggestion.startswith("did you mean") and token.word not in words:
                    return self.failure(expected, suggestion, token)
        return self.failure(expected, hint)

    def separator_failure(self, words: tuple[str, ...], expected: str, hint: str) -> WatersmeetError:
        """The same between the entries of a list, where a comma may be missing."""
        if self.is_bare_alias and self.at_any({".", "("}):
            return self.failure(expected, _comma_before(self.previous), self.previous)
        quoted = _in_backticks(self.peek())
        starts_entry = self.peek().kind in ("word", "quoted", "number", "string") and not self.at_statement
        return self.misspelt(words, expected, quoted or (_comma_before(self.peek()) if starts_entry else hint))

    def refuse_unsupported(self, construct: str, hint: str, words: int = 1) -> WatersmeetError:
        """The refusal of correct but unsupported syntax, covering the next ``words`` tokens."""
        place = self.place(self.peek(), self.peek(words - 1))
        return WatersmeetError([Refusal("UNSUPPORTED_STATEMENT", {"what": construct, "hint": hint}, place)])


def _comma_before(token: Token) -> str:
    return f"put a comma before {describe(token)}."


def _in_backticks(token: Token) -> str:
    """The hint for a name in string quotes; empty for other tokens."""
    is_name = token.kind == "string" and re.fullmatch(r"[^'\"`\\]+", token.value) is not None
    if not is_name:
        return ""
    if re.fullmatch(r"[A-Za-z_]\w*", token.value):
        return f"write `{token.value}` without quotes: in Spark, single and double quotes make a string."
    return f"write the name in backticks, `{token.value}`: in Spark, single and double quotes make a string."


def describe(token: Token) -> str:
    """A token as a message names it.

    >>> describe(Token("word", "FORM", "FORM", 0, 4))
    '`FORM`'
    """
    if token.kind == "end":
        return "the end of the script"
    return f"`{token.text}`" if len(token.text) <= 30 else f"`{token.text[:27]}...`"


def skip_brackets(cursor: Cursor) -> None:
    """Take a bracket and everything up to the one that closes it."""
    closing = {"(": ")", "[": "]"}
    first = cursor.peek()
    stack = [closing[cursor.next().word]]
    while stack:
        if cursor.at_end:
            raise cursor.failure(f"`{stack[-1]}`", f"close the bracket that opens with `{first.text}`.")
        if cursor.at("(", "SELECT") and not cursor.at_any((",", ")"), 2):
            cursor.next()
            raise cursor.refuse_unsupported("A subquery", SUBQUERY_HINT)
        token = cursor.next()
        if token.word in closing:
            stack.append(closing[token.word])
        elif token.word in (")", "]") and token.word != stack.pop():
            raise cursor.failure("matching brackets", "close every bracket with its own kind.", token)


ReadLeaf = Callable[[], Leaf]
"""Reads the source that comes next."""

Words = tuple[str, ...]


class Grammar:
    """Parses the clauses of a family; one without syntax is parsed as a plain JOIN."""

    joins: ClassVar[Mapping[Words, JoinKind]] = {}
    """The words of its joins."""

    outputs: ClassVar[Mapping[Words, str]] = {}
    """The words before the sinks of its side outputs, and the column with such rows.

    A column that ends in ``_`` is followed by the number of a sink: several may follow, which replace that of the
    result.
    """

    words: ClassVar[Words] = ()
    """The first words of its clauses, for spelling suggestions."""

    spaced: ClassVar[frozenset[str]] = frozenset()
    """Keywords that are written with a space before the bracket that follows."""

    def read_join(self, cursor: Cursor, left: Relation, words: Words, read_leaf: ReadLeaf) -> Relation:
        """The join that begins with ``words``."""
        raise NotImplementedError

    def at_clause(self, cursor: Cursor) -> bool:
        """Whether another of its clauses begins here, so that the next word is not an alias."""
        return False

    def at_padding(self, cursor: Cursor) -> bool:
        """Whether a clause begins here that sets the padding of unmatched rows."""
        return False

    def read_behind_source(self, cursor: Cursor, before: Clause | None) -> Clause | None:
        """Its clause behind a source, or behind its alias, if it comes next; else ``before``."""
        return before

    def read_instead(self, cursor: Cursor, left: Relation, right: Leaf, kind: JoinKind, first: int) -> Relation | None:
        """The family's join that a plain JOIN, begun at index ``first``, turns out to be behind its right side."""
        return None

    def read_behind_join(self, cursor: Cursor) -> tuple[Clause, ...]:
        """Its clauses behind the condition of a plain join."""
        return ()

    def refuse_misplaced(self, cursor: Cursor, end: str) -> WatersmeetError | None:
        """The refusal of one of its clauses in a wrong position, where ``end`` was expected."""
        return None
