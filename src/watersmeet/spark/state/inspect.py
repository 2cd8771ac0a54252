"""The state of a query as DataFrames: a summary, the rows themselves, and defects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from watersmeet.deprecation import accept_old_names
from watersmeet.errors import did_you_mean, refuse
from watersmeet.locations import Storage
from watersmeet.operators.state.format import DIRECTORY, RUN, Directory, decode_rows
from watersmeet.operators.state.state_schema import UNTIL_FINAL, ShardInspector
from watersmeet.spark.exchange.store import labels
from watersmeet.spark.private.introspection import arrow_schema
from watersmeet.spark.state.checkpoint import Checkpoint, StatefulOperator
from watersmeet.spark.state.shards import (
    MATCHED,
    PROBLEMS,
    SHARD,
    SUMMARY,
    UNTIL,
    UNTIL_OF,
    CheckShard,
    ReadShardRows,
    StateMeaning,
    SummarizeShard,
)

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
        batch = decode_rows(bytes(stored.value))
        frame = self.checkpoint.spark.createDataFrame(pa.Table.from_batches([batch.slice(0, 0)]))
        return _display_names(batch.schema.names, spine.operator), {f.name: f.dataType for f in frame.schema}


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
