"""Clauses of window joins where they have no meaning, and outputs apart that they do not have."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.outputs import check_columns, unsupported, wrong_output
from watersmeet.catalog import Source
from watersmeet.errors import Refusal
from watersmeet.families.window.relation import Pad, is_windowed, windows_in
from watersmeet.plan.nodes import PRESERVED, Apart, Join, Lateral, Leaf, Query, Side, every, leaves
from watersmeet.plan.words import kind_in_words


def check_clauses(draft: Draft) -> Iterator[Refusal]:
    """Windows and PAD elsewhere than in a join of two sources, which is the whole query."""
    yield from _check_windows(draft)
    for join in every(draft.query.relation):
        for clause in join.clauses if isinstance(join, Join) and not windows_in(join) else ():
            if isinstance(clause, Pad):
                hint = "write `coalesce(column, value)` in SELECT."
                yield unsupported(draft, clause.span, "PAD of a join without windows", hint)


def _check_windows(draft: Draft) -> Iterator[Refusal]:
    relation = draft.query.relation
    windows = windows_in(relation)
    if not windows or (isinstance(relation, Join) and len(leaves(relation)) == 2):
        return
    what = "A chain of joins with windows"
    hint = "write the result of the first join to a sink, and join the stream that reads it."
    if isinstance(relation, Leaf | Lateral):
        what, hint = "WINDOW without a join", "leave it out, or join with another source that has a window."
    elif not isinstance(relation, Join):
        what, hint = "WINDOW of a join by time", "leave it out: times say how long rows stay."
    yield unsupported(draft, windows[0].span, what, hint)


def check_outputs(draft: Draft) -> Iterator[Refusal]:
    """LATE INTO of a window join, and UNMATCHED INTO."""
    query = draft.query
    if query.late_into is not None and is_windowed(query.relation):
        hint = "leave LATE INTO out: windows follow the order of arrival, in which nothing is late."
        yield unsupported(draft, query.late_into_span, "LATE INTO of a window join", hint)
    yield from _check_unmatched(draft)


def unmatched(query: Query) -> dict[Side, Apart]:
    """The outputs of the rows of either side that stayed alone, where they have one."""
    given: dict[str, Side] = {"UNMATCHED LEFT": "left", "UNMATCHED RIGHT": "right"}
    return {given[apart.of]: apart for apart in query.apart if apart.of in given}


def _check_unmatched(draft: Draft) -> Iterator[Refusal]:
    relation, asked = draft.query.relation, unmatched(draft.query)
    if windows_in(relation) and len(leaves(relation)) != 2:
        # Windows elsewhere than in a join of two sources have been refused.
        return
    if not is_windowed(relation):
        for side, apart in asked.items():
            what = f"UNMATCHED {side.upper()} INTO of a join without windows"
            hint = "leave it out: rows that stay alone come out padded with NULL."
            yield unsupported(draft, apart.span, what, hint)
        return
    for side, apart in asked.items():
        name, span = apart.sink, apart.span
        leaf = leaves(relation)[0 if side == "left" else 1]
        source = draft.scope.sources.get(leaf.alias, Source(leaf.alias, ()))
        what = f"UNMATCHED {side.upper()} INTO {name}"
        if relation.kind not in PRESERVED[side]:
            kind = kind_in_words(relation.kind)
            reason = f"{kind} JOIN drops the rows of {source.name} that stay alone"
            hint = f"leave it out, or write {side.upper()} or FULL JOIN."
            yield wrong_output(draft, span, what, reason, f"{source.name} is not preserved", hint)
        elif relation.kind == "full" and len(asked) == 1:
            other = "RIGHT" if side == "left" else "LEFT"
            reason = "the other side's rows that stay alone would come out among the pairs"
            hint = f"add `UNMATCHED {other} INTO sink`, or leave both out."
            yield wrong_output(draft, span, what, reason, f"no UNMATCHED {other} INTO", hint)
        yield from check_columns(draft, name, span, what, source)
