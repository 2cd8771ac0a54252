"""The pass that compares what SELECT STREAM or SELECT TABLE says with what the query gives."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import ResultKind
from watersmeet.plan.relation import Warned, leaves
from watersmeet.plan.words import expression_in_words


def check_result(draft: Draft) -> Draft:
    """The draft with what is to be said of a result that is called a stream or a table and is the other by itself.

    A table is no stream, since its rows are taken back. The latest row per key of a stream is a table.
    """
    draft = draft.refusing(_check_stream(draft))
    is_known = not draft.refusals and draft.scope.is_whole and draft.is_bounded
    if not is_known or draft.query.result != "table" or _given(draft) == "table":
        # Of a query with mistakes, or over a view or a source with some, nobody knows the key.
        return draft
    key = draft.finished().key
    if not key:
        return draft.refusing([draft.refusal("RESULT_WITHOUT_KEY", draft.query.span)])
    return draft.warning([_latest(draft, key)])


def _given(draft: Draft) -> ResultKind:
    if draft.group is not None:
        return "table"
    return "stream" if draft.relation is None else draft.relation.result


def _check_stream(draft: Draft) -> Iterator[Refusal]:
    if draft.query.result == "stream" and _given(draft) == "table":
        yield draft.refusal("RESULT_IS_A_TABLE", draft.query.span, what=_spoken(draft))


def _spoken(draft: Draft) -> str:
    if draft.group is not None:
        return "groups with aggregates"
    found = () if draft.relation is None else tuple(leaf.alias for leaf in leaves(draft.relation))
    return ("the table " if len(found) == 1 else "the join of the tables ") + draft.names_of(found)


def _latest(draft: Draft, key: tuple[Expr, ...]) -> Warned:
    by = ", ".join(expression_in_words(expr) for expr in key)
    message = f"SELECT TABLE over a stream shows the latest row of each {by}: a row takes back the one before it."
    return Warned(message, draft.query.span)
