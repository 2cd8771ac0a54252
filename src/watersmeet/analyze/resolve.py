"""The pass that finds out what every name means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.check_declarations import check_watermark
from watersmeet.analyze.column_types import element_of, type_of
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import with_query_watermarks
from watersmeet.analyze.meaning import ResolvedRelation, check_names, resolve_expression
from watersmeet.analyze.outputs import check_outputs
from watersmeet.analyze.scope import Scope, UnresolvedName, scope_of
from watersmeet.analyze.unions import check_union, merge_parts
from watersmeet.catalog import Field, Source
from watersmeet.errors import Refusal, did_you_mean, unique_refusals
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Item, Lateral, Query, Relation, Scan, Star, Union, laterals, leaves
from watersmeet.plan.words import expression_in_words


def resolve_relation(draft: Draft, relation: Relation) -> ResolvedRelation:
    """The relation with its names resolved, what can be named behind it, and the names that mean nothing."""
    match relation:
        case Scan():
            source = with_query_watermarks(
                draft.sources.get(relation.source.lower(), Source(relation.source, ())), relation
            )
            return relation, _scope(draft, relation.alias, source), []
        case Union():
            scope = _scope(draft, relation.alias, merge_parts(draft, relation))
            return relation, scope, list(check_union(draft, relation))
        case Lateral():
            return _resolve_lateral(draft, relation)
        case _:
            sides = [resolve_relation(draft, side) for side in relation.inputs]
            relation = relation.with_inputs([side for side, _, _ in sides])
            joined, scope, own = draft.family(relation).resolve_names(
                draft, relation, tuple(scope for _, scope, _ in sides)
            )
            return joined, scope, [*(refusal for *_, refusals in sides for refusal in refusals), *own]


def _scope(draft: Draft, alias: str, source: Source) -> Scope:
    hints = {name: hint for family in draft.families for name, hint in family.columns.items()}
    return replace(scope_of(alias, source), unavailable_columns=hints)


def _resolve_lateral(draft: Draft, lateral: Lateral) -> ResolvedRelation:
    """A lateral join: its array sees what stands before it, and its element is a column for what comes after."""
    below, scope, refusals = resolve_relation(draft, lateral.input)
    array = resolve_expression(lateral.array, scope)
    refusals += check_names(draft.script, lateral.array, scope)
    type_ = type_of(array, scope.sources) or ""
    element = element_of(type_)
    if element is None:
        reason, hint = f"it is {type_}, not an array.", "name an array, or make one: `array(a, b)`."
        text = f"`{expression_in_words(array)}`"
        refusals.append(draft.refusal("TYPE_MISMATCH", lateral.array.span, expression=text, reason=reason, hint=hint))
    source = Source(lateral.alias, (Field(lateral.alias, element or ""),), span=lateral.span)
    return replace(lateral, input=below, array=array), scope.combine(scope_of(lateral.alias, source)), refusals


def resolve(draft: Draft) -> Draft:
    """The draft with every reference resolved; one that means nothing is refused and stays unresolved.

    After it every join has an ON: what USING or the lack of a condition stands for is written out. A join that could
    not be given one has none.
    """
    query = draft.query
    refusals = [*_check_aliases(draft), *_check_sources(draft)]
    relation, scope, more = resolve_relation(draft, query.relation)
    items = tuple(i if isinstance(i, Star) else replace(i, expr=resolve_expression(i.expr, scope)) for i in query.items)
    by = tuple(_resolve_group_by(query, expr, scope) for expr in query.group_by)
    having = None if query.having is None else _resolve_having(query, query.having, scope)
    for expr in (*(item.expr for item in query.items if isinstance(item, Item)), query.where, *by, having):
        more += check_names(draft.script, expr, scope)
    more = unique_refusals(more)
    more += [*_check_places(draft, by)]
    where = None if query.where is None else resolve_expression(query.where, scope)
    group_by = tuple(resolve_expression(expr, scope) for expr in by)
    having = None if having is None else resolve_expression(having, scope)
    query = replace(query, relation=relation, items=items, where=where, group_by=group_by, having=having)
    draft = replace(draft, query=query, scope=scope).with_refusals([*refusals, *more])
    return draft.with_refusals(check_outputs(draft))


def _resolve_group_by(query: Query, expr: Expr, scope: Scope) -> Expr:
    """What GROUP BY means: a number the column of SELECT at that place, as in Spark, and a name that AS gave that one.

    A column goes before a name that AS gave.
    """
    place = expr.value if expr.op == "literal" else None
    if isinstance(place, int) and not isinstance(place, bool) and 0 < place <= len(query.items):
        item = query.items[place - 1]
        return item.expr if isinstance(item, Item) else expr
    if (
        expr.op == "column"
        and len(expr.refs[0].parts) == 1
        and isinstance(scope.find(expr.refs[0].parts), UnresolvedName)
    ):
        name = expr.refs[0].parts[0].lower()
        return next((i.expr for i in query.items if isinstance(i, Item) and (i.name or "").lower() == name), expr)
    return expr


def _resolve_having(query: Query, expr: Expr, scope: Scope) -> Expr:
    """What HAVING means: names that AS gave stand for the columns of SELECT."""
    if expr.op == "column":
        return _resolve_group_by(query, expr, scope)
    return replace(expr, args=tuple(_resolve_having(query, arg, scope) for arg in expr.args))


def _check_places(draft: Draft, by: tuple[Expr, ...]) -> Iterator[Refusal]:
    """Numbers in GROUP BY that are no place of a column."""
    for expr in by:
        if expr.op == "literal":
            hint = "name the columns to group by; a number is the position of a column in SELECT."
            yield draft.refuse_unsupported(expr.span, f"GROUP BY {expr.text}", hint)


def _check_aliases(draft: Draft) -> Iterator[Refusal]:
    seen = dict[str, Scan | Union | Lateral]()
    for leaf in (*leaves(draft.query.relation), *laterals(draft.query.relation)):
        first = seen.setdefault(leaf.alias.lower(), leaf)
        if first is not leaf:
            written = leaf.source if isinstance(leaf, Scan) and not leaf.source.startswith("#") else ")"
            before_it = "" if isinstance(leaf, Lateral) else f"{written} "
            hint = f"give it another name, for example `{before_it}AS {leaf.alias}2`."
            before = f"the alias of {_describe_leaf(first)}"
            yield draft.refusal("DUPLICATE_NAME", leaf.span, name=leaf.alias, before=before, hint=hint)


def _describe_leaf(leaf: Scan | Union | Lateral) -> str:
    if isinstance(leaf, Scan):
        return "a subquery" if leaf.source.startswith("#") else leaf.source
    return "a union" if isinstance(leaf, Union) else "an element"


def _check_sources(draft: Draft) -> Iterator[Refusal]:
    for scan, place in _places(draft, draft.query.relation):
        source = draft.sources.get(scan.source.lower())
        if source is None:
            is_later = scan.source.lower() in {view.name.lower() for view in draft.script.views}
            later = f"declare the view {scan.source} before its first use."
            suggestion = later if is_later else did_you_mean(scan.source, _source_names(draft))
            yield draft.refusal("UNKNOWN_SOURCE", scan.span, source=scan.source, suggestion=suggestion)
        elif source.kind == "table" and place is not None:
            hint = "name a stream instead, or write JOIN, which looks up a table from a stream and joins two tables."
            yield draft.refuse_unsupported(scan.span, f"{place} the table {scan.source}", hint)
        if source is not None and source.fields:
            yield from (
                wrong for watermark in scan.watermarks for wrong in check_watermark(draft.script, source, watermark)
            )


def _source_names(draft: Draft) -> list[str]:
    return [source.name for source in draft.sources.values()]


def _places(draft: Draft, relation: Relation) -> Iterator[tuple[Scan, str | None]]:
    """The sources of a relation, each with what it is part of that a table cannot be; None: a table may stand there."""
    if isinstance(relation, Scan | Union):
        yield from ((scan, None) for scan in (relation.scans if isinstance(relation, Union) else (relation,)))
        return
    own = None if isinstance(relation, Lateral) else draft.family(relation).excludes_tables(relation)
    for side in relation.inputs:
        yield from ((scan, place or own) for scan, place in _places(draft, side))
