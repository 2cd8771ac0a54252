"""One batch of the first rows of each group: only groups that it touches are looked at.

Of a stream a group's first rows are kept, each with its place in the order of arrival, which tells equal rows apart; of
a table all its rows, as in a table. What the group showed before the batch follows from what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, consolidated, joined_tables, key_ids
from watersmeet.joins.core.matching import Ints, stable_order
from watersmeet.joins.core.order import are_least, ranks_of
from watersmeet.joins.group.members import put_together
from watersmeet.joins.state.table import Table, unweighted

if TYPE_CHECKING:
    from watersmeet.joins.state.layout import Over, Rows
    from watersmeet.joins.top.operator import Top


def changed(
    top: Top, kept: Table, new: Rows, sorted_: Callable[[Rows], Ints], over: Over | None = None
) -> tuple[tuple[pa.Table, ...], int]:
    """Take arrivals in; gives what changes, and by how much the number of rows that are shown does.

    ``sorted_`` tells the order of rows in which those of a group stand as they compete; ``over``: which of them need
    not be kept, since their group is settled with this batch.
    """
    before_it = kept.stored(np.unique(new.codes))
    stored = _there(before_it)
    before = _first(top, stored, sorted_)
    if top.changes:
        after = _first(top, _there(kept.layout.merged([before_it, new])), sorted_)
        kept.spine.add(put_together(new if over is None else new.where(over.left(new)), is_whole=False))
    else:
        after = _first(top, kept.layout.merged([stored, new]), sorted_)
        difference = put_together(kept.layout.merged([negated(stored), kept.layout.sorted(after)]))
        kept.spine.add(difference)
    tables = [unweighted(part).select([*top.columns, WEIGHT]) for part in (negated(before), after) if len(part)]
    found = consolidated(joined_tables(tables), top.columns) if tables else None
    grown = int(after.weights.sum() - before.weights.sum())
    return ((found,) if found is not None and found.num_rows else ()), grown


def negated(rows: Rows) -> Rows:
    """Rows that go."""
    return rows.with_beside(**{WEIGHT: -rows.weights})


def _there(stored: Rows) -> Rows:
    rows = put_together(stored)
    return rows.where(rows.weights > 0)


def _first(top: Top, rows: Rows, sorted_: Callable[[Rows], Ints]) -> Rows:
    """The first rows of each group, as often as they are shown."""
    if not len(rows):
        return rows
    groups = key_ids(rows.table, top.by)
    if top.limit == 1:
        # What another row of its group is before, by what counts first, need not be sorted.
        some = are_least(ranks_of(rows.table.column(top.order[0].column), top.order[0]), groups)
        rows, groups = rows.where(some), groups[some]
    order = sorted_(rows)
    order = order[stable_order(groups[order])]
    rows, groups = rows.take(order), groups[order]
    before = np.cumsum(rows.weights) - rows.weights
    is_first = np.append(True, groups[1:] != groups[:-1])
    starts = np.flatnonzero(is_first)
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(groups))))
    weights = top.shown_of(rows, before, is_first)
    return rows.with_beside(**{WEIGHT: weights}).where(weights > 0)
