"""Which rows of a table change no more: windows of event time that have ended are settled, behind their groups too.

A grouping forgets a window once the watermark has passed its end. Its bounds then have marks behind the grouping, as
event times have behind a join, and whatever has groups by them can forget what the marks have passed: the first rows of
each window, the greatest count of each window, a join of such tables on the window. Such a mark is no watermark of
arrivals: it says nothing of streams.
"""

from __future__ import annotations

import re

from watersmeet.duration import parse_duration
from watersmeet.plan.expressions import Expr, settled_as
from watersmeet.plan.query import AnalyzedQuery

_LENGTH = re.compile(r"\s*,\s*'([^']*)'\s*[,)].*", re.DOTALL)


def window_length(expr: Expr) -> int | None:
    """The length of ``window(time, length, ...)`` in microseconds; None where nobody can tell.

    >>> from watersmeet.plan.expressions import Reference
    >>> window_length(Expr("other", text="window(t, '10 minutes', '1 minute')", refs=(Reference(("t",), 7, 8),)))
    600000000
    """
    found = _LENGTH.fullmatch(expr.text[expr.refs[0].end :]) if len(expr.refs) == 1 else None
    try:
        return None if found is None else parse_duration(found[1])
    except ValueError:
        return None


def settled_outputs(query: AnalyzedQuery) -> tuple[str, ...]:
    """The columns of a query's result by which its rows are settled."""
    if query.result != "table":
        return ()
    known = query.relation.settled
    if query.group is not None:
        known = frozenset(one.column for one in query.group.settles)
    elif query.top is not None:
        # A row is no longer among the first when others come, however old it is, unless its group is as old.
        by = None if query.top.settled_by is None else settled_as(query.top.by[query.top.settled_by].expr)
        known &= frozenset() if by is None else query.relation.alike(by)
    return tuple(output.name for output in query.outputs if settled_as(output.expr) in known)
