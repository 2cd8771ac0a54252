"""Queries with several sinks: one result, and a branch to each sink with its own filter and columns.

``INSERT INTO a, b SELECT ...`` is such a query. Several INSERTs that do no more than filter and project the same view
become one: the view is then computed once, with the columns that any of them reads, and each branch does the rest. An
INSERT that joins or groups the view stays a query of its own, since it has a state of its own.

INSERTs that have checkpoints already stay separate. The setting ``watersmeet.shared_views`` says otherwise: ``on`` lets
them share from now on, ``off`` keeps all INSERTs separate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watersmeet.logical.nodes import Query, Scan, Script
from watersmeet.logical.passes.scope import show_column
from watersmeet.logical.passes.settings import SHARED_VIEWS
from watersmeet.logical.passes.views import rename_aliases
from watersmeet.logical.query import AnalyzedBranch, AnalyzedQuery, Output
from watersmeet.logical.relation import AnalyzedLeaf, AnalyzedScan, AnalyzedView

Recorded = Mapping[str, tuple[str, ...]]
"""By the name of each checkpoint of a storage, the sinks that it records; none: it is that of one INSERT."""


def flatten_branches(script: Script) -> Script:
    """The script with a query for each sink, as if each INSERT ran by itself."""
    queries = tuple(branch for query in script.queries for branch in query.branches or (query,))
    return replace(script, queries=queries)


def join_branches(script: Script, queries: Sequence[AnalyzedQuery]) -> tuple[AnalyzedQuery, ...]:
    """The queries of a script, from those of all its branches."""
    rest = iter(queries)
    joined: list[AnalyzedQuery] = []
    for query in script.queries:
        if query.branches:
            joined.append(_merge([next(rest) for _ in query.branches], query.into))
        else:
            joined.append(next(rest))
    return tuple(joined)


def share_views(
    script: Script, queries: Sequence[AnalyzedQuery], recorded: Recorded
) -> tuple[Script, tuple[AnalyzedQuery, ...]]:
    """The script in which INSERTs that read one view are one query, where their checkpoints allow it."""
    modes = [setting.value.strip().lower() for setting in script.settings if setting.name.lower() == SHARED_VIEWS]
    groups = [_Group.of(parsed, query) for parsed, query in zip(script.queries, queries, strict=True)]
    if modes[-1:] != ["off"]:
        groups = _group_by_view(script, groups, {} if modes else recorded)
    own = {group.names[0] for group in groups}
    merged = [group.merge(recorded, own) for group in groups]
    return replace(script, queries=tuple(parsed for parsed, _ in merged)), tuple(query for _, query in merged)


@dataclass(frozen=True)
class _Group:
    """INSERTs that run as one query."""

    members: tuple[tuple[Query, AnalyzedQuery], ...]

    @classmethod
    def of(cls, parsed: Query, query: AnalyzedQuery) -> _Group:
        """The INSERTs of one statement."""
        if not parsed.branches:
            return cls(((parsed, query),))
        return cls(tuple(zip(parsed.branches, (branch.query for branch in query.branches), strict=True)))

    @property
    def names(self) -> list[str]:
        """The sinks, in the order of the script."""
        return [parsed.into or "" for parsed, _ in self.members]

    def merge(self, recorded: Recorded, own: set[str]) -> tuple[Query, AnalyzedQuery]:
        """One query under the name of its checkpoint. ``own``: the first sinks of all queries."""
        parsed, query = self.members[0]
        names = self.names
        # The checkpoint of INSERTs that ran as one query is theirs, though its first sink may be gone.
        shared = [
            name for name, sinks in recorded.items() if set(sinks) & set(names) and (name in names or name not in own)
        ]
        name = next(iter([*shared, *(name for name in names if name in recorded)]), names[0])
        if [name] == names:
            return parsed, query
        branches = tuple(parsed for parsed, _ in self.members)
        return replace(parsed, into=name, branches=branches), _merge([query for _, query in self.members], name)


def _group_by_view(script: Script, groups: Sequence[_Group], recorded: Recorded) -> list[_Group]:
    """The groups, where INSERTs over the same view are together; those with a checkpoint of their own are separate."""
    views = {view.name.lower() for view in script.views}
    together = {name for sinks in recorded.values() for name in sinks}
    separate = {name for name, sinks in recorded.items() if not sinks} - together
    shared: list[tuple[AnalyzedLeaf, int]] = []
    result: list[_Group] = []
    for group in groups:
        leaves = [_shared_view(parsed, query, views) for parsed, query in group.members]
        leaf = leaves[0]
        if leaf is None or any(map(separate.__contains__, group.names)):
            result.append(group)
            continue
        place = next((place for other, place in shared if other == leaf), None)
        if place is None:
            shared.append((leaf, len(result)))
            result.append(group)
        else:
            result[place] = _Group((*result[place].members, *group.members))
    return result


def _shared_view(parsed: Query, query: AnalyzedQuery, views: set[str]) -> AnalyzedLeaf | None:
    """The view that an INSERT reads without doing more than filtering and projecting it; None for any other query."""
    relation = parsed.relation
    is_plain = (
        isinstance(relation, Scan)
        and relation.source.lower() in views
        and parsed.into is not None
        and not parsed.side_outputs
        and parsed.late_into is None
        and query.group is None
        and query.top is None
        and query.result == query.relation.result
    )
    if not is_plain or not isinstance(query.relation, AnalyzedView | AnalyzedScan):
        return None
    return _unfiltered(query.relation, "")


def _unfiltered(leaf: AnalyzedLeaf, alias: str) -> AnalyzedLeaf:
    """The view without the filters of its reader, under another alias."""
    return replace(rename_aliases(leaf, {leaf.alias: alias}), filters=())


def _merge(queries: Sequence[AnalyzedQuery], name: str | None) -> AnalyzedQuery:
    """The query that these branches have in common."""
    widest = max(queries, key=lambda query: len(query.outputs))
    if all(_has_same_rows(query, widest) for query in queries):
        return replace(widest, into=name, branches=tuple(AnalyzedBranch(query) for query in queries))
    view = queries[0].relation
    assert isinstance(view, AnalyzedLeaf), "only INSERTs over one view have filters and columns of their own"
    branches = tuple(_over(view.alias, query) for query in queries)
    exprs = [expr for b in branches for expr in (*b.where, *(output.expr for output in b.query.outputs))]
    read = {ref.name for expr in exprs for ref in expr.references}
    columns = [c for field in view.source.fields if (c := show_column(view.alias, view.source, field.name)) is not None]
    outputs = [Output(column.name, column.expr) for column in columns if column.name in read]
    warnings = tuple(dict.fromkeys(warning for query in queries for warning in query.warnings))
    return AnalyzedQuery(
        _unfiltered(view, view.alias), tuple(outputs or [Output(columns[0].name, columns[0].expr)]), into=name,
        warnings=warnings, span=queries[0].span, result=view.result, branches=branches,
    )  # fmt: skip


def _has_same_rows(query: AnalyzedQuery, widest: AnalyzedQuery) -> bool:
    """Whether a query is another one, up to its sink and to the last columns, which only some sinks need."""
    outputs = widest.outputs[: len(query.outputs)]
    return query.outputs == outputs and (query.relation, query.where, query.group, query.top, query.result) == (
        widest.relation, widest.where, widest.group, widest.top, widest.result
    )  # fmt: skip


def _over(alias: str, query: AnalyzedQuery) -> AnalyzedBranch:
    """An INSERT as what it does with the rows of the view that it shares, which has that alias."""
    assert isinstance(query.relation, AnalyzedLeaf)
    query = rename_aliases(query, {query.relation.alias: alias})
    assert isinstance(query.relation, AnalyzedLeaf)
    return AnalyzedBranch(query, alias, (*query.relation.filters, *query.where))
