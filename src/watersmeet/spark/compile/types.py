"""Types of expressions, from Spark's analyser, and the refusals that need it: wrong types, functions and collations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import cast

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from watersmeet.catalog import Field, Span
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.functions import function_hint
from watersmeet.logical.expressions import GROUP, Expr, WindowCall
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.check_declarations import query_recomputations, refuse_non_deterministic
from watersmeet.logical.passes.comparisons import (
    LATEST,
    collation_parameters,
    is_collated,
    key_expressions,
    key_parameters,
    upsert_key,
)
from watersmeet.logical.query import RANK, TOP, AnalyzedOver, AnalyzedQuery, Output
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    ConditionalJoin,
    scans,
    views,
)
from watersmeet.operators.core.aggregates import result_type
from watersmeet.operators.core.condition import Condition, is_supported
from watersmeet.physical import DeclaredTypes, JoinPlan, QueryPlan, join_plans, sources_of
from watersmeet.physical.ports import leaf_column
from watersmeet.schema import normalise_type, parse_type_name, quote
from watersmeet.spark.exchange.rows import ddl_field
from watersmeet.spark.private.introspection import is_deterministic, suppress_logs
from watersmeet.spark.refusals import first_line, unknown_function
from watersmeet.spark.session import STATE


class SparkTypes:
    """Asks Spark for the type of whatever is not a plain column."""

    def __init__(
        self, spark: SparkSession, query: AnalyzedQuery, script: Script, schemas: Mapping[str, StructType]
    ) -> None:
        fields = [
            StructField(f"{scan.alias}.{name}", field.dataType, field.nullable)
            for scan in scans(query.relation)
            for name, field in _fields(scan, schemas)
        ]
        # Of several joins that make a column of one name, the first counts.
        columns = {field.name: field for field in reversed([*_join_columns(query.relation)])}
        fields += [ddl_field(field.name, field.type) for field in columns.values()]
        self.script = script
        self.declared = DeclaredTypes(sources_of(query.relation))
        self.empty: DataFrame = spark.createDataFrame([], StructType(fields))
        self._refusals: list[Refusal] = []
        self._define(query)
        if self._refusals:
            raise WatersmeetError(self._refusals)

    def _define(self, query: AnalyzedQuery) -> None:
        """Add the columns that views, laterals and groups inside a query compute, innermost first."""
        self._define_inside(query.relation)
        if query.group is not None:
            self._add(GROUP, (*query.group.by, *query.group.aggregates))
        if query.top is not None and query.top.rank is not None:
            self._add(TOP, (Output(RANK, Expr("literal", text="0", value=0)),))
        if isinstance(query.top, AnalyzedOver):
            functions = query.top.all_functions
            self._add(TOP, tuple(Output(each.name, WindowCall.of(each.expr).value_expr) for each in functions))
        if not self._refusals:
            self._refusals += self._non_deterministic(query)

    def _non_deterministic(self, query: AnalyzedQuery) -> Iterator[Refusal]:
        """Refuse outputs that Spark knows to be non-deterministic, since a retraction would compute another value."""
        again = [
            output for output in query_recomputations(query) if output.expr.op not in ("column", "literal", "interval")
        ]
        with suppress(AnalysisException), suppress_logs():
            if not again or is_deterministic(self.empty.selectExpr(*(output.expr.sql() for output in again))):
                return
        for output in again:
            with suppress(AnalysisException), suppress_logs():
                if not is_deterministic(self.empty.selectExpr(output.expr.sql())):
                    span = output.expr.span
                    written = self.script.text[span.start : span.end] or output.expr.sql()
                    yield refuse_non_deterministic(self.script, output, written, span)

    def _define_inside(self, relation: AnalyzedRelation) -> None:
        match relation:
            case AnalyzedScan():
                return
            case AnalyzedView():
                self._define(relation.query)
                self._add(relation.alias, relation.query.outputs)
                # The next grouping gives its columns the same names.
                groups = [name for name in self.empty.columns if name.startswith((f"{GROUP}.", f"{TOP}."))]
                self.empty = self.empty.drop(*groups)
            case AnalyzedUnion():
                for side in relation.sides:
                    self._define_inside(side)
                first = relation.sides[0]
                named = zip(relation.source.fields, first.source.fields, strict=False)
                columns = [Output(f.name, Expr("other", text=quote(f"{first.alias}.{g.name}"))) for f, g in named]
                self._add(relation.alias, tuple(columns))
                self._refusals += self._type_mismatches(relation)
            case AnalyzedLateral():
                self._define_inside(relation.input)
                array = relation.array
                element = Expr("other", text=f"{array.sql()}[0]", span=array.span)
                self._add(relation.alias, (Output(relation.alias, element),))
            case _:
                for side in relation.inputs:
                    self._define_inside(side)

    def _type_mismatches(self, union: AnalyzedUnion) -> Iterator[Refusal]:
        """Columns of a union whose types differ; the analysis knows only those that are declared."""
        first, *others = union.sides
        place = self.script.place(union.source.span)
        for n, field in enumerate(union.source.fields):
            columns = [quote(f"{side.alias}.{side.source.fields[n].name}") for side in (first, *others)]
            types = dict.fromkeys(self._type(column, union.source.span, column) for column in columns)
            if len(types) > 1:
                relation_name, reason = (
                    f"The union {union.alias}",
                    f"its column `{field.name}` is {' and '.join(types)}.",
                )
                hint = f"cast it on one side, for example `CAST({field.name} AS {next(iter(types))})`."
                yield Refusal("TYPE_MISMATCH", {"expression": relation_name, "reason": reason, "hint": hint}, place)

    def _add(self, alias: str, outputs: tuple[Output, ...]) -> None:
        """Add computed columns under an alias; what Spark cannot evaluate is refused, and taken for a text."""
        columns = list[Column]()
        for output in outputs:
            name, type_ = f"{alias}.{output.name}", cast("DataType", StringType())
            if output.expr.op == "aggregate" and output.expr.inputs != output.expr.args:
                types = tuple(self.type_of(arg) for arg in output.expr.arguments)
                type_ = ddl_field(name, result_type(output.expr.function, types) or "STRING").dataType
                columns.append(F.lit(None).cast(type_).alias(name))
                continue
            try:
                # Not by its text: Spark cannot read every name of a field there.
                type_ = self._analyze(output.expr.sql(), output.expr.span, output.expr.sql()).schema[0].dataType
            except WatersmeetError as error:
                self._refusals += error.refusals
            columns.append(F.lit(None).cast(type_).alias(name))
        self.empty = self.empty.select("*", *columns)

    def type_of(self, expr: Expr) -> str:
        """The type of an expression over one side."""
        return self.declared.type_of(expr) or self._type(expr.sql(), expr.span, expr.sql())

    def common_type(self, left: Expr, right: Expr) -> str:
        """The type in which Spark's ``=`` compares the two, which depends on its ANSI mode."""
        types = (self.type_of(left), self.type_of(right))
        common = types[0] if types[0] == types[1] else self.declared.common_type(left, right)
        return common or self._comparison_type(left, right, types)

    def _comparison_type(self, left: Expr, right: Expr, types: tuple[str, str]) -> str:
        """The type of which Spark says that casts to it, written out, mean what it makes of ``left = right``."""
        shown = f"{left.sql()} = {right.sql()}"
        compared = self._analyze(shown, left.span, shown)
        wider = self._type_if_any(f"coalesce({left.sql()}, {right.sql()})")
        for type_ in [*([wider] if wider else []), *types, "DOUBLE", "STRING"]:
            sides = zip((left.sql(), right.sql()), types, strict=True)
            casts = [sql if own == type_ else f"CAST({sql} AS {type_})" for sql, own in sides]
            with suppress(AnalysisException), suppress_logs():
                if compared.sameSemantics(self.empty.selectExpr(" = ".join(casts))):
                    return type_
        # A number goes to a wider one in two steps, and a name inside a type has lost its case: the same values.
        first, second = map(parse_type_name, types)
        if wider and first and second and first.values == second.values:
            return wider
        reason = f"a join cannot compare {types[0]} with {types[1]} as Spark does."
        raise refuse("TYPE_MISMATCH", self.script.place(left.span), expression=shown, reason=reason, hint=_HINT)

    def _type_if_any(self, sql: str) -> str | None:
        with suppress(AnalysisException), suppress_logs():
            return ddl_of(self.empty.selectExpr(sql).schema[0].dataType)
        return None

    def check(self, expr: Expr) -> None:
        """Refuse an expression that Spark cannot evaluate."""
        self._type(expr.sql(), expr.span, expr.sql())

    def check_comparable(self, expr: Expr) -> None:
        """Refuse a value that is compared across the sides and whose collation only Spark knows."""
        type_ = self.type_of(expr)
        if " COLLATE " in type_ and type_ != "STRING COLLATE UTF8_LCASE":
            hint = "compare it as `CAST(x AS STRING)` on both sides, or in the collation UTF8_LCASE."
            reason = f"a join cannot compare values of type {type_}."
            raise refuse("TYPE_MISMATCH", self.script.place(expr.span), expression=expr.sql(), reason=reason, hint=hint)

    def _type(self, sql: str, span: Span, shown: str) -> str:
        return ddl_of(self._analyze(sql, span, shown).schema[0].dataType)

    def _analyze(self, sql: str, span: Span, shown: str) -> DataFrame:
        try:
            with suppress_logs():
                frame = self.empty.selectExpr(sql)
                # Through Spark Connect, an error shows only when the schema is requested.
                _ = frame.schema
                return frame
        except AnalysisException as error:
            place: Place | None = self.script.place(span)
            function = unknown_function(error)
            if function is not None:
                raise refuse("UNKNOWN_FUNCTION", place, function=function, hint=function_hint(function)) from error
            raise refuse("TYPE_MISMATCH", place, expression=shown, reason=first_line(error), hint=_HINT) from error


def ddl_of(type_: DataType) -> str:
    """A type as Spark reads it back, whatever the names of its fields are.

    >>> ddl_of(ArrayType(StructType([StructField("userName", StringType()), StructField("a b", StringType())])))
    'ARRAY<STRUCT<userName:STRING,`a b`:STRING>>'
    """
    match type_:
        case ArrayType():
            return f"ARRAY<{ddl_of(type_.elementType)}>"
        case MapType():
            return f"MAP<{ddl_of(type_.keyType)},{ddl_of(type_.valueType)}>"
        case StructType():
            names = (name if name.isidentifier() and name.isascii() else quote(name) for name in type_.names)
            fields = zip(names, type_.fields, strict=True)
            return f"STRUCT<{','.join(f'{name}:{ddl_of(field.dataType)}' for name, field in fields)}>"
        case _:
            return normalise_type(type_.simpleString())


def _fields(scan: AnalyzedScan, schemas: Mapping[str, StructType]) -> Iterator[tuple[str, StructField]]:
    """The columns of a source with their types; those of a union have the types of its first part."""
    if not scan.parts:
        yield from ((field.name, field) for field in schemas[scan.source.name])
        return
    fields = {field.name.lower(): field for field in schemas[scan.parts[0].name]}
    for mine, first in zip(scan.source.fields, scan.parts[0].fields, strict=False):
        yield mine.name, fields[first.name.lower()]


def _join_columns(relation: AnalyzedRelation) -> Iterator[Field]:
    """The columns that the joins of a relation make, the outermost first."""
    yield from relation.extra_columns if isinstance(relation, AnalyzedJoin) else ()
    for side in relation.inputs:
        yield from _join_columns(side)


_HINT = "cast one of the operands, for example `CAST(x AS BIGINT)`."


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
    calls = [output.expr for output in query.group.aggregates] if query.group is not None else []
    if isinstance(query.top, AnalyzedOver):
        windows = (WindowCall.of(output.expr) for output in query.top.all_functions)
        calls += [parts.call for parts in windows if parts.call.op == "aggregate"]
    for call in calls:
        args = tuple(types.type_of(arg) for arg in call.arguments)
        if result_type(call.function, args) is None:
            reason = f"{call.text}() does not take {' and '.join(args)}."
            hint = "cast what is aggregated, for example `CAST(x AS DOUBLE)`."
            place = script.place(call.span)
            raise refuse("TYPE_MISMATCH", place, expression=call.sql(), reason=reason, hint=hint)
        for key in call.sort_keys:
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
