"""Types of expressions, from Spark's analyser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from watersmeet.catalog import Field, Span
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.functions import function_hint
from watersmeet.logical.expressions import GROUP, Expr
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.check_declarations import query_recomputations, refuse_non_deterministic
from watersmeet.logical.query import AnalyzedQuery, Output
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    scans,
)
from watersmeet.operators.core.aggregates import result_type
from watersmeet.physical import DeclaredTypes, sources_of
from watersmeet.schema import normalise_type, parse_type_name, quote
from watersmeet.spark.exchange.rows import ddl_field
from watersmeet.spark.private.introspection import is_deterministic, suppress_logs
from watersmeet.spark.refusals import first_line, unknown_function


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
                groups = [name for name in self.empty.columns if name.startswith(f"{GROUP}.")]
                self.empty = self.empty.drop(*groups)
            case AnalyzedUnion():
                for side in relation.sides:
                    self._define_inside(side)
                first = relation.sides[0]
                named = zip(relation.source.fields, first.source.fields, strict=False)
                columns = [Output(f.name, _column(first.alias, g.name)) for f, g in named]
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


def _column(alias: str, name: str) -> Expr:
    return Expr("other", text=quote(f"{alias}.{name}"))


def _join_columns(relation: AnalyzedRelation) -> Iterator[Field]:
    """The columns that the joins of a relation make, the outermost first."""
    yield from relation.extra_columns if isinstance(relation, AnalyzedJoin) else ()
    for side in relation.inputs:
        yield from _join_columns(side)


_HINT = "cast one of the operands, for example `CAST(x AS BIGINT)`."
