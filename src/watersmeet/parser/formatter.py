"""A script in canonical layout: keywords in capitals, one clause per line, two spaces for each level.

Only spaces, line breaks and the case of keywords change. A line that is too long is broken where the reader says it may
be: lists get a line for each entry, conditions one for each AND and OR. Comments stay behind or before the word that
they stood behind or before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from watersmeet.parser.cursor import Grammar, Token, TokenLayout
from watersmeet.parser.statements import read_statements

_CLOSING = {"/*": "*/", "{#": "#}"}


@dataclass(frozen=True)
class Comment:
    """A comment as written.

    ``begins_line``: only spaces stand before it in its line. ``follows_blank_line``: an empty line stands before it.
    """

    text: str
    begins_line: bool
    follows_blank_line: bool

    @property
    def breaks_line(self) -> bool:
        """Whether it cannot stand inside a line."""
        return self.begins_line or self.text.startswith("--") or "\n" in self.text


@dataclass(frozen=True)
class Gap:
    """The gap before a token: comments, and whether there is an empty line."""

    comments: tuple[Comment, ...] = ()
    follows_blank_line: bool = False


def gaps_of(text: str, tokens: tuple[Token, ...], passed: frozenset[int]) -> dict[int, Gap]:
    """The gap before each token by its index. What stands before a token in ``passed`` belongs to the one behind it."""
    gaps: dict[int, Gap] = {}
    carried: tuple[Comment, ...] = ()
    for i, token in enumerate(tokens):
        start = tokens[i - 1].end if i else 0
        end = len(text) if token.kind == "end" else token.start
        gap = _gap(text[start:end], is_first=i == 0)
        gaps[i] = replace(gap, comments=carried + gap.comments)
        carried = ()
        if i in passed:
            carried, gaps[i] = gaps[i].comments, Gap()
    return {i: replace(gap, comments=_one_per_line(gap.comments)) for i, gap in gaps.items()}


def _gap(text: str, *, is_first: bool) -> Gap:
    comments: list[Comment] = []
    position = 0
    while True:
        rest = text[position:]
        blank = rest[: len(rest) - len(rest.lstrip())]
        newlines = blank.count("\n")
        position += len(blank)
        if position == len(text):
            return Gap(tuple(comments), newlines > 1)
        comment = _comment_at(text, position)
        begins_line = newlines > 0 or (is_first and not comments)
        comments.append(Comment(comment.rstrip(), begins_line, newlines > 1))
        position += len(comment)


def _comment_at(text: str, start: int) -> str:
    """The comment that begins at an offset; comments in ``/* */`` may contain each other."""
    opening = text[start : start + 2]
    if opening not in _CLOSING:
        end = text.find("\n", start)
        return text[start:] if end < 0 else text[start:end]
    depth, position = 0, start
    while position < len(text):
        pair = text[position : position + 2]
        depth += 1 if pair == opening else -1 if pair == _CLOSING[opening] else 0
        position += 2 if pair in (opening, _CLOSING[opening]) else 1
        if depth == 0:
            break
    return text[start:position]


def _one_per_line(comments: tuple[Comment, ...]) -> tuple[Comment, ...]:
    """The same comments, what follows one that ends its line being on a line of its own."""
    pairs = zip(comments, (None, *comments), strict=False)
    return tuple(
        replace(comment, begins_line=comment.begins_line or (before is not None and before.breaks_line))
        for comment, before in pairs
    )


WIDTH = 100
"""The length of a line where it can be broken; comments at its end do not count."""

_INDENT = "  "
_SPACED = frozenset({
    "AND", "AS", "BY", "FROM", "IN", "JOIN", "KEY", "NOT", "ON", "OPTIONS", "OR",
    "SELECT", "STREAM", "USING", "WHEN", "WHERE", "WITH",
})  # fmt: skip
"""Keywords with a space before the bracket that follows; the others are followed by it as functions are."""


def format_script(text: str, name: str = "<sql>", grammars: tuple[Grammar, ...] = ()) -> str:
    """The text in canonical layout; refuses what cannot be read.

    ``grammars`` are what the families add to the language.

    >>> print(format_script("select a,b from s where a>1 -- large"), end="")
    SELECT a, b
    FROM s
    WHERE a > 1;  -- large
    """
    _, cursor = read_statements(text, name, grammars)
    tokens, layout = cursor.tokens, cursor.layout
    passed = frozenset(i for i, token in enumerate(tokens) if token.word in (",", ";"))
    spaced = _SPACED.union(*(grammar.spaced for grammar in grammars))
    source = _Source(text, tokens, layout, gaps_of(text, tokens, passed - layout.exact), spaced)
    written = _FormattedText()
    for first, end in layout.statements:
        lines = _Lines(source, tuple(i for i in range(first, end) if i not in layout.needless)).break_lines()
        rendered = [line for start in lines.order for line in lines.render(start)]
        rendered[-1] = _Line(rendered[-1].text + ";", rendered[-1].comments)
        _write_statement(written, source.gaps[first], rendered)
    _write_statement(written, source.gaps[len(tokens) - 1], [])
    return "".join(f"{line}\n" for line in written.lines)


@dataclass(frozen=True)
class _Source:
    """A text that has been read."""

    text: str
    tokens: tuple[Token, ...]
    layout: TokenLayout
    gaps: dict[int, Gap]
    spaced: frozenset[str]

    def word(self, i: int) -> str:
        """A token as it is written."""
        token = self.tokens[i]
        return token.text.upper() if i in self.layout.keywords and token.kind == "word" else token.text

    def space(self, before: int, i: int) -> str:
        """The text between two tokens on one line if no comment separates them."""
        left, right, layout = self.tokens[before], self.tokens[i], self.layout
        touching = left.end == right.start
        if i in layout.exact:
            return self.text[left.end : right.start]
        if right.word in (",", ")", "]") or left.word in ("(", "["):
            return ""
        if before in layout.operators and i in layout.operators and touching:
            return ""  # a shift is written with two or three symbols
        if left.word == "," or before in layout.operators or i in layout.operators:
            return " "
        if right.word == "(" and before in layout.keywords and left.word in self.spaced:
            is_stream = left.word == "STREAM" and touching
            return "" if is_stream else " "
        return "" if touching else " "


@dataclass(frozen=True)
class _Line:
    """A line and the comments at its end."""

    text: str
    comments: tuple[str, ...] = ()


@dataclass
class _FormattedText:
    """The lines written so far, and whether the last statement fitted on one."""

    lines: list[str] = field(default_factory=list[str])
    is_single: bool = False


@dataclass
class _Lines:
    """A statement as lines: the first token of each, with its indentation beyond the brackets around it."""

    source: _Source
    tokens: tuple[int, ...]
    starts: dict[int, int] = field(default_factory=dict[int, int])
    order: list[int] = field(default_factory=list[int])
    opened: set[int] = field(default_factory=set[int])
    closings: dict[int, int] = field(default_factory=dict[int, int])

    def break_lines(self) -> _Lines:
        """These lines, broken until they fit or cannot be broken further."""
        layout, own_tokens = self.source.layout, set(self.tokens)
        self._begin((self.tokens[0], *(layout.lines & own_tokens)), 0)
        for opening in sorted(layout.blocks.keys() & own_tokens):
            self._open(opening, layout.blocks[opening], (opening + 1,))
        start: int | None = self.tokens[0]
        while start is not None:
            # A break adds lines behind this one only.
            while self._break(start):
                pass
            start = self._next_start(start)
        return self

    def render(self, start: int) -> list[_Line]:
        """A line, after the comments that stand on lines of their own before it; for the first line, without them."""
        own = [c for c in self._comments(start) if c.begins_line] if start != self.tokens[0] else []
        is_closing = start in self.closings
        indent = self._indent(start) + (_INDENT if is_closing else "")
        following = self._next_start(start)
        trailing = () if following is None else tuple(c.text for c in self._comments(following) if not c.begins_line)
        return [*(_Line(indent + c.text) for c in own), _Line(self._text(start), trailing)]

    def _line(self, start: int) -> list[int]:
        following = self._next_start(start)
        end = self.tokens[-1] + 1 if following is None else following
        return list(self.tokens[bisect_left(self.tokens, start) : bisect_left(self.tokens, end)])

    def _next_start(self, start: int) -> int | None:
        place = bisect_right(self.order, start)
        return self.order[place] if place < len(self.order) else None

    def _text(self, start: int) -> str:
        text = self._indent(start) + self.source.word(start)
        for before, i in pairwise(self._line(start)):
            comments = "".join(f" {comment.text}" for comment in self._comments(i))
            text += (comments + " " if comments else self.source.space(before, i)) + self.source.word(i)
        return text

    def _comments(self, i: int) -> tuple[Comment, ...]:
        return () if i in self.source.layout.exact else self.source.gaps[i].comments

    def _indent(self, start: int) -> str:
        closings = self.source.layout.blocks | self.source.layout.lists
        depth = sum(1 for opening in self.opened if opening < start < closings[opening])
        return _INDENT * (depth + self.starts[start])

    def _open(self, opening: int, closing: int, entries: tuple[int, ...]) -> None:
        self.opened.add(opening)
        self.closings[closing] = opening
        self._begin((*entries, closing), 0)

    def _begin(self, tokens: Iterable[int], indent: int) -> None:
        self.starts |= dict.fromkeys(tokens, indent)
        self.order = sorted(self.starts)

    def _break(self, start: int) -> bool:
        """Break a line that does not fit or has a comment in it; False if it stays as it is."""
        line = self._line(start)
        forced = [i for i in line[1:] if any(comment.breaks_line for comment in self._comments(i))]
        is_long = len(self._text(start)) > WIDTH
        if not forced and not is_long:
            return False
        lists = [i for i in line if i in self.source.layout.lists and i not in self.opened]
        if lists:
            closing = self.source.layout.lists[lists[0]]
            self._open(lists[0], closing, self._entries(lists[0], closing))
            return True
        breaks = self._breaks(line) or forced[:1]
        self._begin(breaks, self.starts[start] + 1)
        return bool(breaks)

    def _entries(self, opening: int, closing: int) -> tuple[int, ...]:
        tokens = self.source.tokens
        breaks = (i for i in self.source.layout.breaks if opening < i < closing)
        return tuple(i for i in breaks if i == opening + 1 or tokens[i - 1].word == ",")

    def _breaks(self, line: list[int]) -> list[int]:
        """The breaks of a line outside of all brackets: between entries if it has several, else anywhere."""
        breaks: list[int] = []
        depth = 0
        for i in line:
            word = self.source.tokens[i].word
            if depth == 0 and i != line[0] and i in self.source.layout.breaks:
                breaks.append(i)
            depth = depth + 1 if word in ("(", "[") else max(depth - 1, 0) if word in (")", "]") else depth
        commas = [i for i in breaks if self.source.tokens[i - 1].word == ","]
        if not commas:
            return breaks
        is_entry = self.source.tokens[breaks[0]].word not in ("AND", "OR")
        return [breaks[0], *commas] if breaks[0] < commas[0] and is_entry else commas


def _write_statement(written: _FormattedText, gap: Gap, rendered: list[_Line]) -> None:
    """Write the comments before a statement, those behind the one before it first, and its lines."""
    trailing = [comment for comment in gap.comments if not comment.begins_line and written.lines]
    if trailing:
        written.lines[-1] += "  " + " ".join(comment.text for comment in trailing)
    own = [comment for comment in gap.comments if comment not in trailing]
    is_single = len(rendered) == 1
    blank_lines = [*(comment.follows_blank_line for comment in own), *([gap.follows_blank_line] if rendered else [])]
    if blank_lines and written.lines:
        blank_lines[0] = blank_lines[0] or not (written.is_single and is_single)
    elif blank_lines:
        blank_lines[0] = False
    for comment, needs_blank in zip(own, blank_lines, strict=False):
        written.lines += [""] * needs_blank + [comment.text]
    if rendered:
        written.lines += [""] * blank_lines[-1]
    for line in rendered:
        written.lines.append(line.text + "".join(f"  {comment}" for comment in line.comments))
    written.is_single = is_single
