"""Types of expressions, from Spark's analyser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from watersmeet.catalog import Span
from watersmeet.errors import Place, refuse
from watersmeet.physical import DeclaredTypes, sources_of
from watersmeet.physical.types import normalised
from watersmeet.plan.analyzed import (
    PUNCTUATION,
    AnalyzedQuery,
    AnalyzedScan,
    AnalyzedWindowJoin,
    punctuation,
    scans,
)
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Script
from watersmeet.spark.session import unlogged


class SparkTypes:
    """Asks Spark for the type of whatever is not a plain column."""

    def __init__(
        self, spark: SparkSession, query: AnalyzedQuery, script: Script, schemas: Mapping[str, StructType]
    ) -> None:
        sources = sources_of(query.relation)
        fields = [
            StructField(f"{scan.alias}.{name}", field.dataType, field.nullable)
            for scan in scans(query.relation)
            for name, field in _fields(scan, schemas)
        ]
        if isinstance(query.relation, AnalyzedWindowJoin) and query.relation.punctuated:
            fields += _punctuation(query.relation)
        self.script = script
        self.declared = DeclaredTypes(sources)
        self.empty: DataFrame = spark.createDataFrame([], StructType(fields))

    def type_of(self, expr: Expr) -> str:
        """The type of an expression over one side."""
        return self.declared.type_of(expr) or self._type(expr.sql(), expr.span, expr.sql())

    def common_type(self, left: Expr, right: Expr) -> str:
        """The type in which the two compare."""
        known = self.declared.common_type(left, right)
        return known or self._type(f"coalesce({left.sql()}, {right.sql()})", left.span, f"{left.sql()} = {right.sql()}")

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
        try:
            with unlogged():
                return normalised(self.empty.selectExpr(sql).schema[0].dataType.simpleString())
        except AnalysisException as error:
            place: Place | None = self.script.place(span)
            raise refuse("TYPE_MISMATCH", place, expression=shown, reason=_first_line(error), hint=_HINT) from error


def _fields(scan: AnalyzedScan, schemas: Mapping[str, StructType]) -> Iterator[tuple[str, StructField]]:
    """The columns of a source with their types; those of a union have the types of its first part."""
    if not scan.parts:
        yield from ((field.name, field) for field in schemas[scan.source.name])
        return
    found = {field.name.lower(): field for field in schemas[scan.parts[0].name]}
    for mine, first in zip(scan.source.fields, scan.parts[0].fields, strict=True):
        yield mine.name, found[first.name.lower()]


def _punctuation(join: AnalyzedWindowJoin) -> list[StructField]:
    """The columns that only a window join has."""
    ddl = ", ".join(f"`{PUNCTUATION}.{field.name}` {field.type}" for field in punctuation(join.left.source))
    return list(cast("StructType", StructType.fromDDL(ddl)))


_HINT = "cast one of the operands, for example `CAST(x AS BIGINT)`."


def _first_line(error: AnalysisException) -> str:
    return str(error).split("\n", 1)[0].split(" SQLSTATE", 1)[0]
