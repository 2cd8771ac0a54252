"""What a family of joins adds to the language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from watersmeet.errors import WatersmeetError
from watersmeet.language.reader.cursor import Cursor
from watersmeet.plan.nodes import Clause, JoinKind, Leaf, Relation

ReadLeaf = Callable[[], Leaf]
"""What reads the source that comes next."""

Words = tuple[str, ...]


class Grammar:
    """How the clauses of a family are read; one that has no words of its own is read as a plain JOIN."""

    joins: ClassVar[Mapping[Words, JoinKind]] = {}
    """The words of its joins."""

    outputs: ClassVar[Mapping[Words, str]] = {}
    """The words before the sinks of its outputs apart from the result, and the column that shows such rows.

    A column that ends in ``_`` has the number of a sink behind it: several may follow, in place of that of the result.
    """

    words: ClassVar[Words] = ()
    """The words that begin its clauses, for whoever misspells one."""

    spaced: ClassVar[frozenset[str]] = frozenset()
    """Keywords that are written with a space before the bracket that follows."""

    def read_join(self, cursor: Cursor, left: Relation, words: Words, read_leaf: ReadLeaf) -> Relation:
        """The join that begins with ``words``."""
        raise NotImplementedError

    def at_clause(self, cursor: Cursor) -> bool:
        """Whether one of its other clauses begins here, so that the next word is no alias."""
        return False

    def at_padding(self, cursor: Cursor) -> bool:
        """Whether a clause begins here that says what is shown beside a row that stayed alone."""
        return False

    def read_behind_source(self, cursor: Cursor, before: Clause | None) -> Clause | None:
        """Its clause behind a source, or behind its alias, if it comes next; else the one from ``before``."""
        return before

    def read_instead(self, cursor: Cursor, left: Relation, right: Leaf, kind: JoinKind, first: int) -> Relation | None:
        """The join of its own that a plain JOIN, begun at index ``first``, turns out to be behind its right side."""
        return None

    def read_behind_join(self, cursor: Cursor) -> tuple[Clause, ...]:
        """Its clauses behind the condition of a plain join."""
        return ()

    def misplaced(self, cursor: Cursor, end: str) -> WatersmeetError | None:
        """The refusal of one of its clauses behind all that it could belong to, where ``end`` was expected."""
        return None
