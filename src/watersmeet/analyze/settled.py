"""Which rows of a table change no more: windows of event time that have ended are settled, behind their groups too.

A grouping forgets a window once the watermark has passed its end. Its bounds then have marks behind the grouping, as
event times have behind a join, and whatever has groups by them can forget what the marks have passed: the first rows of
each window, the greatest count of each window, a join of such tables on the window. Such a mark is no watermark of
arrivals: it says nothing of streams.
"""

from __future__ import annotations

import re

from watersmeet.duration import parse_duration
from watersmeet.plan.expressions import Expr, finality_column
from watersmeet.plan.query import AnalyzedQuery

_LENGTH = re.compile(r"\s*,\s*'([^']*)'\s*[,)].*", re.DOTALL)


def window_length(expr: Expr) -> int | None:
    """The length of ``window(time, length, ...)`` in microseconds; None where nobody can tell.

    >>> from watersmeet.plan.expressions import Reference
    >>> window_length(Expr("other", text="window(t, '10 minutes', '1 minute')", refs=(Reference(("t",), 7, 8),)))
    600000000
    """
    match = _LENGTH.fullmatch(expr.text[expr.refs[0].end :]) if len(expr.refs) == 1 else None
    try:
        return None if match is None else parse_duration(match[1])
    except ValueError:
        return None


def final_outputs(query: AnalyzedQuery) -> tuple[str, ...]:
    """The columns of a query's result by which its rows are settled."""
    if query.result != "table":
        return ()
    final_columns = query.relation.final_columns
    if query.group is not None:
        final_columns = frozenset(final.column for final in query.group.final_columns)
    elif query.top is not None:
        # A row is no longer among the first when others come, however old it is, unless its group is as old.
        by = None if query.top.final_by is None else finality_column(query.top.by[query.top.final_by].expr)
        final_columns &= frozenset() if by is None else query.relation.equal_columns(by)
    return tuple(output.name for output in query.outputs if finality_column(output.expr) in final_columns)
