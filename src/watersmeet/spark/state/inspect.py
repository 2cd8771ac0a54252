"""The state of a query as DataFrames: a summary, the rows themselves, and defects.

Workers inspect a state: each gets the stored values of one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from watersmeet.deprecation import accept_old_names
from watersmeet.errors import did_you_mean, refuse
from watersmeet.locations import Storage
from watersmeet.metrics.progress import watermark_text
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import Watermarks
from watersmeet.operators.state.format import DIRECTORY, RUN, Directory, UnknownFormatError, block_schema, decode_rows
from watersmeet.operators.state.state_schema import (
    UNTIL_FINAL,
    ShardInspector,
    SpineRows,
    SpineSchema,
    StateSchema,
    format_of,
)
from watersmeet.physical.change import NamedIdentity
from watersmeet.spark.exchange.store import labels
from watersmeet.spark.private.introspection import arrow_schema
from watersmeet.spark.state.checkpoint import Checkpoint, StatefulOperator

WORKERS_ZONE = "UTC"
"""The time zone in which workers hand timestamps to Spark, whatever the session shows them in."""


@dataclass(frozen=True)
class SpineInfo:
    """The stored rows of an operator's side: the spine, its name for users, and what expires the rows."""

    operator: StatefulOperator
    spine: str
    side: str
    name: str
    ends: str


@accept_old_names(kept="spines")
class State:
    """The state of a query as it was when its last batch was committed, as DataFrames."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def batch(self) -> int:
        """The number of the last committed batch."""
        return self.checkpoint.batch

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self.checkpoint.owner.shards

    @cached_property
    def spines(self) -> tuple[SpineInfo, ...]:
        """The readable spines: the rows of every side of every operator."""
        names = [
            (operator, spine)
            for operator in self.checkpoint.operators
            for spine in sorted({spine for directory in self.directories[operator.number] for spine in directory.runs})
        ]
        return tuple(self._spine_info(operator, spine) for operator, spine in names)

    @cached_property
    def directories(self) -> tuple[tuple[Directory, ...], ...]:
        """The directory of each shard of each operator."""
        by_operator: list[tuple[Directory, ...]] = []
        for operator in self.checkpoint.operators:
            with self.checkpoint.guard_reads():
                rows = self.checkpoint.values(operator).where("name = 'directory'").select("value").collect()
            by_operator.append(tuple(ShardInspector({DIRECTORY: bytes(row.value)}).directory for row in rows))
        return tuple(by_operator)

    @cached_property
    def summary(self) -> DataFrame:
        """A row per operator, side and shard: rows, bytes, runs, times, watermarks, and when the next rows expire."""
        frames = [self._summary(operator) for operator in self.checkpoint.operators]
        return reduce(DataFrame.unionAll, frames)

    def rows(self, side: str | None = None, operator: int | None = None) -> DataFrame:
        """The rows in the state of a side: their columns, whether they have matched, and when they expire.

        ``side``: its alias in the query, or another name of `kept`; ``operator``: the number of the operator.
        """
        spine = self._select_spine(side, operator)
        means = self._means(spine.operator)
        names, types = self._columns(spine, means)
        is_number = bool(spine.operator.identity["ports"]) and all(
            time in means.numbers for port in spine.operator.identity["ports"] for time in port.get("times", ())
        )
        extra_fields = [
            StructField(MATCHED, BooleanType()),
            StructField(UNTIL, LongType() if is_number else TimestampType()),
            StructField(UNTIL_OF, StringType()),
            StructField(SHARD, IntegerType()),
        ]
        weight = [StructField("_weight", LongType())] if any(name == "#weight" for name, _ in names) else []
        shown = tuple((name, called) for name, called in names if not name.startswith("#"))
        schema = StructType([*(StructField(called, types[name]) for name, called in shown), *weight, *extra_fields])
        show = ReadShardRows(means, spine.spine, shown, arrow_schema(schema, WORKERS_ZONE))
        return self._in_shards(spine.operator, show, schema)

    @cached_property
    def problems(self) -> DataFrame:
        """A row per problem: operator, shard, problem. No rows if the state is consistent."""
        return reduce(DataFrame.unionAll, map(self._problems, self.checkpoint.operators))

    def _problems(self, operator: StatefulOperator) -> DataFrame:
        # Of one shard there may be operators in a query of many.
        known_labels = frozenset((*labels(self.shards), *labels(1)))
        examine = CheckShard(self._means(operator), known_labels, _arrow(PROBLEMS))
        problems = self._in_shards(operator, examine, PROBLEMS)
        return problems.select(F.lit(operator.number).alias("operator"), F.lit(operator.name).alias("join"), "*")

    def _summary(self, operator: StatefulOperator) -> DataFrame:
        summarise = SummarizeShard(self._means(operator), _arrow(SUMMARY))
        summary = self._in_shards(operator, summarise, SUMMARY)
        sides = F.create_map(
            *(
                part
                for port in range(len(operator.stage["ports"]))
                for part in (F.lit(port), F.lit(operator.side(port)))
            )
        )
        return summary.select(
            F.lit(operator.number).alias("operator"),
            F.lit(operator.name).alias("join"),
            F.try_element_at(sides, F.col("port")).alias("side"),
            F.col("spine").alias("kept"),
            "shard", "rows", "stored", "bytes", "runs", "earliest", "latest", "next", "next_of",
            "watermarks", "fingerprint",
        )  # fmt: skip

    def _means(self, operator: StatefulOperator) -> StateMeaning:
        numbers = {
            f"{number}.{name}"
            for number, source in enumerate(operator.query.identity["sources"])
            for name, type_ in source["columns"].items()
            if type_.endswith("INT")
        }
        accepted = self.checkpoint.owner.accepted
        return StateMeaning(
            operator.identity, operator.state_schema, frozenset(numbers), operator.query, dict(accepted)
        )

    def _in_shards(
        self, operator: StatefulOperator, inspect: Callable[[pa.Table], pa.Table], schema: StructType | str
    ) -> DataFrame:
        """The results of ``inspect`` for each shard of an operator."""

        def inspect_shard(values: pa.Table) -> pa.Table:
            return inspect(values)

        return self.checkpoint.values(operator).groupBy("shard").applyInArrow(inspect_shard, schema)

    def _spine_info(self, operator: StatefulOperator, spine: str) -> SpineInfo:
        schema = operator.state_schema.spine(operator.identity, spine)
        side = operator.side(schema.port)
        plain = spine in ("left", "right") or spine.startswith("waiting/")
        is_final = not schema.has_expiry and any(
            spine in directory.finality for directory in self.directories[operator.number]
        )
        return SpineInfo(
            operator, spine, side, side if plain else spine, UNTIL_FINAL if is_final else schema.expiry_text
        )

    def _select_spine(self, side: str | None, operator: int | None) -> SpineInfo:
        matches = [spine for spine in self.spines if operator is None or spine.operator.number == operator]
        if side is not None:
            by_name = [
                spine for spine in matches if spine.name.lower() == side.lower() or spine.spine.lower() == side.lower()
            ]
            matches = by_name or [spine for spine in matches if spine.side.lower() == side.lower()]
        if len(matches) == 1:
            return matches[0]
        names = [spine.name for spine in self.spines]
        if not matches:
            raise refuse("UNKNOWN_SIDE", side=side or "", suggestion=_suggest_side(side, names))
        choices = ", ".join(f"`{candidate.name}` of operator {candidate.operator.number}" for candidate in matches)
        raise refuse("WHICH_SIDE", sides=choices)

    def _columns(self, spine: SpineInfo, means: StateMeaning) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """The columns of a spine, canonical and as people call them, and their types."""
        runs = [
            run for directory in self.directories[spine.operator.number] for run in directory.runs.get(spine.spine, ())
        ]
        newest = runs[-1][-1].name
        with self.checkpoint.guard_reads():
            values = self.checkpoint.values(spine.operator)
            stored = values.where(F.col("name") == f"{RUN}{newest}").select("value").first()
        assert stored is not None
        schema = block_schema(decode_rows(bytes(stored.value)))
        frame = self.checkpoint.spark.createDataFrame(schema.empty_table())
        return _display_names(schema.names, spine.operator), {f.name: f.dataType for f in frame.schema}


def open_state(checkpoint: str | Storage, spark: SparkSession) -> State:
    """The state in a checkpoint."""
    return State(Checkpoint.open(spark, checkpoint))


def _suggest_side(side: str | None, names: Sequence[str]) -> str:
    return did_you_mean(side, names) if side and names else "the state is empty."


def _display_names(names: Sequence[str], operator: StatefulOperator) -> list[tuple[str, str]]:
    """Columns by the names that people gave them; with their side where several have the same."""
    plain = [name.partition(".")[2] if name.partition(".")[0].isdecimal() else "" for name in names]
    display_names: list[tuple[str, str]] = []
    for name, own in zip(names, plain, strict=True):
        display_name = own if own and plain.count(own) == 1 and own.isidentifier() else operator.query.name(name)[1:-1]
        display_names.append((name, display_name))
    return display_names


def _arrow(ddl: str) -> pa.Schema:
    return arrow_schema(cast("StructType", StructType.fromDDL(ddl)), WORKERS_ZONE)


SUMMARY = (
    "shard INT, spine STRING, port INT, rows BIGINT, stored BIGINT, bytes BIGINT, runs INT, earliest STRING, "
    "latest STRING, next STRING, next_of STRING, watermarks MAP<STRING, STRING>, fingerprint STRING"
)
PROBLEMS = "shard INT, problem STRING"
MATCHED, UNTIL, UNTIL_OF, SHARD = "_matched", "_until", "_until_of", "_shard"
"""The columns of a state row besides its own."""


@dataclass(frozen=True)
class StateMeaning:
    """The meaning of an operator's state; ``numbers`` are the columns whose times are numbers.

    ``accepted``: the identities of shards that were written before a change, by their fingerprints.
    """

    identity: Identity
    state_schema: StateSchema
    numbers: frozenset[str]
    query: NamedIdentity
    accepted: Mapping[str, Identity]

    def spine_schema(self, values: Mapping[str, bytes], spine: str) -> SpineSchema:
        """The schema of a shard's spine, by the identity that wrote it."""
        fingerprint = values.get("fingerprint", b"").decode("utf-8", "replace")
        return self.state_schema.spine(self.accepted.get(fingerprint, self.identity), spine)

    def display_name(self, column: str) -> str:
        """The name of a column, or of its watermark, for users."""
        return self.query.name(column)[1:-1]

    def time_text(self, column: str, value: int) -> str:
        """A time of a column, or its watermark, as text."""
        return watermark_text(value, is_temporal=column.partition("#")[0] not in self.numbers)

    def is_time(self, watermark: str) -> bool:
        """Whether a watermark is that of an event time of a side, or of a part of it."""
        return any(watermark.partition("#")[0] in port.get("times", ()) for port in self.identity["ports"])

    def time(self, port: int) -> str | None:
        """The time by which rows of a port are ordered."""
        port_identity = self.identity["ports"][port]
        return port_identity.get("time") or next(iter(port_identity.get("times", ())), None)


def _values(table: pa.Table) -> tuple[int, dict[str, bytes]]:
    names, values = table.column("name").to_pylist(), table.column("value").to_pylist()
    return table.column("shard")[0].as_py(), dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class SummarizeShard:
    """A row for each spine of a shard; one without a spine for an empty shard."""

    means: StateMeaning
    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """The requested content of a shard."""
        shard, values = _values(table)
        look, means = ShardInspector(values), self.means
        watermarks = look.directory.received
        # Finality watermarks are not watermarks of rows.
        shown = {
            name: watermark
            for name, watermark in watermarks.items()
            if not look.directory.finality or means.is_time(name)
        }
        shared: dict[str, Any] = {
            "shard": shard,
            "watermarks": [
                (means.display_name(name), means.time_text(name, watermark)) for name, watermark in shown.items()
            ],
            "fingerprint": values.get("fingerprint", b"").decode("utf-8", "replace"),
        }
        rows = [{**shared, **self._spine(look, watermarks, name)} for name in look.directory.runs]
        return pa.Table.from_pylist(rows or [shared], schema=self.schema)

    def _spine(self, look: ShardInspector, watermarks: Watermarks, name: str) -> dict[str, Any]:
        schema = self.means.spine_schema(look.values, name)
        runs = look.directory.runs[name]
        rows, column = look.rows(name, schema), self.means.time(schema.port)
        summary: dict[str, Any] = {
            "spine": name,
            "port": schema.port,
            "rows": 0 if rows is None else len(rows),
            "stored": sum(block.left for run in runs for block in run),
            "bytes": look.bytes_of(name),
            "runs": len(runs),
        }
        if rows is None or not len(rows):
            return summary
        if column is not None and column in rows.table.schema.names and rows.table.column(column).null_count == 0:
            times = as_int64(rows.table.column(column))
            summary["earliest"] = self.means.time_text(column, int(times.min()))
            summary["latest"] = self.means.time_text(column, int(times.max()))
        return summary | self._next(rows, watermarks)

    def _next(self, rows: SpineRows, watermarks: Watermarks) -> dict[str, str]:
        """The watermark that expires the next row, and the value it must pass."""
        ends = {watermark: int(until.min()) for watermark, until in rows.expiry.items()}
        if not ends:
            return {}
        first = min(ends, key=lambda watermark: ends[watermark] - watermarks.get(watermark, -(2**62)))
        return {"next": self.means.time_text(first, ends[first]), "next_of": self.means.display_name(first)}


@dataclass(frozen=True)
class CheckShard:
    """A row for each thing that is not as it should be in a shard."""

    means: StateMeaning
    labels: frozenset[int]
    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """The defects of a shard."""
        shard, values = _values(table)
        problems = list(self._problems(shard, values))
        return pa.Table.from_pylist([{"shard": shard, "problem": problem} for problem in problems], schema=self.schema)

    def _problems(self, shard: int, values: dict[str, bytes]) -> list[str]:
        if shard not in self.labels:
            return ["no row would ever come to this shard"]
        if "directory" in values and format_of(values) is None:
            return ["its directory cannot be read"]
        try:
            look = ShardInspector(values)
            spines = {name: self.means.spine_schema(values, name) for name in look.directory.runs}
        except (UnknownFormatError, ValueError, KeyError) as error:
            return [f"its directory cannot be read ({error})"]
        missing = [] if "fingerprint" in values else ["nothing says whose it is"]
        return [*missing, *look.problems(spines)]


@dataclass(frozen=True)
class ReadShardRows:
    """The rows of a spine in a shard, in columns of people's names (by canonical ones)."""

    means: StateMeaning
    spine: str
    names: tuple[tuple[str, str], ...]
    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """The rows that are there."""
        shard, values = _values(table)
        look = ShardInspector(values)
        rows = look.rows(self.spine, self.means.spine_schema(values, self.spine))
        if rows is None or not len(rows):
            return self.schema.empty_table()
        of, until = rows.nearest(look.directory.received)
        coded = of.dictionary_encode()
        names = pa.array(
            [self.means.display_name(watermark) for watermark in coded.dictionary.to_pylist()], pa.string()
        )
        of = names.take(coded.indices)
        columns_by_name = dict(zip(rows.table.schema.names, rows.table.columns, strict=True))
        columns = {shown: columns_by_name[name] for name, shown in self.names if name in columns_by_name}
        columns[MATCHED] = rows.matched
        columns[UNTIL], columns[UNTIL_OF] = until, of
        columns[SHARD] = pa.array(np.full(len(rows), shard, np.int32))
        columns["_weight"] = columns_by_name.get(WEIGHT)
        arrays = [_as(columns.get(f.name), f.type, len(rows)) for f in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _as(array: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if array is None:
        return pa.nulls(rows, kind)
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind) and pa.types.is_int64(array.type):
        return array.view(pa.timestamp("us")).view(kind)
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type):
        return array.view(kind)
    return array.cast(kind)


def fingerprints(state: State) -> dict[str, Identity]:
    """By what the shards of all operators were left, and what that was."""
    by_fingerprint: dict[str, Identity] = {}
    for operator in state.checkpoint.operators:
        with state.checkpoint.guard_reads():
            rows = state.checkpoint.values(operator).where("name = 'fingerprint'").select("value").distinct().collect()
        by_fingerprint |= {bytes(row.value).decode(): operator.identity for row in rows}
    return by_fingerprint
