"""The state of a query as DataFrames: what is kept, the rows themselves, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from watersmeet.errors import did_you_mean, refuse
from watersmeet.joins.state.format import DIRECTORY, RUN, Directory, decode_rows
from watersmeet.joins.state.kept import SETTLED
from watersmeet.joins.state.look import Look
from watersmeet.spark.exchange.shards import labels
from watersmeet.spark.private.told import arrow_schema
from watersmeet.spark.state.checkpoint import Checkpoint, Operator
from watersmeet.spark.state.shards import (
    MATCHED,
    PROBLEMS,
    SHARD,
    SUMMARY,
    UNTIL,
    UNTIL_OF,
    Examine,
    Means,
    Show,
    Summarise,
)

WORKERS_ZONE = "UTC"
"""The time zone in which workers hand timestamps to Spark, whatever the session shows them in."""


@dataclass(frozen=True)
class Kept:
    """Rows that an operator keeps of a side: which spine, under which name people ask for it, what ends their lives."""

    operator: Operator
    spine: str
    side: str
    name: str
    ends: str


class State:
    """The state of a query as it was when its last batch was committed, as DataFrames."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def batch(self) -> int:
        """The batch after which it was so."""
        return self.checkpoint.batch

    @property
    def shards(self) -> int:
        """In how many shards it is."""
        return self.checkpoint.owner.shards

    @cached_property
    def kept(self) -> tuple[Kept, ...]:
        """What can be read: the rows of every side of every operator."""
        found = [
            (operator, spine)
            for operator in self.checkpoint.operators
            for spine in sorted({spine for directory in self.directories[operator.number] for spine in directory.runs})
        ]
        return tuple(self._kept(operator, spine) for operator, spine in found)

    @cached_property
    def directories(self) -> tuple[tuple[Directory, ...], ...]:
        """What each shard of each operator knows of itself."""
        found: list[tuple[Directory, ...]] = []
        for operator in self.checkpoint.operators:
            with self.checkpoint.reading():
                rows = self.checkpoint.values(operator).where("name = 'directory'").select("value").collect()
            found.append(tuple(Look({DIRECTORY: bytes(row.value)}).directory for row in rows))
        return tuple(found)

    @cached_property
    def summary(self) -> DataFrame:
        """A row per operator, side and shard: rows, bytes, runs, times, marks, and when the next rows expire."""
        frames = [self._summary(operator) for operator in self.checkpoint.operators]
        return reduce(DataFrame.unionAll, frames)

    def rows(self, side: str | None = None, operator: int | None = None) -> DataFrame:
        """The rows that are alive of a side: their columns, whether they have matched, and until when they live.

        ``side``: its alias in the query, or another name of `kept`; ``operator``: the number of the operator.
        """
        kept = self._asked(side, operator)
        means = self._means(kept.operator)
        names, types = self._columns(kept, means)
        is_number = bool(kept.operator.identity["ports"]) and all(
            time in means.numbers for port in kept.operator.identity["ports"] for time in port.get("times", ())
        )
        told = [
            StructField(MATCHED, BooleanType()),
            StructField(UNTIL, LongType() if is_number else TimestampType()),
            StructField(UNTIL_OF, StringType()),
            StructField(SHARD, IntegerType()),
        ]
        weight = [StructField("_weight", LongType())] if any(name == "#weight" for name, _ in names) else []
        shown = tuple((name, called) for name, called in names if not name.startswith("#"))
        schema = StructType([*(StructField(called, types[name]) for name, called in shown), *weight, *told])
        show = Show(means, kept.spine, shown, arrow_schema(schema, WORKERS_ZONE))
        return self._in_shards(kept.operator, show, schema)

    @cached_property
    def problems(self) -> DataFrame:
        """A row for everything that is not as it should be: operator, shard, problem. None: all is well."""
        return reduce(DataFrame.unionAll, map(self._problems, self.checkpoint.operators))

    def _problems(self, operator: Operator) -> DataFrame:
        # Of one shard there may be operators in a query of many.
        known = frozenset((*labels(self.shards), *labels(1)))
        examine = Examine(self._means(operator), known, _arrow(PROBLEMS))
        found = self._in_shards(operator, examine, PROBLEMS)
        return found.select(F.lit(operator.number).alias("operator"), F.lit(operator.name).alias("join"), "*")

    def _summary(self, operator: Operator) -> DataFrame:
        summarise = Summarise(self._means(operator), _arrow(SUMMARY))
        found = self._in_shards(operator, summarise, SUMMARY)
        sides = F.create_map(
            *(
                part
                for port in range(len(operator.stage["ports"]))
                for part in (F.lit(port), F.lit(operator.side(port)))
            )
        )
        return found.select(
            F.lit(operator.number).alias("operator"),
            F.lit(operator.name).alias("join"),
            F.try_element_at(sides, F.col("port")).alias("side"),
            F.col("spine").alias("kept"),
            "shard", "rows", "stored", "bytes", "runs", "earliest", "latest", "next", "next_of",
            "watermarks", "fingerprint",
        )  # fmt: skip

    def _means(self, operator: Operator) -> Means:
        numbers = {
            f"{number}.{name}"
            for number, source in enumerate(operator.told.identity["sources"])
            for name, type_ in source["columns"].items()
            if type_.endswith("INT")
        }
        accepted = self.checkpoint.owner.accepted
        return Means(operator.identity, operator.keeping, frozenset(numbers), operator.told, dict(accepted))

    def _in_shards(
        self, operator: Operator, look: Callable[[pa.Table], pa.Table], schema: StructType | str
    ) -> DataFrame:
        """What comes of a look into each shard of an operator."""

        def looked(values: pa.Table) -> pa.Table:
            return look(values)

        return self.checkpoint.values(operator).groupBy("shard").applyInArrow(looked, schema)

    def _kept(self, operator: Operator, spine: str) -> Kept:
        told = operator.keeping.spine(operator.identity, spine)
        side = operator.side(told.port)
        plain = spine in ("left", "right") or spine.startswith("waiting/")
        is_settled = not told.has_end and any(spine in one.over for one in self.directories[operator.number])
        return Kept(operator, spine, side, side if plain else spine, SETTLED if is_settled else told.ends)

    def _asked(self, side: str | None, operator: int | None) -> Kept:
        found = [one for one in self.kept if operator is None or one.operator.number == operator]
        if side is not None:
            by_name = [one for one in found if one.name.lower() == side.lower() or one.spine.lower() == side.lower()]
            found = by_name or [one for one in found if one.side.lower() == side.lower()]
        if len(found) == 1:
            return found[0]
        names = [one.name for one in self.kept]
        if not found:
            raise refuse("UNKNOWN_SIDE", side=side or "", suggestion=_known(side, names))
        told = ", ".join(f"`{one.name}` of operator {one.operator.number}" for one in found)
        raise refuse("WHICH_SIDE", sides=told)

    def _columns(self, kept: Kept, means: Means) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """The columns of a spine, canonical and as people call them, and their types."""
        runs = [run for one in self.directories[kept.operator.number] for run in one.runs.get(kept.spine, ())]
        newest = runs[-1][-1].name
        with self.checkpoint.reading():
            values = self.checkpoint.values(kept.operator)
            stored = values.where(F.col("name") == f"{RUN}{newest}").select("value").first()
        assert stored is not None
        batch = decode_rows(bytes(stored.value))
        frame = self.checkpoint.spark.createDataFrame(pa.Table.from_batches([batch.slice(0, 0)]))
        return _called(batch.schema.names, kept.operator), {f.name: f.dataType for f in frame.schema}


def state(checkpoint: str | Path, spark: SparkSession) -> State:
    """The state in a checkpoint."""
    return State(Checkpoint.open(spark, checkpoint))


def _known(side: str | None, names: Sequence[str]) -> str:
    return did_you_mean(side, names) if side and names else "nothing is kept now."


def _called(names: Sequence[str], operator: Operator) -> list[tuple[str, str]]:
    """Columns by the names that people gave them; with their side where several have the same."""
    plain = [name.partition(".")[2] if name.partition(".")[0].isdecimal() else "" for name in names]
    found: list[tuple[str, str]] = []
    for name, own in zip(names, plain, strict=True):
        called = own if own and plain.count(own) == 1 and own.isidentifier() else operator.told.name(name)[1:-1]
        found.append((name, called))
    return found


def _arrow(ddl: str) -> pa.Schema:
    return arrow_schema(cast("StructType", StructType.fromDDL(ddl)), WORKERS_ZONE)
