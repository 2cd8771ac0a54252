"""Changes of a table merged into another by key: rows are put in, replaced and deleted."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.plan.expressions import quote
from watersmeet.spark.exchange.consolidate import columns_of, consolidate
from watersmeet.spark.sinks.table_sinks import SinkTarget

_CHANGES, _GOES, _SECOND = "watersmeet_changes", "#goes", "#second"
_OWN = (_GOES, _SECOND)


def merge_into(
    table: str, target: SinkTarget, batch: DataFrame, make: Callable[[DataFrame], None], *, is_strict: bool
) -> None:
    """Merge a batch into a table, by its name in SQL; ``make`` makes it of a frame without rows if it is not there.

    ``is_strict``: a row that comes while none of its key goes must not find that key there.
    """
    merged = _by_key(target, batch).persist()
    try:
        spark, names = batch.sparkSession, [name for name in merged.columns if name not in _OWN]
        # Not `createDataFrame`, which makes the session of the batch the active one of the whole process.
        make(merged.drop(*_OWN).where("false"))
        merged.createOrReplaceTempView(_CHANGES)
        on = " AND ".join(f"t.{quote(name)} <=> s.{quote(name)}" for name in target.key)
        set_ = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in names)
        listed, values = ", ".join(map(quote, names)), ", ".join(f"s.{quote(name)}" for name in names)
        if is_strict:
            _check_null_key(table, target, merged)
        # Delta evaluates this for rows that match nothing, too: of these, all columns of the table are NULL.
        is_null = " AND ".join(f"t.{quote(name)} IS NULL" for name in target.key)
        second = f"s.{quote(_SECOND)}"
        raised = f"CAST(raise_error({second}) AS BOOLEAN)"
        unique = f" AND ({second} IS NULL OR ({is_null}) OR {raised})" if is_strict else ""
        spark.sql(
            f"MERGE INTO {table} t USING {_CHANGES} s ON {on} "
            f"WHEN MATCHED AND s.{quote(_GOES)} THEN DELETE WHEN MATCHED{unique} THEN UPDATE SET {set_} "
            f"WHEN NOT MATCHED AND NOT s.{quote(_GOES)} THEN INSERT ({listed}) VALUES ({values})"
        )
    finally:
        merged.unpersist()


def _check_null_key(table: str, target: SinkTarget, merged: DataFrame) -> None:
    """Refuse a second row whose key is all NULLs, of which MERGE cannot tell whether it matched."""
    is_null = " AND ".join(f"{quote(name)} IS NULL" for name in target.key)
    comes = merged.where(is_null).where(F.col(quote(_SECOND)).isNotNull())
    is_there = f"SELECT 1 FROM {table} WHERE {is_null} LIMIT 1"
    if not comes.isEmpty() and not merged.sparkSession.sql(is_there).isEmpty():
        raise WatersmeetError([_not_unique(target)])


def _not_unique(target: SinkTarget) -> Refusal:
    return Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(target.key), "target": target.sink.name})


def _by_key(target: SinkTarget, batch: DataFrame) -> DataFrame:
    """For each key of a batch the row that it has now, or that it has none any more.

    Where no row of a key goes, the text of the refusal of a second row stands with it.
    """
    rows = consolidate(batch)
    names = columns_of(rows)
    comes = F.sum(F.when(F.col(quote(WEIGHT)) > 0, F.col(quote(WEIGHT))).otherwise(0))
    latest = F.first(F.when(F.col(quote(WEIGHT)) > 0, F.struct(*(F.col(quote(n)) for n in names))), ignorenulls=True)
    replaces = F.bool_or(F.col(quote(WEIGHT)) < 0)
    by_key = rows.groupBy(*(F.col(quote(name)) for name in target.key)).agg(
        comes.alias("#n"), latest.alias("#row"), replaces.alias("#replaces")
    )
    text = _not_unique(target).to_message()
    goes = F.when(F.col(quote("#n")) > 1, F.raise_error(F.lit(text)).cast("boolean")).otherwise(F.col(quote("#n")) == 0)
    second = F.when(~F.col(quote("#replaces")), F.lit(text))
    others = [name for name in names if name not in target.key]
    shown = [F.col(f"{quote('#row')}.{quote(name)}").alias(name) for name in others]
    return by_key.select(*(F.col(quote(name)) for name in target.key), *shown, goes.alias(_GOES), second.alias(_SECOND))
