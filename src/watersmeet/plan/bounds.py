"""What bounds the state of a query: time, the ends that rows carry, the number of keys, or a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watersmeet.operators.core.aggregates import needs_all_rows
from watersmeet.plan.expressions import Expr
from watersmeet.plan.query import AnalyzedGroup, AnalyzedQuery, AnalyzedTop
from watersmeet.plan.relation import (
    BY_TIME,
    AnalyzedJoin,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedView,
    StateBound,
    leaves,
)
from watersmeet.plan.result_columns import expand_group
from watersmeet.plan.words import expression_in_words, word

_BY = {"time": "time", "ends": "the end time in each row", "keys": "the number of keys", "limit": "a limit"}


def bounds_of(query: AnalyzedQuery) -> tuple[StateBound, ...]:
    """What bounds all that a query keeps, the views in it too; nothing if it keeps nothing."""
    bounds = [*_relation_bounds(query.relation)]
    if query.group is not None:
        bounds += _group_bounds(query, query.group)
    elif query.top is not None:
        bounds.append(_top_bound(query.relation.result == "table", query.top))
    elif query.result == "table" and query.relation.result == "stream":
        bounds.append(per_key([expand_group(expr, query.group) for expr in query.key]))
    return tuple(dict.fromkeys(bounds))


def _top_bound(is_table: bool, top: AnalyzedTop) -> StateBound:
    if top.final_by is not None:
        return BY_TIME
    if is_table:
        return StateBound("keys", "the rows that are ordered")
    rows = "one row" if top.limit == 1 else f"{top.limit} rows"
    if top.by:
        return StateBound("keys", f"{rows} per {', '.join(expression_in_words(by.shown) for by in top.by)}")
    return StateBound("limit", rows)


def bounds_in_words(bounds: Sequence[StateBound]) -> str:
    """What bounds a state, in a sentence without its end.

    >>> bounds_in_words([BY_TIME, StateBound("keys", "one row per id"), StateBound("keys", "one row per name")])
    'bounded by time, and by the number of keys: one row per id, one row per name'
    """
    if not bounds:
        return "none: nothing is kept"
    parts = [
        f"by {words}" + (f": {', '.join(b.words for b in bounds if b.by == by)}" if by != "time" else "")
        for by, words in _BY.items()
        if any(b.by == by for b in bounds)
    ]
    return f"bounded {', and '.join(parts)}"


def per_key(key: Sequence[Expr], what: str = "row") -> StateBound:
    """One row, or what there is else, for every value of a key; without a key there is one."""
    words = ", ".join(expression_in_words(expr) for expr in key)
    return StateBound("keys", f"one {what} per {words}" if words else f"one {what}")


def rows_of_table(relation: AnalyzedRelation) -> StateBound:
    """The rows that a table has."""
    key = relation.source.primary_key if isinstance(relation, AnalyzedScan | AnalyzedView) else ()
    names = " with ".join(leaf.alias for leaf in leaves(relation))
    if not key:
        return StateBound("keys", f"the rows of the table {names}")
    return StateBound("keys", f"one row per {', '.join(f'{names}.{word(name)}' for name in key)}")


def _group_bounds(query: AnalyzedQuery, group: AnalyzedGroup) -> Iterator[StateBound]:
    """The groups, and their rows where an aggregate must see all of them."""
    if group.time is not None or group.final_by is not None:
        yield BY_TIME
        return
    yield per_key([by.expr for by in group.by])
    is_table = query.relation.result == "table"
    for call in (output.expr for output in group.aggregates):
        if needs_all_rows(call.function, changes=is_table):
            yield StateBound("keys", f"the input of {expression_in_words(call)}")


def _relation_bounds(relation: AnalyzedRelation) -> Iterator[StateBound]:
    if isinstance(relation, AnalyzedView):
        yield from bounds_of(relation.query)
        return
    if isinstance(relation, AnalyzedScan) and relation.source.primary_key and not relation.source.is_static:
        yield rows_of_table(relation)
    for side in relation.inputs:
        # What a join keeps of a source, the join says.
        if not (isinstance(relation, AnalyzedJoin) and isinstance(side, AnalyzedScan)):
            yield from _relation_bounds(side)
    if isinstance(relation, AnalyzedJoin):
        yield from relation.state_bounds
