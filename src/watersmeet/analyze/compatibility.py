"""Which joins there are between streams and tables (LN-14), and what to write instead of the others.

| left   | right  | kinds                                | WITHIN                     |
|--------|--------|--------------------------------------|----------------------------|
| stream | stream | all                                  | or bounds in ON: necessary |
| table  | table  | all                                  | refused                    |
| stream | table  | INNER, LEFT                          | refused                    |
| table  | stream | RIGHT                                | refused                    |

Two streams are the matter of `find_bounds`; the other three rows are checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watersmeet.analyze.draft import Draft, listed
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Reference
from watersmeet.plan.nodes import LEFT_ONLY, Join, Relation, Scan
from watersmeet.plan.relation import AnalyzedRelation, AnalyzedScan, AnalyzedView, leaves
from watersmeet.plan.words import expression_in_words, kind_in_words, word


def check_kinds(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Iterator[Refusal]:
    """What is wrong with a join of which at least one side is a table."""
    if not all(leaf.source.fields for side in (left, right) for leaf in leaves(side)):
        # A source that nobody declared may be either.
        return
    kinds = (left.result, right.result)
    if kinds != ("table", "table") and join.kind in LEFT_ONLY:
        yield _left_only(draft, join, left, right)
    elif kinds == ("stream", "table") and join.kind in ("right", "full"):
        yield _preserves_table(draft, join, left, right, stream=left, table=right, instead="LEFT JOIN")
    elif kinds == ("table", "stream") and join.kind in ("left", "full"):
        yield _preserves_table(draft, join, left, right, stream=right, table=left, instead="RIGHT JOIN")
    elif kinds == ("table", "stream") and join.kind == "inner":
        yield _turned(draft, join, left, right)
    if join.within is not None:
        yield _within(draft, join, left, right)


def _names(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> dict[str, str]:
    return {"kind": kind_in_words(join.kind), "left": _name(draft, left), "right": _name(draft, right)}


def _name(draft: Draft, side: AnalyzedRelation) -> str:
    return draft.names_of(side.aliases)


def _preserves_table(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation,
    *, stream: AnalyzedRelation, table: AnalyzedRelation, instead: str,
) -> Refusal:  # fmt: skip
    stays, asks = _name(draft, table), _name(draft, stream)
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.span,
        **_names(draft, join, left, right),
        reason=f"could never tell that a row of {stays} stays alone, since a later row of {asks} may still ask for it",
        cause=f"shows rows of the table {stays} alone",
        hint=f"write `{instead}`, which shows every row of the stream {asks}.",
    )


def _turned(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    table, stream = _name(draft, left), _name(draft, right)
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.span,
        **_names(draft, join, left, right),
        reason="has its sides the wrong way round, since it is the stream that looks up the table",
        cause=f"the table {table} on the left, the stream {stream} on the right",
        hint=_swapped(join, table),
    )


def _swapped(join: Join, table: str) -> str:
    on = f"USING ({', '.join(word(name) for name in join.using)})" if join.using else ""
    if not on and join.on is not None:
        on = f"ON {expression_in_words(join.on)}"
    stream, looked_up = _written(join.right), _written(join.left)
    if stream is not None and looked_up is not None:
        return f"swap the sides: `{stream} JOIN {looked_up} {on}".rstrip() + "`."
    return f"make a view of {table} (`CREATE VIEW ...`), and write `{stream or '...'} JOIN` that view."


def _written(side: Relation) -> str | None:
    """A side as one types it; None for what has no name of its own."""
    if not isinstance(side, Scan):
        return None
    if side.source.startswith("#"):
        return f"(...) AS {word(side.alias)}"
    return word(side.source) if side.alias == side.source else f"{word(side.source)} AS {word(side.alias)}"


def _within(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    assert join.within is not None, "only a join with WITHIN is refused for it"
    tables = [_name(draft, side) for side in (left, right) if side.result == "table"]
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.within.span,
        **_names(draft, join, left, right),
        reason="cannot be held within a time, since rows of a table stay until they are replaced or deleted",
        cause=f"{listed(tables)} {'is a table' if len(tables) == 1 else 'are tables'}",
        hint="leave WITHIN out.",
    )


def _left_only(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    one, other = _name(draft, left), _name(draft, right)
    what = f"A {kind_in_words(join.kind)} JOIN of the {left.result} {one} with the {right.result} {other}"
    if left.result == "table":
        column = next((word(ref.name) for ref in _references(join) if ref.source in right.aliases), "id")
        rows = f"SELECT TABLE {column}, count(*) AS n FROM {other} GROUP BY {column}"
        hint = f"make a table of {other} first, for example `CREATE VIEW {other}_seen AS {rows}`, and join with that."
    elif join.kind == "semi":
        hint = f"write `INNER JOIN`, and select columns of {one} only."
    else:
        hint = f"write `LEFT JOIN`, and `WHERE {_column(right)} IS NULL`."
    return draft.refusal("UNSUPPORTED_STATEMENT", join.span, what=what, hint=hint)


def _references(join: Join) -> Iterable[Reference]:
    return join.on.references if join.on is not None else ()


def _column(side: AnalyzedRelation) -> str:
    """A column of a table that is NULL only where there is no row."""
    if not isinstance(side, AnalyzedScan | AnalyzedView):
        return f"{word(side.aliases[0])}.key"
    names = (*side.source.primary_key, *(field.name for field in side.source.fields))
    return f"{word(side.alias)}.{word(names[0])}"
