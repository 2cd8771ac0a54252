"""Which joins of a stream with a table there are (LN-14), and what to write instead of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.table_sides import check_table_sides, is_known, names_of
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Reference
from watersmeet.plan.nodes import LEFT_ONLY, Join, Relation, Scan
from watersmeet.plan.relation import AnalyzedRelation, AnalyzedScan, AnalyzedView
from watersmeet.plan.words import expression_in_words, kind_in_words, word


def check_sides(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Iterator[Refusal]:
    """What is wrong with a join of a stream with a table."""
    if not is_known(left, right):
        return
    if join.kind in LEFT_ONLY:
        yield _left_only(draft, join, left, right)
    elif right.result == "table" and join.kind in ("right", "full"):
        yield _preserves_table(draft, join, left, right, stream=left, table=right, instead="LEFT JOIN")
    elif left.result == "table" and join.kind in ("left", "full"):
        yield _preserves_table(draft, join, left, right, stream=right, table=left, instead="RIGHT JOIN")
    elif left.result == "table" and join.kind == "inner":
        yield _turned(draft, join, left, right)
    yield from check_table_sides(draft, join, left, right)


def _preserves_table(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation,
    *, stream: AnalyzedRelation, table: AnalyzedRelation, instead: str,
) -> Refusal:  # fmt: skip
    stays, asks = draft.names_of(table.aliases), draft.names_of(stream.aliases)
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.span,
        **names_of(draft, join, left, right),
        reason=f"could never tell that a row of {stays} stays alone, since a later row of {asks} may still ask for it",
        cause=f"shows rows of the table {stays} alone",
        hint=f"write `{instead}`, which shows every row of the stream {asks}.",
    )


def _turned(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    table, stream = draft.names_of(left.aliases), draft.names_of(right.aliases)
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.span,
        **names_of(draft, join, left, right),
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


def _left_only(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    one, other = draft.names_of(left.aliases), draft.names_of(right.aliases)
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
