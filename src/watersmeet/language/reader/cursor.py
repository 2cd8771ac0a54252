"""A cursor over tokens: looks ahead, takes what it expects, and refuses with the place of what it found instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from watersmeet.catalog import Span
from watersmeet.errors import Place, Refusal, WatersmeetError, did_you_mean
from watersmeet.language.format.layout import Layout
from watersmeet.language.reader.tokens import Token
from watersmeet.plan.nodes import Query, View

if TYPE_CHECKING:
    from watersmeet.language.reader.grammar import Grammar

SUBQUERY_HINT = "give it a name with `WITH name AS (SELECT ...);` and join with that."


class Cursor:
    """Reads tokens from first to last. ``offset`` is where the text begins in the script that contains it.

    ``nesting`` counts the brackets around the query that is being read, ``views`` holds the subqueries found so far in
    each of the queries around the cursor, and ``layout`` is what a formatter wants to know of the text. ``grammars``:
    what the families add to the language.
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
        self.refusals: list[Refusal] = []
        self.nesting = 0
        self.views: list[list[View]] = []
        self.layout = Layout()
        self._subqueries = 0
        self._bare_alias: int | None = None

    def peek(self, ahead: int = 0) -> Token:
        """The token ``ahead`` of the cursor; the end token for ever after the last."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    @property
    def previous(self) -> Token:
        """The token last taken."""
        return self.tokens[max(self.position - 1, 0)]

    def at(self, *words: str) -> bool:
        """Whether these words or symbols come next, one after the other."""
        return all(self.peek(i).word == word for i, word in enumerate(words))

    def at_any(self, words: Iterable[str], ahead: int = 0) -> bool:
        """Whether one of these words or symbols comes next."""
        return self.peek(ahead).word in words and self.peek(ahead).kind != "end"

    @property
    def at_end(self) -> bool:
        """Whether the statement ends here."""
        return self.peek().kind == "end" or self.at(";")

    @property
    def at_query_end(self) -> bool:
        """Whether the query ends here: where its statement does, its bracket or its part of a UNION."""
        return self.at_end or (self.nesting > 0 and (self.at(")") or self.at("UNION")))

    def next(self) -> Token:
        """Take a token."""
        token = self.peek()
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def take(self, *words: str) -> bool:
        """Take these words or symbols if they come next."""
        found = self.at(*words)
        if found:
            self.skip(len(words))
        return found

    def skip(self, count: int) -> None:
        """Take so many words or symbols of the language itself."""
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
            raise self.failure(expected, hint)
        return self.next()

    def take_bare_alias(self) -> Token:
        """Take a name given without AS, which may turn out to be a misspelt keyword."""
        self._bare_alias = self.position
        return self.next()

    def begin_line(self) -> None:
        """Note that a clause begins here, which stands on a line of its own."""
        self.layout.lines.add(self.position)

    def may_break(self) -> None:
        """Note that a long line may be broken here."""
        self.layout.breaks.add(self.position)

    def close_block(self, opening: int) -> None:
        """Note that the bracket last taken closes the one at index ``opening``, with a query between the two."""
        self.layout.blocks[opening] = self.position - 1

    def close_list(self, opening: int) -> None:
        """Note that the bracket last taken closes the one at index ``opening``, with a list between the two."""
        self.layout.lists[opening] = self.position - 1

    def forget_queries(self) -> None:
        """Be outside of all queries again, as at the beginning of a statement."""
        self.nesting = 0
        self.views.clear()

    def add_subquery(self, query: Query, span: Span) -> str:
        """The name, which nobody can write, under which the query that is being read knows this one from now on."""
        self._subqueries += 1
        name = f"#{self._subqueries}"
        self.views[-1].append(View(name, query, span))
        return name

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
        """The refusal of a token that cannot stand where it stands, the next one by default."""
        found = token or self.peek()
        parameters = {"expected": expected, "found": describe(found), "hint": hint}
        return WatersmeetError([Refusal("SYNTAX_ERROR", parameters, self.place(found))])

    def misspelt(self, words: tuple[str, ...], expected: str, hint: str) -> WatersmeetError:
        """The same where one of ``words`` could follow: what looks like one of them gets "did you mean".

        A keyword with a typing mistake may have been taken for an alias, in which case the alias is to blame.
        """
        alias = self.previous if self._bare_alias == self.position - 1 and not self.at_end else None
        for token, shortest in ((alias, 3), (self.peek(), 2)):
            if token is not None and token.kind == "word" and len(token.text) >= shortest:
                suggestion = did_you_mean(token.text, words)
                if suggestion.startswith("did you mean") and token.word not in words:
                    return self.failure(expected, suggestion, token)
        return self.failure(expected, hint)

    def unsupported(self, what: str, hint: str, words: int = 1) -> WatersmeetError:
        """The refusal of what is written correctly but cannot be run, covering the next ``words`` tokens."""
        place = self.place(self.peek(), self.peek(words - 1))
        return WatersmeetError([Refusal("UNSUPPORTED_STATEMENT", {"what": what, "hint": hint}, place)])


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
            raise cursor.unsupported("A subquery", SUBQUERY_HINT)
        token = cursor.next()
        if token.word in closing:
            stack.append(closing[token.word])
        elif token.word in (")", "]") and token.word != stack.pop():
            raise cursor.failure("matching brackets", "close every bracket with its own kind.", token)
