"""The keys of several groupings at once: GROUPING SETS, ROLLUP and CUBE.

Each row is there once per grouping, with the number of that, and one grouping has them all: by the number, and by the
keys, of which those that a grouping does not name are NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watersmeet.logical.expressions import Expr, Reference
from watersmeet.logical.nodes import SETS, Query
from watersmeet.logical.passes.scope import group_column
from watersmeet.logical.query import Output

GROUPING_ID = "grouping_id()"
"""The call that gives the number of a grouping, as Spark has it."""

_NUMBER = Expr("column", text=SETS, refs=(Reference((SETS,), 0, len(SETS), SETS, SETS),))
_KEY = "sets"


def group_keys(query: Query) -> tuple[tuple[Output, ...], Mapping[str, Expr]]:
    """The keys of a grouping; of several the number too, and what the expressions and calls of SELECT mean there."""
    once = {expr.sql(): n for n, expr in reversed([*enumerate(query.group_by)])}
    sets = query.grouping_sets
    if not sets:
        return tuple(Output(f"k{n}", query.group_by[place]) for n, place in enumerate(sorted(once.values()))), {}
    sets = tuple(tuple(once[query.group_by[place].sql()] for place in each) for each in sets)
    places = sorted(once.values())
    names = {place: f"k{n}" for n, place in enumerate(places)}
    keys = tuple(
        Output(names[place], _where_named(query.group_by[place], [place in each for each in sets])) for place in places
    )
    meanings = {query.group_by[place].sql(): group_column(names[place]) for place in places}
    bits = {place: _choose([place not in each for each in sets]) for place in places}
    for place, bit in bits.items():
        key = query.group_by[place]
        for call in (_call(key), Expr("call", (key,), "grouping")):
            meanings[call.sql()] = Expr("cast", (bit,), value="TINYINT")
    total = Expr("literal", text="0", value=0)
    for bit in bits.values():
        total = Expr("+", (Expr("*", (total, Expr("literal", text="2", value=2))), bit))
    meanings[GROUPING_ID] = Expr("cast", (total,), value="BIGINT")
    return (Output(_KEY, _NUMBER), *keys), meanings


def set_calls(query: Query) -> tuple[Expr, ...]:
    """The calls that depend on the grouping of a row: ``grouping(a)``, ``grouping_id()``."""
    return (*(_call(expr) for expr in query.group_by), Expr("other", text=GROUPING_ID))


def _where_named(expr: Expr, is_named: Sequence[bool]) -> Expr:
    """A key in the groupings that name it, else NULL."""
    if all(is_named):
        return expr
    nothing = Expr("literal", text="NULL")
    return Expr("call", (_is_one_of(is_named, _NUMBER), expr, nothing), "if", span=expr.span)


def _choose(is_chosen: Sequence[bool]) -> Expr:
    """1 in some groupings, 0 in the others."""
    one, zero = (Expr("literal", text=str(value), value=value) for value in (1, 0))
    if all(is_chosen) or not any(is_chosen):
        return one if all(is_chosen) else zero
    return Expr("call", (_is_one_of(is_chosen, group_column(_KEY)), one, zero), "if")


def _is_one_of(is_chosen: Sequence[bool], number: Expr) -> Expr:
    tests = tuple(
        Expr("=", (number, Expr("literal", text=str(n), value=n))) for n, chosen in enumerate(is_chosen) if chosen
    )
    return tests[0] if len(tests) == 1 else Expr("or", tests)


def _call(expr: Expr) -> Expr:
    """``grouping(...)`` of a key, as a text."""
    refs = tuple(replace(ref, start=ref.start + 9, end=ref.end + 9) for ref in expr.refs)
    return Expr("other", text=f"grouping({expr.text})", refs=refs)
