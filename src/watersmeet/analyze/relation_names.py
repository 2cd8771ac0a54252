"""What the names in a relation mean: those in conditions, clauses and arrays."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.column_types import type_of
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import marked
from watersmeet.analyze.meaning import misses, resolved
from watersmeet.analyze.named_condition import Named
from watersmeet.analyze.scope import Scope, scope_of
from watersmeet.analyze.struct_type import element_of
from watersmeet.analyze.unions import check_union, merged
from watersmeet.catalog import Field, Source
from watersmeet.plan.nodes import Lateral, Relation, Scan, Union
from watersmeet.plan.words import expression_in_words


def named_relation(draft: Draft, relation: Relation) -> Named:
    """The relation with its names resolved, what can be named behind it, and the names that mean nothing."""
    match relation:
        case Scan():
            source = marked(draft.sources.get(relation.source.lower(), Source(relation.source, ())), relation)
            return relation, _scope(draft, relation.alias, source), []
        case Union():
            scope = _scope(draft, relation.alias, merged(draft, relation))
            return relation, scope, list(check_union(draft, relation))
        case Lateral():
            return _lateral(draft, relation)
        case _:
            sides = [named_relation(draft, side) for side in relation.inputs]
            relation = relation.with_inputs([side for side, _, _ in sides])
            joined, scope, own = draft.family(relation).name(draft, relation, tuple(scope for _, scope, _ in sides))
            return joined, scope, [*(refusal for *_, refusals in sides for refusal in refusals), *own]


def _scope(draft: Draft, alias: str, source: Source) -> Scope:
    elsewhere = {name: hint for family in draft.families for name, hint in family.columns.items()}
    return replace(scope_of(alias, source), elsewhere=elsewhere)


def _lateral(draft: Draft, lateral: Lateral) -> Named:
    """A lateral join: its array sees what stands before it, and its element is a column for what comes after."""
    below, scope, refusals = named_relation(draft, lateral.input)
    array = resolved(lateral.array, scope)
    refusals += misses(draft.script, lateral.array, scope)
    type_ = type_of(array, scope.sources) or ""
    element = element_of(type_)
    if element is None:
        reason, hint = f"it is {type_}, not an array.", "name an array, or make one: `array(a, b)`."
        text = f"`{expression_in_words(array)}`"
        refusals.append(draft.refusal("TYPE_MISMATCH", lateral.array.span, expression=text, reason=reason, hint=hint))
    source = Source(lateral.alias, (Field(lateral.alias, element or ""),), span=lateral.span)
    return replace(lateral, input=below, array=array), scope.beside(scope_of(lateral.alias, source)), refusals
