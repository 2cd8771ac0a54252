"""Which joins a script asks for, and by which columns: also of scripts that may not run yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watersmeet.catalog import Source
from watersmeet.logical.expressions import Expr, conjuncts
from watersmeet.logical.nodes import Join, JoinKind, Query, Relation, Script, Union, leaves, scans
from watersmeet.logical.words import expression_in_words


@dataclass(frozen=True)
class JoinPair:
    """Two sources that are joined, under their aliases; ``keys`` are the columns that must be equal.

    ``unread``: equalities of other things than columns, which are not looked at.
    """

    left: Source
    right: Source
    aliases: tuple[str, str]
    keys: tuple[tuple[str, str], ...] = ()
    kind: JoinKind = "inner"
    unread: tuple[str, ...] = ()

    @property
    def is_of_streams(self) -> bool:
        """Whether both sides are streams, which meet within bounds of time."""
        return self.left.kind == "stream" and self.right.kind == "stream"


def join_pairs(script: Script) -> tuple[JoinPair, ...]:
    """The pairs of sources that queries join; of a script that joins nothing yet, all pairs of its streams."""
    sources_by_name = {source.name.lower(): source for source in script.sources}
    candidates = [pair for query in _queries(script) for pair in _pairs_in(query.relation, sources_by_name)]
    if not any(len(leaves(query.relation)) > 1 for query in _queries(script)):
        streams = [source for source in script.sources if source.kind == "stream"]
        pairs = ((a, b) for n, a in enumerate(streams) for b in streams[n + 1 :])
        return tuple(JoinPair(a, b, (a.name, b.name)) for a, b in pairs)
    return tuple({(pair.left.name, pair.right.name, pair.keys, pair.kind): pair for pair in candidates}.values())


def skip_notes(script: Script) -> tuple[str, ...]:
    """What is not looked at, in sentences: views and unions that queries join, and joins without bounds of time."""
    source_names = {source.name.lower() for source in script.sources}
    relations = [query.relation for query in _queries(script)]
    unions = [
        leaf.alias
        for relation in relations
        for join in _joins(relation)
        for leaf in leaves(join)
        if isinstance(leaf, Union)
    ]
    names = (scan.source for relation in relations for join in _joins(relation) for scan in scans(join))
    views = [
        f"{name} is a view: only joins of sources are analyzed." for name in names if name.lower() not in source_names
    ]
    views += [f"{name} is a union: only joins of single sources are analyzed." for name in unions]
    others = (scans(relation) for relation in relations if len(leaves(relation)) > 1 and not [*_joins(relation)])
    kinds = [
        f"The join of {' and '.join(s.source for s in sources)} has no time bounds to propose." for sources in others
    ]
    return tuple(dict.fromkeys([*views, *kinds]))


def _queries(script: Script) -> Iterator[Query]:
    waiting = [*script.queries, *(view.query for view in script.views)]
    while waiting:
        query = waiting.pop(0)
        waiting += [view.query for view in query.views]
        yield query


def _joins(relation: Relation) -> Iterator[Join]:
    """The joins that may have bounds of time; what has clauses of a family's own behind its sources has none."""
    if isinstance(relation, Join) and relation.is_plain:
        yield relation
    for side in relation.inputs:
        yield from _joins(side)


def _pairs_in(relation: Relation, sources_by_name: dict[str, Source]) -> Iterator[JoinPair]:
    for join in _joins(relation):
        sides = [_sources(side, sources_by_name) for side in (join.left, join.right)]
        keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for name in join.using:
            owners = [_owner((name,), side) for side in sides]
            if owners[0] is not None and owners[1] is not None:
                keys.setdefault((owners[0][0], owners[1][0]), []).append((name, name))
        parts = [part for part in conjuncts(join.on) if part.op == "="]
        pairs = [_equality(part, sides) for part in parts]
        unread = tuple(expression_in_words(part) for part, pair in zip(parts, pairs, strict=True) if pair is None)
        for (mine, left), (other, right) in (pair for pair in pairs if pair is not None):
            keys.setdefault((mine, other), []).append((left, right))
        if not keys and all(len(side) == 1 for side in sides):
            keys = {(next(iter(sides[0])), next(iter(sides[1]))): []}
        for (mine, other), columns in keys.items():
            yield JoinPair(sides[0][mine], sides[1][other], (mine, other), tuple(columns), join.kind, unread)


def _sources(relation: Relation, sources_by_name: dict[str, Source]) -> dict[str, Source]:
    """The sources of a side by alias; views are none."""
    plain_scans = (leaf for leaf in leaves(relation) if not isinstance(leaf, Union))
    return {
        scan.alias: sources_by_name[scan.source.lower()]
        for scan in plain_scans
        if scan.source.lower() in sources_by_name
    }


def _equality(part: Expr, sides: list[dict[str, Source]]) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """A column of the left side and one of the right, if that is what a part compares."""
    if any(arg.op != "column" or not arg.refs for arg in part.args):
        return None
    first, second = (arg.refs[0].parts for arg in part.args)
    for mine, other in ((first, second), (second, first)):
        left, right = _owner(mine, sides[0]), _owner(other, sides[1])
        if left is not None and right is not None:
            return left, right
    return None


def _owner(parts: tuple[str, ...], side: dict[str, Source]) -> tuple[str, str] | None:
    """The alias and the column that a name means on a side; None: it is not of that side, or inside a column."""
    for alias, source in side.items():
        name = parts[-1] if len(parts) == 1 or (len(parts) == 2 and parts[0].lower() == alias.lower()) else ""
        field = source.field(name) if name else None
        if field is not None:
            return alias, field.name
    return None
