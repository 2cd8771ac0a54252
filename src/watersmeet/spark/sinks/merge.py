"""Changes of a table merged into another by key: rows are put in, replaced and deleted."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal
from watersmeet.joins.core.changes import WEIGHT
from watersmeet.plan.expressions import quote
from watersmeet.spark.exchange.consolidate import columns_of, consolidated
from watersmeet.spark.sinks.table_sinks import Target

_CHANGES, _GOES = "watersmeet_changes", "#goes"


def merge_into(table: str, target: Target, batch: DataFrame, make: Callable[[DataFrame], None]) -> None:
    """Merge a batch into a table, by its name in SQL; ``make`` makes it of a frame without rows if it is not there."""
    merged = _by_key(target, batch).persist()
    try:
        spark, names = batch.sparkSession, [name for name in merged.columns if name != _GOES]
        make(spark.createDataFrame([], merged.drop(_GOES).schema))
        merged.createOrReplaceTempView(_CHANGES)
        on = " AND ".join(f"t.{quote(name)} <=> s.{quote(name)}" for name in target.key)
        set_ = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in names)
        listed, values = ", ".join(map(quote, names)), ", ".join(f"s.{quote(name)}" for name in names)
        spark.sql(
            f"MERGE INTO {table} t USING {_CHANGES} s ON {on} "
            f"WHEN MATCHED AND s.{quote(_GOES)} THEN DELETE WHEN MATCHED THEN UPDATE SET {set_} "
            f"WHEN NOT MATCHED AND NOT s.{quote(_GOES)} THEN INSERT ({listed}) VALUES ({values})"
        )
    finally:
        merged.unpersist()


def _by_key(target: Target, batch: DataFrame) -> DataFrame:
    """For each key of a batch the row that it has now, or that it has none any more."""
    rows = consolidated(batch)
    names = columns_of(rows)
    comes = F.sum(F.when(F.col(quote(WEIGHT)) > 0, F.col(quote(WEIGHT))).otherwise(0))
    latest = F.first(F.when(F.col(quote(WEIGHT)) > 0, F.struct(*(F.col(quote(n)) for n in names))), ignorenulls=True)
    by_key = rows.groupBy(*(F.col(quote(name)) for name in target.key)).agg(comes.alias("#n"), latest.alias("#row"))
    text = Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(target.key), "target": target.sink.name}).travelling()
    goes = F.when(F.col(quote("#n")) > 1, F.raise_error(F.lit(text)).cast("boolean")).otherwise(F.col(quote("#n")) == 0)
    others = [name for name in names if name not in target.key]
    shown = [F.col(f"{quote('#row')}.{quote(name)}").alias(name) for name in others]
    return by_key.select(*(F.col(quote(name)) for name in target.key), *shown, goes.alias(_GOES))
