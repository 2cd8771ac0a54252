"""The values of a state in another number of shards, as Spark's workers take them apart and put them together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal, WorkerRefusalError
from watersmeet.operators.state.reshard import merge_shards, split_shard
from watersmeet.operators.state.state_schema import UnevenError
from watersmeet.spark.exchange.shards import labels
from watersmeet.spark.state.checkpoint import Checkpoint, StatefulOperator
from watersmeet.spark.state.places import is_unsharded, make_shard_assignment

VALUES = "shard INT, name STRING, value BINARY"
"""A state as rows."""
_PARTS = "shard INT, of INT, name STRING, value BINARY"
RETRY_HINT = "run the query again, `watersmeet run --once`, then retry; `--partitions` alone does not change shards."


def reshard_operators(
    checkpoint: Checkpoint, operators: Sequence[StatefulOperator], shards: int, query: str
) -> DataFrame:
    """The values of operators that share one of Spark's, in so many shards: each by the names that are its own."""
    if any(is_unsharded(operator.stage) for operator in operators):
        return checkpoint.read_store(operators[0].spark_number)
    frames = [_reshard_operator(checkpoint, operator, shards, query) for operator in operators]
    return reduce(DataFrame.unionAll, frames)


def _reshard_operator(checkpoint: Checkpoint, operator: StatefulOperator, shards: int, query: str) -> DataFrame:
    state_schema, identity, stage = operator.state_schema, operator.identity, dict(operator.stage)
    values, new = checkpoint.values(operator), labels(shards)
    with checkpoint.guard_reads():
        first = values.agg(F.min("shard")).collect()[0][0]

    def split(table: pa.Table) -> pa.Table:
        shard = table.column("shard")[0].as_py()
        with _refuse_uneven(query):
            parts = split_shard(
                _values(table), make_shard_assignment(stage, state_schema, len(new)), len(new), is_first=shard == first
            )
        named = zip(new, parts, strict=True)
        rows = [(label, shard, name, value) for label, own in named for name, value in own.items()]
        return _table(rows, {"shard": pa.int32(), "of": pa.int32(), "name": pa.string(), "value": pa.binary()})

    def merge_parts(table: pa.Table) -> pa.Table:
        shard, of = table.column("shard")[0].as_py(), table.column("of")
        parts = [_values(table.filter(pc.equal(of, number))) for number in sorted(of.unique().to_pylist())]
        with _refuse_uneven(query):
            rows = [(shard, name, value) for name, value in merge_shards(parts, state_schema, identity).items()]
        return _table(rows, {"shard": pa.int32(), "name": pa.string(), "value": pa.binary()})

    spread_values = _by_shard(_by_shard(values, split, _PARTS), merge_parts, VALUES)
    return (
        spread_values.withColumn("name", F.concat(F.lit(operator.prefix), "name")) if operator.prefix else spread_values
    )


def _by_shard(values: DataFrame, work: Callable[[pa.Table], pa.Table], schema: str) -> DataFrame:
    return values.groupBy("shard").applyInArrow(work, schema)


@contextmanager
def _refuse_uneven(query: str) -> Generator[None]:
    """Let what cannot be put together, or taken apart, travel as a refusal."""
    try:
        yield
    except UnevenError as error:
        parameters = {"query": query, "reason": str(error), "hint": RETRY_HINT}
        raise WorkerRefusalError(Refusal("NOT_RESCALED", parameters)) from None


def _values(table: pa.Table) -> dict[str, bytes]:
    return dict(zip(table.column("name").to_pylist(), table.column("value").to_pylist(), strict=True))


def _table(rows: Sequence[tuple[object, ...]], types: Mapping[str, pa.DataType]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return pa.table({n: pa.array(column, type_) for column, (n, type_) in zip(columns, types.items(), strict=True)})
