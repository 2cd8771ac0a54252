"""The pass that refuses strings of a collation where rows are told apart: groups, DISTINCT and keys compare bytes.

What a join compares across its sides follows UTF8_LCASE (`watersmeet.physical.condition`), and what rows are ordered by
is refused where Spark's types are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from watersmeet.analyze.column_types import type_of
from watersmeet.analyze.draft import Draft
from watersmeet.catalog import Source
from watersmeet.operators.core.aggregates import DISTINCT
from watersmeet.plan.expressions import Expr
from watersmeet.plan.query import AnalyzedGroup, AnalyzedTop
from watersmeet.plan.relation import scans

_COLLATED = re.compile(r"\bCOLLATE\s+(?!UTF8_BINARY\b)", re.IGNORECASE)


def check_collations(draft: Draft) -> Draft:
    """The draft with the refusal of every collation that the declared types tell of; Spark finds the others."""
    if draft.relation is None:
        return draft
    refusals = [
        draft.refusal("TYPE_MISMATCH", shown.span, **collation_parameters(clause, type_))
        for clause, expr, shown in key_expressions(draft.group, draft.top)
        if (type_ := type_of(expr, draft.scope.sources)) and is_collated(type_)
    ]
    for table in {id(scan.source): scan.source for scan in scans(draft.relation)}.values():
        for name in upsert_key(table):
            field = table.field(name)
            if field is not None and is_collated(field.type or ""):
                refusals.append(draft.refusal("TYPE_MISMATCH", table.span, **key_parameters(table, name, field.type)))
    return draft.with_refusals(refusals)


def is_collated(type_: str) -> bool:
    """Whether a type has strings that compare otherwise than by their bytes.

    >>> is_collated("STRUCT<a: STRING COLLATE UTF8_LCASE>"), is_collated("STRING COLLATE UTF8_BINARY")
    (True, False)
    """
    return _COLLATED.search(type_) is not None


def key_expressions(group: AnalyzedGroup | None, top: AnalyzedTop | None) -> Iterator[tuple[str, Expr, Expr]]:
    """What tells rows apart in a query: the clause, the expression, and the one that was written."""
    if group is not None:
        yield from (("GROUP BY or DISTINCT", by.expr, by.expr) for by in group.by)
        for call in (aggregate.expr for aggregate in group.aggregates):
            if call.function.endswith(DISTINCT):
                yield from ((f"{call.text}(DISTINCT)", arg, arg) for arg in call.args)
    if top is not None:
        yield from (("PARTITION BY", by.expr, by.shown) for by in top.by)


def upsert_key(table: Source) -> tuple[str, ...]:
    """The primary key by which rows of a table replace each other."""
    return table.primary_key if table.kind == "table" and not table.is_static else ()


def collation_parameters(clause: str, type_: str) -> dict[str, str]:
    """The refusal of a clause that tells strings of a type apart."""
    return {
        "expression": clause,
        "reason": f"it compares strings by their bytes, but {type_} compares by its collation.",
        "hint": "write `CAST(lower(x) AS STRING)` if case does not matter, else `CAST(x AS STRING)`.",
    }


def key_parameters(table: Source, key: str, type_: str) -> dict[str, str]:
    """The refusal of a primary key of a type."""
    return {
        "expression": "PRIMARY KEY",
        "reason": f"rows of {table.name} replace each other by the bytes of `{key}`, but its type is {type_}.",
        "hint": f"declare `{key} STRING`, and compare `lower({key})` in the query if case does not matter.",
    }
