"""The relation of a query: the pass that builds every join by its family, and the one that moves WHERE into joins.

The family builds or refuses a join, and must show that its state is bounded. A union is several sources as one, with
their columns by position.

Parts of WHERE move into the conditions of inner joins where they mean the same. The sources of a list (``FROM a, b``)
are joined by what WHERE says of them, in an order in which comparisons join each with those before it. Other joins get
what WHERE says of their sides, a bound on times for example, where the query is refused without it; every other WHERE
stays where it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from watersmeet.catalog import Field, Source, Watermark
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, Reference, all_of, conjuncts
from watersmeet.logical.nodes import Join, Lateral, Leaf, ParsedJoin, Relation, Scan, Union, aliases
from watersmeet.logical.passes.column_types import is_same_type, is_sound, query_watermarks, with_query_watermarks
from watersmeet.logical.passes.comparisons import compare
from watersmeet.logical.passes.conditions import key_of
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.family import BuildResult
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.scope import KEY
from watersmeet.logical.passes.settings import read_conditions
from watersmeet.logical.passes.views import place_view
from watersmeet.logical.passes.watermarks import assume_watermarks, heartbeat_of
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import (
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
)
from watersmeet.logical.words import kind_in_words


def parts_of(draft: Draft, union: Union) -> tuple[Source, ...]:
    """The sources of a union in order; one that is not declared has no columns."""
    return tuple(
        with_query_watermarks(draft.sources.get(s.source.lower(), Source(s.source, ())), s) for s in union.scans
    )


def merge_parts(draft: Draft, union: Union) -> Source:
    """A union as one source: the columns of its first part, and the watermarks that all parts have.

    A union that has been refused has no columns, so that nothing is said of what follows from that.
    """
    first, *others = parts = parts_of(draft, union)
    is_known = all(is_sound(part) for part in parts) and _check_compatible(draft, union) is None
    has_key = _has_key(draft, union)
    if not is_known or any(_difference(first, other, ("", ""), has_key=has_key) for other in others):
        return Source(union.alias, (), span=union.span)
    positions = range(min(len(_columns(part, has_key=has_key)) for part in parts))
    fields = tuple(replace(first.fields[i], nullable=any(p.fields[i].nullable for p in parts)) for i in positions)
    watermarks = tuple(watermark for i in positions if (watermark := _common_watermark(i, parts)) is not None)
    return Source(
        union.alias, fields, watermarks, first.kind, span=union.span, order=_order(parts), order_span=union.span
    )


def _columns(part: Source, *, has_key: bool) -> list[Field]:
    """The columns of a part of a union, by position: those of ``*``, and the key of its records."""
    return [field for field in part.fields if not field.hidden or (has_key and field.name.lower() == KEY)]


def _has_key(draft: Draft, union: Union) -> bool:
    """Whether the rows of a union have the key of their part: not those of tables by key, of joins or groups."""
    queries = [draft.views.get(scan.source.lower()) for scan in union.scans]
    is_plain = all(query is None or _is_plain(query) for query in queries)
    return is_plain and not any(part.primary_key for part in parts_of(draft, union))


def _order(parts: tuple[Source, ...]) -> str | None:
    """The column that orders the rows of all parts; None if they have none in common."""
    orders = [(p.order or "").lower() for p in parts]
    named = [[f.name.lower() for f in p.fields] for p in parts]
    positions = {names.index(order) if order in names else None for order, names in zip(orders, named, strict=True)}
    position = positions.pop() if len(positions) == 1 else None
    return None if position is None else parts[0].fields[position].name


def check_union(draft: Draft, union: Union) -> Iterator[Refusal]:
    """Parts that do not fit together."""
    first, *others = parts_of(draft, union)
    refusal = _check_compatible(draft, union)
    if refusal is not None:
        yield refusal
    for scan, other in zip(union.scans[1:], others, strict=True):
        has_key = _has_key(draft, union)
        pair = [_name_of_part(union, place) for place in (0, union.scans.index(scan))]
        difference = _difference(first, other, pair, has_key=has_key) if first.fields and other.fields else None
        if difference is not None:
            hint = f"declare {other.name} with the columns of {first.name}, in the same order."
            if scan.source.startswith("#"):
                hint = "select as many columns of the same types, in the same order; a CAST makes a column fit."
            is_unnamed = union.alias.startswith("#") or all(one.source.startswith("#") for one in union.scans)
            union_name = "The union" if is_unnamed else f"The union {union.alias}"
            yield draft.refusal("TYPE_MISMATCH", scan.span, expression=union_name, reason=difference, hint=hint)
    if merge_parts(draft, union).fields and len({beat and beat.sql() for beat in _heartbeats(draft, union)}) > 1:
        names = format_list(dict.fromkeys(scan.source for scan in union.scans))
        hint = "declare the same HEARTBEAT WHEN for all of them, or for none."
        yield draft.refuse_unsupported(union.span, f"A union of {names}, whose heartbeats differ,", hint)


def _check_compatible(draft: Draft, union: Union) -> Refusal | None:
    """Refuse a union whose parts do not fit: a stream and a table, tables by key, joins or groups."""
    parts = parts_of(draft, union)
    hint = "write the result to a sink, and read that as a source of the union."
    for scan, part in zip(union.scans, parts, strict=True):
        query = draft.views.get(scan.source.lower())
        if part.kind != parts[0].kind and part.fields and parts[0].fields:
            names = (_with_kind(parts[0].kind, union.scans[0].source), _with_kind(part.kind, scan.source))
            construct = f"A union of {' with '.join(names)}"
            hint = (
                "join them, or show the stream as a table: each row once, `SELECT TABLE DISTINCT x`, or the latest one "
                "per key, `SELECT TABLE x AS _key`."
            )
        elif part.kind == "stream" and query is not None and not _is_plain(query):
            construct = f"A union with {_display_name(scan.source)}, which joins, groups or is a union itself,"
        else:
            continue
        return draft.refuse_unsupported(scan.span, construct, hint)
    return None


def _is_plain(query: AnalyzedQuery) -> bool:
    """Whether a query is stateless: it filters, computes and unnests arrays."""
    if query.group is not None or query.top is not None or query.result != query.relation.result:
        return False
    relation = query.relation
    while isinstance(relation, AnalyzedLateral):
        relation = relation.input
    if isinstance(relation, AnalyzedView):
        return _is_plain(relation.query)
    return isinstance(relation, AnalyzedScan) and not relation.source.primary_key and not relation.parts


def is_plain_union(draft: Draft, union: Union) -> bool:
    """Whether all parts are streams as they are declared."""
    named = (scan.source.lower() for scan in union.scans)
    return merge_parts(draft, union).kind == "stream" and not any(name in draft.views for name in named)


def union_of(draft: Draft, union: Union) -> AnalyzedUnion:
    """A union of views or tables."""
    sides: list[AnalyzedScan | AnalyzedView] = []
    for number, (scan, part) in enumerate(zip(union.scans, parts_of(draft, union), strict=True)):
        alias, query = f"{union.alias}/{number + 1}", draft.views.get(scan.source.lower())
        watermarks = query_watermarks(part, scan)
        leaf = AnalyzedScan(alias, part) if query is None else place_view(alias, part, query, watermarks)
        assert isinstance(leaf, AnalyzedScan | AnalyzedView)
        sides.append(leaf)
    return AnalyzedUnion(
        union.alias, draft.scope.sources[union.alias], tuple(sides), parts=tuple(side.source for side in sides)
    )


def union_heartbeat(draft: Draft, union: Union) -> Expr | None:
    """The condition under which a row of the union is a heartbeat, which is that of all its parts."""
    return next(_heartbeats(draft, union), None)


def _heartbeats(draft: Draft, union: Union) -> Iterator[Expr | None]:
    fields = merge_parts(draft, union).fields
    for scan, part in zip(union.scans, parts_of(draft, union), strict=True):
        heartbeat = heartbeat_of(draft, Scan(scan.source, union.alias, scan.span))
        yield _by_position(heartbeat, part, fields) if heartbeat is not None and fields else None


def _by_position(condition: Expr, part: Source, fields: tuple[Field, ...]) -> Expr:
    names = dict(zip((field.name for field in part.fields), (field.name for field in fields), strict=False))

    def rename(ref: Reference) -> Reference:
        return replace(ref, name=names.get(ref.name, ref.name))

    return condition.map_references(rename)


def _common_watermark(position: int, parts: tuple[Source, ...]) -> Watermark | None:
    """The watermark of a column, if all parts have one: it is idle when all of them are."""
    watermarks = [part.watermark(part.fields[position].name) for part in parts]
    if watermarks[0] is None or None in watermarks:
        return None
    idle = [watermark.idle for watermark in watermarks if watermark is not None and watermark.idle is not None]
    return replace(watermarks[0], idle=max(idle) if len(idle) == len(watermarks) else None)


def _difference(first: Source, other: Source, names: Sequence[str], *, has_key: bool) -> str | None:
    """The reason why two parts of a union do not fit, by their names; None if their columns have the same types."""
    # A set operation numbers its sides in a column of its own.
    shown = [[f for f in part.fields if not f.hidden and not f.name.startswith("#")] for part in (first, other)]
    if len(shown[0]) != len(shown[1]):
        counts = (f"{len(fields)} column{'s' if len(fields) != 1 else ''}" for fields in shown)
        return f"{', '.join(f'{name} has {count}' for name, count in zip(names, counts, strict=True))}."
    pairs = zip(_columns(first, has_key=has_key), _columns(other, has_key=has_key), strict=False)
    for i, (mine, theirs) in enumerate(pairs, start=1):
        # Of what only Spark can compute, only Spark knows the type.
        if mine.type and theirs.type and not is_same_type(mine.type, theirs.type):
            columns = (f"`{f.name}` {f.type} in {name}" for f, name in zip((mine, theirs), names, strict=True))
            return f"column {i} is {' and '.join(columns)}."
    return None


def _name_of_part(union: Union, place: int) -> str:
    """A part of a union in words: a subquery has a generated name."""
    name = union.scans[place].source
    return f"part {place + 1}" if name.startswith("#") else name


def _with_kind(kind: str, source: str) -> str:
    return f"a subquery that is a {kind}" if source.startswith("#") else f"the {kind} {source}"


def _display_name(source: str) -> str:
    # A subquery has a generated name.
    return "a subquery" if source.startswith("#") else source


def build_relation(draft: Draft) -> Draft:
    """The draft with its relation built, the conditions of its joins still in one piece."""
    draft = read_conditions(draft, lambda join: len(_build(draft, join)[1]))
    relation, refusals = _build(draft, draft.query.relation)
    refusals += [refusal for family in draft.families for refusal in family.check_clauses(draft)]
    warnings = [warned for family in draft.families for warned in family.warn(draft, relation)]
    return replace(draft, relation=relation).with_refusals(refusals).with_warnings(warnings)


def _build(draft: Draft, relation: Relation) -> BuildResult:
    if isinstance(relation, Leaf):
        return _build_leaf(draft, relation), []
    sides = [_build(draft, side) for side in relation.inputs]
    inputs, refusals = (
        tuple(side for side, _ in sides),
        [refusal for _, side_refusals in sides for refusal in side_refusals],
    )
    if isinstance(relation, Lateral):
        element = draft.scope.sources[relation.alias]
        return AnalyzedLateral(inputs[0], relation.array, relation.alias, element, span=relation.span), refusals
    family = draft.family(relation, tuple(side.result for side in inputs))
    joined, own = family.build(draft, relation, inputs)
    if isinstance(relation, Join) and relation.at_processing_time:
        own = list(_check_processing_time(draft, relation, inputs)) or own
    return joined, [*refusals, *own]


def _check_processing_time(draft: Draft, join: Join, inputs: tuple[AnalyzedRelation, ...]) -> Iterator[Refusal]:
    """Refuse AS OF PROCTIME() unless a stream on the left looks up a table on the right."""
    left, right = inputs
    sides = [draft.names_of(side.aliases) for side in inputs]
    words = "FOR SYSTEM_TIME AS OF PROCTIME()"
    if join.kind not in ("inner", "left"):
        hint = "write LEFT JOIN, with the stream on the left."
        yield draft.refuse_unsupported(join.span, f"A {kind_in_words(join.kind)} JOIN with {words}", hint)
    elif right.result == "stream":
        hint = (
            f"declare {sides[1]} with `CREATE TABLE`, or give the time of a row: `FOR SYSTEM_TIME AS OF {sides[0]}.t`."
        )
        yield draft.refuse_unsupported(join.span, f"{words} of the stream {sides[1]}", hint)
    elif left.result == "table":
        hint = f"leave {words} out: the join of two tables changes with both."
        yield draft.refuse_unsupported(join.span, f"{words} for rows of the table {sides[0]}", hint)


def _build_leaf(draft: Draft, leaf: Leaf) -> AnalyzedLeaf:
    view = draft.views.get(leaf.source.lower()) if isinstance(leaf, Scan) else None
    if isinstance(leaf, Scan) and view is not None:
        source = draft.scope.sources[leaf.alias]
        return place_view(leaf.alias, source, view, query_watermarks(source, leaf))
    if isinstance(leaf, Union) and not is_plain_union(draft, leaf) and draft.scope.sources[leaf.alias].fields:
        return union_of(draft, leaf)
    parts = parts_of(draft, leaf) if isinstance(leaf, Union) else ()
    heartbeat = union_heartbeat(draft, leaf) if isinstance(leaf, Union) else heartbeat_of(draft, leaf)
    return AnalyzedScan(leaf.alias, draft.scope.sources[leaf.alias], parts=parts, heartbeat=heartbeat)


Parts = tuple[Expr, ...]
"""Parts of a condition that all must hold."""


def move_conditions(draft: Draft) -> Draft:
    """The draft with parts of its WHERE in the conditions of its joins."""
    parts = conjuncts(draft.query.where)
    movable = tuple(part for part in parts if is_resolved(part) and len(part.sources) > 1)
    relation = _order_lists(draft, draft.query.relation, movable)
    draft = _place(draft, relation, parts, movable, only_lists=True)
    if draft.refusals or not any(part in movable for part in conjuncts(draft.query.where)):
        return draft
    moved = _place(draft, draft.query.relation, conjuncts(draft.query.where), movable, only_lists=False)
    # What runs as it is written stays so, and with it the state of the query.
    return moved if _count_refusals(moved) < _count_refusals(draft) else draft


def _count_refusals(draft: Draft) -> int:
    return len(build_relation(assume_watermarks(draft)).refusals)


def _place(draft: Draft, relation: Relation, parts: Parts, movable: Parts, *, only_lists: bool) -> Draft:
    staying = list[Expr]()
    for part in parts:
        placed = _with_part(relation, part, only_lists=only_lists) if part in movable else None
        if placed is None:
            staying.append(part)
        else:
            relation = placed
    if len(staying) == len(parts):
        return replace(draft, query=replace(draft.query, relation=relation))
    return replace(draft, query=replace(draft.query, relation=relation, where=all_of(staying)))


def _with_part(relation: Relation, part: Expr, *, only_lists: bool) -> Relation | None:
    """The relation with a condition in the lowest inner join that has all its sources; None if none may have it."""
    if not isinstance(relation, ParsedJoin | Lateral):
        return None
    first, *others = relation.inputs
    if part.sources <= frozenset(aliases(first)):
        # Rows of a padded side are also in the result where the condition is not true of them.
        is_padded = isinstance(relation, ParsedJoin) and relation.kind in ("right", "full")
        below = None if is_padded else _with_part(first, part, only_lists=only_lists)
        return None if below is None else relation.with_inputs([below, *others])
    if not isinstance(relation, Join) or relation.kind != "inner" or not part.sources <= frozenset(aliases(relation)):
        return None
    is_place = relation.on is not None and (relation.implied == "where" or not only_lists)
    return replace(relation, on=all_of([*conjuncts(relation.on), part])) if is_place else None


def _order_lists(draft: Draft, relation: Relation, parts: Parts) -> Relation:
    """The relation with the sources of each list in an order in which conditions join them, streams first."""
    if not isinstance(relation, Join) or relation.implied != "where":
        return relation.with_inputs([_order_lists(draft, side, parts) for side in relation.inputs])
    first, listed = _flatten(relation)
    first = _order_lists(draft, first, parts)
    if not relation.is_plain or any(join.within is not None for join in listed):
        return relation
    sides = [first, *(join.right for join in listed)]
    start = next((side for side in sides if draft.kind(side) == "stream"), first)
    rest = [side for side in sides if side is not start]
    ordered = start
    for join in listed:
        known = frozenset(aliases(ordered))
        # The first of those that most comparisons of columns join.
        side = max(rest, key=lambda side: _comparison_count(known, frozenset(aliases(side)), parts))
        rest.remove(side)
        ordered = replace(join, left=ordered, right=side)
    return ordered


def _comparison_count(known: frozenset[str], side: frozenset[str], parts: Parts) -> int:
    joining = (part for part in parts if part.sources <= known | side and part.sources & known and part.sources & side)
    return sum(key_of(part, known, side) is not None or compare(part) is not None for part in joining)


def _flatten(relation: Join) -> tuple[Relation, list[Join]]:
    """The first relation of a list, and the joins with the others."""
    joins = list[Join]()
    inner: Relation = relation
    while isinstance(inner, Join) and inner.implied == "where":
        joins.append(inner)
        inner = inner.left
    return inner, joins[::-1]
