"""One batch of the first rows of each group: only groups that it touches are looked at.

Of a stream a group's first rows are kept, each with its place in the order of arrival, which tells equal rows apart; of
a table all its rows, as in a table. What the group showed before the batch follows from what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, concat_tables, consolidate_changes, key_ids
from watersmeet.joins.core.matching import Ints, stable_order
from watersmeet.joins.core.order import are_least, ranks_of
from watersmeet.joins.group.members import merge_equal_rows
from watersmeet.joins.state.table import StateTable, to_changes

if TYPE_CHECKING:
    from watersmeet.joins.state.layout import FinalityBound, KeyedRows
    from watersmeet.joins.top.operator import TopNOperator


def update_groups(
    top: TopNOperator,
    table: StateTable,
    new: KeyedRows,
    argsort: Callable[[KeyedRows], Ints],
    finality: FinalityBound | None = None,
) -> tuple[tuple[pa.Table, ...], int]:
    """Take arrivals in; gives what changes, and by how much the number of rows that are shown does.

    ``argsort`` tells the order of rows in which those of a group stand as they compete; ``finality``: which of them
    need not be kept, since their group is settled with this batch.
    """
    stored_runs = table.read_rows(np.unique(new.codes))
    stored = _live_rows(stored_runs)
    before = _top_rows(top, stored, argsort)
    if top.changes:
        after = _top_rows(top, _live_rows(table.layout.merge([stored_runs, new])), argsort)
        table.spine.add(merge_equal_rows(new if finality is None else new.where(finality.is_open(new)), is_whole=False))
    else:
        after = _top_rows(top, table.layout.merge([stored, new]), argsort)
        difference = merge_equal_rows(table.layout.merge([negate(stored), table.layout.sort(after)]))
        table.spine.add(difference)
    tables = [to_changes(part).select([*top.columns, WEIGHT]) for part in (negate(before), after) if len(part)]
    changes = consolidate_changes(concat_tables(tables), top.columns) if tables else None
    growth = int(after.weights.sum() - before.weights.sum())
    return ((changes,) if changes is not None and changes.num_rows else ()), growth


def negate(rows: KeyedRows) -> KeyedRows:
    """Rows that go."""
    return rows.with_attributes(**{WEIGHT: -rows.weights})


def _live_rows(stored: KeyedRows) -> KeyedRows:
    rows = merge_equal_rows(stored)
    return rows.where(rows.weights > 0)


def _top_rows(top: TopNOperator, rows: KeyedRows, argsort: Callable[[KeyedRows], Ints]) -> KeyedRows:
    """The first rows of each group, as often as they are shown."""
    if not len(rows):
        return rows
    groups = key_ids(rows.table, top.by)
    if top.limit == 1:
        # What another row of its group is before, by what counts first, need not be sorted.
        is_candidate = are_least(ranks_of(rows.table.column(top.order[0].column), top.order[0]), groups)
        rows, groups = rows.where(is_candidate), groups[is_candidate]
    order = argsort(rows)
    order = order[stable_order(groups[order])]
    rows, groups = rows.take(order), groups[order]
    before = np.cumsum(rows.weights) - rows.weights
    is_first = np.append(True, groups[1:] != groups[:-1])
    starts = np.flatnonzero(is_first)
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(groups))))
    weights = top.visible_weights(rows, before, is_first)
    return rows.with_attributes(**{WEIGHT: weights}).where(weights > 0)
