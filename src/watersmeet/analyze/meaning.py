"""What the names in an expression mean, given what can be named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.scope import Miss, Scope, splice
from watersmeet.catalog import NOWHERE, Span
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr, Reference
from watersmeet.plan.nodes import Script


def resolved(expr: Expr, scope: Scope) -> Expr:
    """The expression with every reference filled in that has a meaning."""
    args = tuple(resolved(arg, scope) for arg in expr.args)
    if not expr.refs:
        return replace(expr, args=args)
    found = [(ref, _meaning(expr, ref, scope)) for ref in expr.refs]
    op = found[0][1].op if expr.op == "column" else expr.op
    return replace(splice(expr, found), op=op)


def is_resolved(expr: Expr | None) -> bool:
    """True if there is an expression and every name in it means something."""
    return expr is not None and all(ref.source for ref in expr.references)


def misses(script: Script, expr: Expr | None, scope: Scope) -> Iterator[Refusal]:
    """The refusals of names that mean nothing, or too much."""
    if expr is None:
        return
    for ref in expr.refs:
        found = scope.find(ref.parts)
        if isinstance(found, Miss):
            yield Refusal(found.condition, found.parameters, script.place(_span_of(script, expr, ref)))
    for arg in expr.args:
        yield from misses(script, arg, scope)


def _meaning(expr: Expr, ref: Reference, scope: Scope) -> Expr:
    found = scope.find(ref.parts)
    written = expr.text[ref.start : ref.end]
    here = replace(ref, start=0, end=len(written))
    if not isinstance(found, Expr):
        return Expr("column", text=written, refs=(here,))
    if found.op != "column":
        return found
    meant = found.refs[0]
    here = replace(here, source=meant.source, name=meant.name, path=meant.path)
    return Expr("column", text=written, refs=(here,))


def _span_of(script: Script, expr: Expr, ref: Reference) -> Span:
    span = expr.span
    # Only a text that stands in the script as it is tells where in the script a part of it stands.
    is_verbatim = span != NOWHERE and script.text[span.start : span.end] == expr.text
    return Span(span.start + ref.start, span.start + ref.end) if is_verbatim else span
