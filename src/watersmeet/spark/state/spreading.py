"""The values of a state in another number of shards, as Spark's workers take them apart and put them together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal, TravellingError
from watersmeet.joins.state.kept import UnevenError
from watersmeet.joins.state.reshard import parted, united
from watersmeet.spark.exchange.shards import labels
from watersmeet.spark.state.checkpoint import Checkpoint, Operator
from watersmeet.spark.state.places import is_alone, places_of

VALUES = "shard INT, name STRING, value BINARY"
"""A state as rows."""
_PARTS = "shard INT, of INT, name STRING, value BINARY"
AGAIN = "run the query once more, `watersmeet run --once`, and try again; `--partitions` alone changes no shard."


def spread(checkpoint: Checkpoint, sharing: Sequence[Operator], shards: int, query: str) -> DataFrame:
    """The values of operators that share one of Spark's, in so many shards: each by the names that are its own."""
    if any(is_alone(operator.stage) for operator in sharing):
        return checkpoint.stored(sharing[0].spark_number)
    frames = [_spread(checkpoint, operator, shards, query) for operator in sharing]
    return reduce(DataFrame.unionAll, frames)


def _spread(checkpoint: Checkpoint, operator: Operator, shards: int, query: str) -> DataFrame:
    keeping, identity, stage = operator.keeping, operator.identity, dict(operator.stage)
    values, new = checkpoint.values(operator), labels(shards)
    with checkpoint.reading():
        first = values.agg(F.min("shard")).collect()[0][0]

    def part(table: pa.Table) -> pa.Table:
        shard = table.column("shard")[0].as_py()
        with _refused(query):
            parts = parted(_values(table), places_of(stage, keeping, len(new)), len(new), is_first=shard == first)
        named = zip(new, parts, strict=True)
        rows = [(label, shard, name, value) for label, own in named for name, value in own.items()]
        return _table(rows, {"shard": pa.int32(), "of": pa.int32(), "name": pa.string(), "value": pa.binary()})

    def unite(table: pa.Table) -> pa.Table:
        shard, of = table.column("shard")[0].as_py(), table.column("of")
        parts = [_values(table.filter(pc.equal(of, number))) for number in sorted(of.unique().to_pylist())]
        with _refused(query):
            rows = [(shard, name, value) for name, value in united(parts, keeping, identity).items()]
        return _table(rows, {"shard": pa.int32(), "name": pa.string(), "value": pa.binary()})

    found = _by_shard(_by_shard(values, part, _PARTS), unite, VALUES)
    return found.withColumn("name", F.concat(F.lit(operator.prefix), "name")) if operator.prefix else found


def _by_shard(values: DataFrame, work: Callable[[pa.Table], pa.Table], schema: str) -> DataFrame:
    return values.groupBy("shard").applyInArrow(work, schema)


@contextmanager
def _refused(query: str) -> Generator[None]:
    """Let what cannot be put together, or taken apart, travel as a refusal."""
    try:
        yield
    except UnevenError as error:
        told = {"query": query, "reason": str(error), "hint": AGAIN}
        raise TravellingError(Refusal("NOT_RESCALED", told)) from None


def _values(table: pa.Table) -> dict[str, bytes]:
    return dict(zip(table.column("name").to_pylist(), table.column("value").to_pylist(), strict=True))


def _table(rows: Sequence[tuple[object, ...]], types: Mapping[str, pa.DataType]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return pa.table({n: pa.array(column, type_) for column, (n, type_) in zip(columns, types.items(), strict=True)})
