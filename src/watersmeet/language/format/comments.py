"""Comments between tokens, and the empty lines around them, for whoever writes a text anew."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watersmeet.language.reader.tokens import Token

_CLOSING = {"/*": "*/", "{#": "#}"}


@dataclass(frozen=True)
class Comment:
    """A comment as written; ``begins_line``: only spaces stand before it, ``is_apart``: an empty line does."""

    text: str
    begins_line: bool
    is_apart: bool

    @property
    def breaks_line(self) -> bool:
        """Whether it cannot stand inside a line."""
        return self.begins_line or self.text.startswith("--") or "\n" in self.text


@dataclass(frozen=True)
class Gap:
    """What stands before a token: comments, and whether an empty line parts it from what is before it."""

    comments: tuple[Comment, ...] = ()
    is_apart: bool = False


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
