"""What writes a batch to its sink, where Spark's own streaming sinks would not do: changes of tables, and Postgres.

All of it goes through foreachBatch. A batch that is repeated after a failure changes nothing: files of a batch are
replaced, a snapshot and Postgres know which batches they have. Kafka gets a repeated batch again, which leaves the
latest record of each key as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.analyze.table_sinks import CHANGES, SHOWING, Changes, TableSink, key_columns, result_columns
from watersmeet.catalog import Sink
from watersmeet.errors import Place, Refusal, refuse
from watersmeet.joins.core.changes import WEIGHT
from watersmeet.plan.expressions import quote
from watersmeet.plan.relation import AnalyzedQuery
from watersmeet.spark.compile.frames import changes_shown
from watersmeet.spark.exchange.consolidate import columns_of, consolidated
from watersmeet.spark.sinks.outputs import BATCH, PATH, Write, write_rows
from watersmeet.spark.sinks.snapshots import Snapshot
from watersmeet.spark.sources.feeds import options_in_lower_case
from watersmeet.spark.sources.records import VALUE_FORMAT, encoded, key_of, value_of

_OWN = frozenset({CHANGES, "key", VALUE_FORMAT})
"""The options of a sink that are our own. All others are Spark's."""


@dataclass(frozen=True)
class Target:
    """Where rows of a query go.

    ``changes``: how those of a table do; None: rows only arrive. ``key``: what tells the rows of a table apart, or what
    the records of a stream have as their key.
    ``checkpoint`` says which run of the query writes.
    """

    sink: Sink
    query: str
    checkpoint: Path
    changes: Changes | None = None
    key: tuple[str, ...] = ()

    @property
    def is_postgres(self) -> bool:
        """Whether it is a table of Postgres."""
        return TableSink.of(self.sink).is_postgres

    @property
    def is_encoded(self) -> bool:
        """Whether rows become records with a key and a value."""
        return VALUE_FORMAT in options_in_lower_case(self.sink.options) or (
            self.sink.format.lower() == "kafka" and self.changes is not None
        )

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return {name: value for name, value in self.sink.options.items() if name.lower() not in _OWN}

    @property
    def plain(self) -> Sink:
        """The sink as Spark knows it."""
        return Sink(self.sink.name, self.sink.format, self.options, self.sink.span)


def target_of(sink: Sink, name: str, query: AnalyzedQuery, checkpoint: Path) -> Target:
    """Where the result of a query goes."""
    asked = TableSink.of(sink)
    if query.result != "table":
        # A record's key says where it goes, and need not tell it from others.
        return Target(sink, name, checkpoint, key=key_columns(query) or ())
    if sink.format.lower() in SHOWING:
        return Target(sink, name, checkpoint)
    spelled = {output.name.lower(): output.name for output in query.outputs}
    key = tuple(spelled[name.lower()] for name in asked.key) or result_columns(query) or ()
    return Target(sink, name, checkpoint, cast("Changes | None", asked.changes), key)


def check_target(target: Target, place: Place | None) -> None:
    """Refuse a target that can be known to fail, before anything is written."""
    if target.is_postgres:
        if find_spec("psycopg") is None:
            raise refuse("POSTGRES_NOT_INSTALLED", place, package="psycopg")
        from watersmeet.spark.sinks.postgres import Postgres

        Postgres(target.sink, target.query).check(place)
    path = options_in_lower_case(target.sink.options).get(PATH, "")
    if target.changes == "snapshot" and "://" in path.removeprefix("file://"):
        reason, hint = "a table as it is can only be kept in a folder of this machine", "write `changes 'log'`."
        option = f"path '{path}'"
        raise refuse("WRONG_OPTION", place, format=target.sink.format, option=option, reason=reason, hint=hint)


def needs_batches(target: Target) -> bool:
    """Whether the target is written batch by batch; else Spark's own streaming sink writes there."""
    return target.is_postgres or target.changes is not None


def writer_of(target: Target) -> Write:
    """What writes batches to a target."""
    if target.is_postgres:
        return _postgres(target)
    if target.changes == "snapshot":
        return _snapshot(target)

    def write(batch: DataFrame, number: int) -> None:
        if target.changes is None:
            write_rows(encoded_rows(target, batch), target.plain, number)
        elif target.changes == "upsert":
            write_rows(upserted(batch, target.key, target.sink.name), target.plain, number)
        else:
            _write_log(target, batch, number)

    return write


def encoded_rows(target: Target, rows: DataFrame) -> DataFrame:
    """Rows as the sink takes them."""
    return encoded(rows, target.key) if target.is_encoded else rows


def logged(batch: DataFrame) -> DataFrame:
    """The changes of a batch, put together: each row as often as it comes or goes, with ``_change``."""
    return changes_shown(consolidated(batch))


def upserted(batch: DataFrame, key: tuple[str, ...], name: str) -> DataFrame:
    """The changes of a batch as records: the row that a key has now, or no value for one that has none any more."""
    rows = consolidated(batch)
    weight = F.col(quote(WEIGHT))
    text = Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(key), "target": name}).travelling()
    kept = rows.select(key_of(key).alias("key"), value_of(columns_of(rows)).alias("row"), weight.alias("n"))
    comes = F.when(F.col("n") > 0, F.col("n")).otherwise(0)
    latest = F.first(F.when(F.col("n") > 0, F.col("row")), ignorenulls=True)
    by_key = kept.groupBy("key").agg(F.sum(comes).alias("n"), latest.alias("row"))
    value = F.when(F.col("n") <= 1, F.col("row")).otherwise(F.raise_error(F.lit(text)).cast("string"))
    return by_key.select("key", value.alias("value"))


def run_of(checkpoint: Path) -> str:
    """Which run of a query a checkpoint is of: Spark names each when it begins."""
    metadata = checkpoint / "metadata"
    return str(json.loads(metadata.read_text())["id"]) if metadata.exists() else checkpoint.name


def _write_log(target: Target, batch: DataFrame, number: int) -> None:
    changes = logged(batch).persist()
    try:
        # A batch without changes would leave an empty file behind each time.
        if changes.isEmpty():
            return
        has_folders = PATH in options_in_lower_case(target.sink.options)
        told = changes if has_folders else changes.withColumn(BATCH, F.lit(number).cast("bigint"))
        rows = encoded(told, target.key) if target.is_encoded else told
        write_rows(rows, target.plain, number)
    finally:
        changes.unpersist()


def _postgres(target: Target) -> Write:
    from watersmeet.spark.sinks.postgres import Postgres

    postgres = Postgres(target.sink, target.query, target.key if target.changes == "upsert" else ())

    def write(batch: DataFrame, number: int) -> None:
        postgres.write(batch, number, run_of(target.checkpoint))

    return write


def _snapshot(target: Target) -> Write:
    options = options_in_lower_case(target.options)
    folder = Path(options.pop(PATH).removeprefix("file://").removeprefix("file:"))
    snapshot = Snapshot(folder, target.sink.format.lower(), options)

    def write(batch: DataFrame, number: int) -> None:
        snapshot.write(batch, number, run_of(target.checkpoint))

    return write
