"""What is noted of a text while it is read, for whoever writes it anew with other line breaks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Layout:
    """Positions of tokens, by what they are.

    - ``statements``: the first token of each statement and the one behind its last
    - ``keywords``: words of the language itself, which may be written in capitals
    - ``operators``: what stands between two operands
    - ``lines``: the first tokens of clauses, each on a line of its own
    - ``breaks``: where a line may be broken that is too long
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
