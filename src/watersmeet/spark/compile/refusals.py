"""Refusals that need Spark's analyser: wrong types, functions and collations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from watersmeet.catalog import Span
from watersmeet.errors import Refusal, WatersmeetError, refuse
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.comparisons import (
    LATEST,
    collation_parameters,
    is_collated,
    key_expressions,
    key_parameters,
    upsert_key,
)
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLeaf,
    AnalyzedRelation,
    ConditionalJoin,
    scans,
    views,
)
from watersmeet.operators.core.aggregates import result_type
from watersmeet.operators.core.condition import Condition, is_supported
from watersmeet.physical import JoinPlan, QueryPlan, join_plans
from watersmeet.physical.ports import leaf_column
from watersmeet.spark.compile.types import SparkTypes
from watersmeet.spark.private.introspection import is_deterministic
from watersmeet.spark.session import STATE

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def check_provider(spark: SparkSession) -> None:
    """Set a state store that can hold the state of a join; refuse a session in which another one is set."""
    provider = str(spark.conf.get(PROVIDER))
    if provider.endswith("RocksDBStateStoreProvider"):
        return
    if PROVIDER in spark.conf.getAll:
        raise refuse("STATE_STORE_PROVIDER", provider=provider.rsplit(".", 1)[-1])
    spark.conf.set(PROVIDER, STATE[PROVIDER])


def check_aggregates(types: SparkTypes, script: Script, query: AnalyzedQuery) -> None:
    """Refuse aggregates over types that a grouping cannot aggregate, though Spark would cast them."""
    for view in (relation.query for relation in views(query.relation)):
        check_aggregates(types, script, view)
    for aggregate in query.group.aggregates if query.group is not None else ():
        args = tuple(types.type_of(arg) for arg in aggregate.expr.arguments)
        if result_type(aggregate.expr.function, args) is None:
            reason = f"{aggregate.expr.text}() does not take {' and '.join(args)}."
            hint = "cast what is aggregated, for example `CAST(x AS DOUBLE)`."
            place = script.place(aggregate.expr.span)
            raise refuse("TYPE_MISMATCH", place, expression=aggregate.expr.sql(), reason=reason, hint=hint)
        for key in aggregate.expr.sort_keys:
            _check_sort_key(types, script, key.args[0], key.args[0].span)


def check_order(types: SparkTypes, script: Script, query: AnalyzedQuery) -> None:
    """Refuse to order rows by values of a type that has no order here: nested ones, or texts of another collation."""
    for view in (relation.query for relation in views(query.relation)):
        check_order(types, script, view)
    for by in query.top.order if query.top is not None else ():
        _check_sort_key(types, script, by.expr, by.shown.span)


def _check_sort_key(types: SparkTypes, script: Script, key: Expr, span: Span) -> None:
    type_ = types.type_of(key)
    if result_type("min", (type_,)) is None:
        reason = f"rows cannot be ordered by {type_}."
        hint = "order by a number, a string or a time in it."
        raise refuse("TYPE_MISMATCH", script.place(span), expression="ORDER BY", reason=reason, hint=hint)


def check_collations(types: SparkTypes, script: Script, query: AnalyzedQuery) -> None:
    """Refuse to group or order rows by strings with a collation, which only Spark can compare.

    What a join compares is checked by `SparkTypes.check_comparable`, what rows are ordered by in `check_order`.
    """
    for view in (relation.query for relation in views(query.relation)):
        check_collations(types, script, view)
    keys = [(clause, expr, shown.span) for clause, expr, shown in key_expressions(query.group, query.top)]
    keys += [(LATEST, expr, query.span) for expr in query.latest_key]
    for clause, expr, span in keys:
        type_ = types.type_of(expr)
        if is_collated(type_):
            raise refuse("TYPE_MISMATCH", script.place(span), **collation_parameters(clause, type_))


def check_primary_keys(types: SparkTypes, script: Script, query: AnalyzedQuery) -> None:
    """Refuse a primary key of strings of a collation, of which only Spark knows."""
    for scan in scans(query.relation):
        for name in upsert_key(scan.source):
            type_ = types.type_of(leaf_column(scan.alias, name))
            if is_collated(type_):
                place = script.place(scan.source.span)
                raise refuse("TYPE_MISMATCH", place, **key_parameters(scan.source, name, type_))


def check_carried(types: SparkTypes, plan: QueryPlan, arrow: Callable[[StructType], pa.Schema]) -> None:
    """Refuse columns whose type has no form in Arrow, in which rows go through a join."""
    carried = {column for join in join_plans(plan.relation) for port in join.ports for column in port.columns}
    refusals: list[Refusal] = []
    for field in types.empty.schema:
        try:
            if field.name in carried:
                arrow(StructType([field]))
        except PySparkTypeError:
            named = {"column": field.name, "type": field.dataType.simpleString().upper()}
            refusals.append(Refusal("UNSUPPORTED_TYPE", named))
    if refusals:
        raise WatersmeetError(refusals)


def check_feeds(frames: Mapping[str, DataFrame], script: Script, query: AnalyzedQuery) -> None:
    """Refuse the changes of a table without a primary key that Spark computes with other values each time.

    Such a table retracts the row that equals the received one. With a primary key it retracts its stored row.
    """
    for scan in scans(query.relation):
        frame = frames.get(scan.source.name)
        is_bag = scan.source.kind == "table" and not scan.source.primary_key and not scan.source.is_static
        if is_bag and frame is not None and not is_deterministic(frame):
            why = "this table has no primary key, so its changes retract rows by their values"
            hint = "declare a PRIMARY KEY, or store the changes first and read them from there."
            place = script.place(scan.source.span)
            raise refuse("NON_DETERMINISTIC", place, function=scan.source.name, why=why, hint=hint)


def check_expressions(types: SparkTypes, query: AnalyzedQuery) -> None:
    """Let Spark look at every expression on its own, so that each mistake is reported at its place."""
    refusals: list[Refusal] = []
    # A constant need not be of its column's type, but must be one that Spark casts to it.
    values = [Expr("cast", (value,), value=type_, span=value.span) for value, type_ in _values(query.relation)]
    for expr in (*_conditions(query.relation), *values, *_of_query(query)):
        try:
            types.check(expr)
        except WatersmeetError as error:
            refusals += error.refusals
    for expr in _comparisons(query.relation) if not refusals else ():
        try:
            types.check_comparable(expr)
        except WatersmeetError as error:
            refusals += error.refusals
    if refusals:
        raise WatersmeetError(refusals)


def _of_query(query: AnalyzedQuery) -> Iterator[Expr]:
    """The expressions of a query behind its relation."""
    yield from (*query.where, *(output.expr for output in query.outputs))


def _comparisons(relation: AnalyzedRelation) -> Iterator[Expr]:
    """The values that the joins of a relation compare across their sides, or partition windows by."""
    for side in relation.inputs:
        yield from _comparisons(side)
    yield from relation.comparison_operands if isinstance(relation, AnalyzedJoin) else ()


def _conditions(relation: AnalyzedRelation) -> Iterator[Expr]:
    """Every expression of a relation: filters of its sources, the parts of ON, of windows and of padding."""
    for side in relation.inputs:
        yield from _conditions(side)
    yield from relation.expressions


def _values(relation: AnalyzedRelation) -> Iterator[tuple[Expr, str]]:
    """The constants that stand for columns of a missing side, each with the type of its column."""
    for port, side in enumerate(relation.inputs):
        yield from _values(side)
        pad = relation.pads(port) if isinstance(relation, AnalyzedJoin) else None
        if pad is not None and not isinstance(pad, str) and isinstance(side, AnalyzedLeaf):
            types = {field.name: field.type for field in side.source.fields}
            yield from ((value, types[name]) for name, value in pad)


def check_condition(join: JoinPlan, script: Script, schemas: Sequence[pa.Schema]) -> None:
    """Refuse a condition across the sides whose types the kernel cannot evaluate, before it meets the first row."""
    condition: Condition | None = getattr(join.operator, "condition", None)
    if condition is None or is_supported(condition, pa.unify_schemas(list(schemas))):
        return
    assert isinstance(join.analyzed, ConditionalJoin)
    residual = join.analyzed.residual[0]
    raise refuse(
        "UNSUPPORTED_CONDITION",
        script.place(residual.span),
        kind=join.analyzed.kind.upper(),
        condition=residual.sql(),
        cause="values of these types cannot be compared across the sides",
        hint="compare numbers, strings, dates or timestamps, for example by a CAST on each side.",
    )
