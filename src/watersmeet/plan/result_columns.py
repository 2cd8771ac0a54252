"""The columns of a result as far as they are known without Spark: what each is made of, its type, and if it is null."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watersmeet.operators.core.aggregates import function_of, is_aggregate
from watersmeet.plan.expressions import COMPARISONS, GROUP, Expr
from watersmeet.plan.facts import sources_by_alias
from watersmeet.plan.nullability import nullable
from watersmeet.plan.query import AnalyzedGroup, AnalyzedQuery
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedView, leaves
from watersmeet.plan.words import expression_in_words, word


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result: ``type`` is None where only Spark can tell."""

    name: str
    expr: Expr
    type: str | None
    nullable: bool

    @property
    def text(self) -> str:
        """The column as SELECT has it."""
        text = expression_in_words(self.expr)
        is_plain = self.expr.op == "column" and text.split(".")[-1] == word(self.name)
        return text if is_plain else f"{text} AS {word(self.name)}"


def result_columns(query: AnalyzedQuery) -> tuple[ResultColumn, ...]:
    """The columns of a result, those of a grouping as what they are made of."""
    return tuple(
        ResultColumn(output.name, expr, _type(query, expr), can_be_null)
        for output, can_be_null in zip(query.outputs, nullable(query), strict=True)
        for expr in (expand_group(output.expr, query.group),)
    )


def column_lines(columns: tuple[ResultColumn, ...]) -> list[str]:
    """The columns one below the other, as a table would declare them.

    >>> amount, count = Expr("literal", text="5"), Expr("aggregate", text="count")
    >>> shown = column_lines((ResultColumn("a", amount, None, True), ResultColumn("n", count, "BIGINT", False)))
    >>> shown
    ['5 AS a', 'count(*) AS n  BIGINT NOT NULL']
    """
    width = max((len(column.text) for column in columns), default=0)
    types = [" ".join([*([c.type] if c.type else []), *([] if c.nullable else ["NOT NULL"])]) for c in columns]
    return [f"{column.text:<{width}}  {more}".rstrip() for column, more in zip(columns, types, strict=True)]


def expand_group(expr: Expr, group: AnalyzedGroup | None) -> Expr:
    """The expression with what a grouping gives replaced by what that is made of."""
    if group is None:
        return expr
    exprs = {output.name: output.expr for output in (*group.by, *group.aggregates)}
    if expr.op == "column" and expr.refs[0].source == GROUP and not expr.refs[0].path:
        return exprs.get(expr.refs[0].name, expr)
    if expr.op == "other" and any(ref.source == GROUP for ref in expr.refs):
        text = expr.sql(lambda ref: expression_in_words(exprs[ref.name]) if ref.name in exprs else ref.column)
        return replace(expr, text=text, refs=())
    return replace(expr, args=tuple(expand_group(arg, group) for arg in expr.args))


def _type(query: AnalyzedQuery, expr: Expr) -> str | None:
    if expr.op == "cast":
        return str(expr.value)
    if expr.op in COMPARISONS or expr.op in ("and", "or", "not", "is_null"):
        return "BOOLEAN"
    if expr.op == "aggregate" and is_aggregate(expr.function) and function_of(expr.function).gives == "BIGINT":
        return function_of(expr.function).gives
    if expr.op != "column" or expr.refs[0].path:
        return None
    ref = expr.refs[0]
    extra = query.relation.extra_columns if isinstance(query.relation, AnalyzedJoin) else ()
    if any(field.name == ref.column for field in extra):
        return next(field.type for field in extra if field.name == ref.column)
    view = next((leaf for leaf in leaves(query.relation) if leaf.alias == ref.source), None)
    if isinstance(view, AnalyzedView):
        view_type = next((column.type for column in result_columns(view.query) if column.name == ref.name), None)
        return view_type or next((field.type for field in view.source.fields if field.name == ref.name), None) or None
    source = sources_by_alias(query.relation).get(ref.source)
    field = source.field(ref.name) if source is not None else None
    return field.type or None if field is not None else None
