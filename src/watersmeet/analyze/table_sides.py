"""What no join with a table can be, whatever its other side is."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft, listed
from watersmeet.errors import Refusal
from watersmeet.plan.nodes import Join
from watersmeet.plan.relation import AnalyzedRelation, leaves
from watersmeet.plan.words import kind_in_words


def check_table_sides(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Iterator[Refusal]:
    """WITHIN of a join of which at least one side is a table."""
    if join.within is None or not is_known(left, right):
        return
    tables = [draft.names_of(side.aliases) for side in (left, right) if side.result == "table"]
    yield draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.within.span,
        **names_of(draft, join, left, right),
        reason="cannot be held within a time, since rows of a table stay until they are replaced or deleted",
        cause=f"{listed(tables)} {'is a table' if len(tables) == 1 else 'are tables'}",
        hint="leave WITHIN out.",
    )


def is_known(left: AnalyzedRelation, right: AnalyzedRelation) -> bool:
    """Whether all sources are declared: one that nobody declared may be a stream or a table."""
    return all(leaf.source.fields for side in (left, right) for leaf in leaves(side))


def names_of(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> dict[str, str]:
    """A join as messages speak of it."""
    sides = {"left": draft.names_of(left.aliases), "right": draft.names_of(right.aliases)}
    return {"kind": kind_in_words(join.kind), **sides}
