"""A checkpoint in another number of shards, or on another number of partitions; its query does not run meanwhile.

Rows go to the shard to which the exchange would send them now. Spark writes states only in queries, so a query with an
operator of the same shape gets the values as rows, in one batch, and its state is taken for that of the operator.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from watersmeet.errors import Refusal, WatersmeetError, WorkerRefusalError, refusal_in, refuse
from watersmeet.locations import Storage, is_local, location_of
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Ints
from watersmeet.operators.core.routing import SkewedKeys, route_codes, shard_of
from watersmeet.operators.state.reshard import EVERYWHERE, NOWHERE, ShardAssignment, merge_shards, split_shard
from watersmeet.operators.state.state_schema import StateSchema, UnevenError
from watersmeet.spark.exchange.store import NAME, VALUE, labels
from watersmeet.spark.private.files import (
    WHOLE,
    UnknownStateError,
    copy_tree,
    delete_tree,
    relocate_state,
    renumber,
    take_operator,
)
from watersmeet.spark.private.introspection import without_plan
from watersmeet.spark.refusals import innermost_cause
from watersmeet.spark.session.workers import PARTITIONS, with_settings
from watersmeet.spark.state.checkpoint import (
    Checkpoint,
    StatefulOperator,
    discard_staging,
    final_place,
    prepare_staging,
    swap,
)
from watersmeet.spark.state.inspect import State, fingerprints
from watersmeet.spark.state.owner import COMMITS_FOLDER, OFFSETS_FOLDER, OWNER, Owner, batch_numbers, check_files

CODE = "#code"
_OF_STREAMS = frozenset({"interval"})
"""Operators that never retract rows: the shard of a spread row does not matter."""


def make_shard_assignment(
    stage: Identity, keeping: StateSchema, shards: int, before: tuple[int, int] = (0, 1)
) -> ShardAssignment:
    """The shards to which the rows of a stage belong; ``before``: which shard they are in, of how many."""
    operator = stage["operator"]
    check_resharding(stage)

    def assign_shards(spine: str, batch: pa.RecordBatch) -> Ints | None:
        port = keeping.spine(operator, spine).port
        match stage["ports"][port]["route"]:
            case "all":
                return None
            case "spread":
                return np.arange(batch.num_rows, dtype=np.int64) % np.int64(shards)
            case "time":
                own = operator["ports"][port]
                by = own.get("time") or own["times"][0]
            case _:
                by = _code(operator, port, batch, spine)
        skew = stage["ports"][port].get("skew")
        skewed = None if skew is None else SkewedKeys(skew["column"], tuple(skew["values"]), skew["copied"])
        codes = route_codes(batch, by, _null_keys(stage, port, batch), skewed)
        place = shard_of(codes, shards)
        if skewed is None or not skewed.is_copied:
            return place
        position, number = before
        copies = np.where(shard_of(codes, number) == position, EVERYWHERE, NOWHERE)
        return np.where(skewed.mask(batch), copies, place)

    return assign_shards


def _null_keys(stage: Identity, port: int, batch: pa.RecordBatch) -> list[str]:
    """The columns that decide about rows with a NULL key; any will do where such rows are never taken back."""
    if stage["ports"][port]["route"] == "partition":
        return []
    ports = stage["operator"].get("ports", ())
    upsert_key: list[str] = ports[port].get("upsert_key", []) if port < len(ports) else []
    return upsert_key or sorted(name for name in batch.schema.names if name != WEIGHT)


def is_unsharded(stage: Identity) -> bool:
    """Whether a stage has one shard, whatever their number."""
    return stage["ports"][0]["route"] == "one"


def check_resharding(stage: Identity) -> None:
    """Raise what speaks against another number of shards."""
    operator = stage["operator"]
    for port in stage["ports"]:
        if port["sharded by"]:
            raise UnevenError("its windows are partitioned by a part of its keys, whose hash is not in the state")
        if port["route"] == "spread" and operator["family"] not in _OF_STREAMS:
            raise UnevenError("it joins tables without an equality, whose rows are spread by all their columns")


def _code(operator: Identity, port: int, batch: pa.RecordBatch, spine: str) -> str:
    ports = operator.get("ports", ())
    own_code = ports[port].get("code") if port < len(ports) else None
    for name in (own_code, CODE):
        if name is not None and name in batch.schema.names:
            return name
    raise UnevenError(f"the rows of `{spine}` do not show how they were spread")


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
    values, new, old = checkpoint.values(operator), labels(shards), labels(checkpoint.owner.shards)
    with checkpoint.guard_reads():
        first = values.agg(F.min("shard")).collect()[0][0]

    def split(table: pa.Table) -> pa.Table:
        shard = table.column("shard")[0].as_py()
        with _refuse_uneven(query):
            assignment = make_shard_assignment(stage, state_schema, len(new), (old.index(shard), len(old)))
            parts = split_shard(_values(table), assignment, len(new), is_first=shard == first)
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
    """Turn an `UnevenError` into a refusal."""
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


_FEW = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
"""A value may be a block of many rows, so that few of them cross to Python at once."""
SCRATCH = "seed"
"""The folder in a new checkpoint for temporary data."""


class Seed(StatefulProcessor):
    """Stores its input."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state, as our operators have it."""
        self.state: Any = handle.getMapState("state", NAME, VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """The values of one shard."""
        for some in rows:
            for name, value in zip(some["name"], some["value"], strict=True):
                self.state.updateValue((name,), (bytes(value),))
        return iter(())

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""


def seed(spark: SparkSession, values: DataFrame, made: Storage, operator: int, partitions: int) -> None:
    """Write the state of an operator into a new checkpoint, as that of its batch 0; ``values`` are as in `VALUES`."""
    scratch = made.absolute() / SCRATCH
    values_at = location_of(scratch / "values")
    with with_settings(spark, {**WHOLE, **_FEW, PARTITIONS: str(partitions)}):
        values.write.parquet(values_at)
        stream = spark.readStream.schema(VALUES).parquet(values_at)
        seeded = stream.groupBy("shard").transformWithStateInPandas(Seed(), "n INT", "Append", "None")
        writer = seeded.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", location_of(scratch / "checkpoint")).start().awaitTermination()
    take_operator(scratch / "checkpoint", made, operator)
    delete_tree(scratch)


CHECK_HINT = "correct the cause and try again; `watersmeet state check` says whether the state can be read."


@dataclass(frozen=True)
class Parallelism:
    """In how many shards a state is, and on how many partitions these lie."""

    shards: int
    partitions: int


def current_parallelism(checkpoint: Checkpoint) -> Parallelism:
    """The spread of a state now."""
    head = json.loads((checkpoint.folder.read(f"{OFFSETS_FOLDER}/{checkpoint.batch}") or "").split("\n")[1])
    return Parallelism(checkpoint.owner.shards, int(head["conf"][PARTITIONS]))


def rescale(spark: SparkSession, path: Storage, name: str, now: Parallelism) -> None:
    """Spread the state of a query otherwise: beside the old one, which is replaced in the end."""
    checkpoint = Checkpoint.open(spark, path)
    check_files(checkpoint.folder, str(path), "leave it as it is.")
    was = current_parallelism(checkpoint)
    _check(checkpoint, name, was, now)
    begun = _batch_numbers(checkpoint)
    made = prepare_staging(path)
    try:
        _make(spark, checkpoint, path, made, name, was, now)
        if _batch_numbers(checkpoint) != begun:
            raise _rescale_refusal(name, "it runs", "stop it, and try again.")
        swap(made, path)
    except PySparkException as error:
        refusal = refusal_in(without_plan(str(error)))
        raise (
            _rescale_refusal(name, innermost_cause(error), CHECK_HINT)
            if refusal is None
            else WatersmeetError([refusal])
        ) from error
    except UnknownStateError as error:
        hint = f"use the version of Spark that wrote it, {checkpoint.owner.versions['spark']}."
        raise _rescale_refusal(name, str(error), hint) from error
    except OSError as error:
        raise _rescale_refusal(name, str(error), CHECK_HINT) from error
    finally:
        discard_staging(made, path)


def _make(
    spark: SparkSession,
    checkpoint: Checkpoint,
    path: Storage,
    made: Storage,
    name: str,
    was: Parallelism,
    now: Parallelism,
) -> None:
    """Make the new checkpoint, as it will lie where the old one is."""
    is_spread = now.shards != was.shards
    ordered = sorted(checkpoint.operators, key=lambda operator: operator.spark_number)
    for number, sharing in groupby(ordered, lambda operator: operator.spark_number):
        stored = checkpoint.read_store(number)
        values = reshard_operators(checkpoint, tuple(sharing), now.shards, name) if is_spread else stored
        seed(spark, values, made, number, now.partitions)
    renumber(made, 0, checkpoint.batch)
    relocate_state(made, final_place(made, path))
    _copy(path, made, checkpoint.batch, now.partitions)
    owner = _owner(checkpoint, now.shards) if is_spread else checkpoint.owner
    (made / OWNER).write_text(owner.to_text(spark.version), "utf-8")
    if is_local(path) and is_local(made):
        # Metrics of its batches since then still apply with the same lags.
        shutil.copystat(path / OWNER, made / OWNER)


def _check(checkpoint: Checkpoint, name: str, was: Parallelism, now: Parallelism) -> None:
    """Refuse what cannot be spread otherwise, before anything is written."""
    ours = {operator.spark_number for operator in checkpoint.operators}
    numbers = {int(number) for number in checkpoint.folder.names("state") if number.isdecimal()}
    if numbers - ours:
        hint = "start it again with a new checkpointLocation, or leave it as it is."
        raise _rescale_refusal(name, "an operator after its joins also keeps state in Spark", hint)
    if now.shards == was.shards:
        return
    for operator in checkpoint.operators:
        try:
            check_resharding(operator.stage)
        except UnevenError as error:
            hint = "change only the number of partitions, with `--partitions`."
            raise _rescale_refusal(name, f"{operator.name}: {error}", hint) from error


def _rescale_refusal(query: str, reason: str, hint: str) -> WatersmeetError:
    return refuse("NOT_RESCALED", query=query, reason=reason, hint=hint)


def _batch_numbers(checkpoint: Checkpoint) -> tuple[list[int], list[int]]:
    """The planned and the committed batches: they show a running query that holds no lock."""
    return batch_numbers(checkpoint.folder, OFFSETS_FOLDER), batch_numbers(checkpoint.folder, COMMITS_FOLDER)


def _owner(checkpoint: Checkpoint, shards: int) -> Owner:
    """The owner of the checkpoint with another number of shards. It accepts each shard as the query left it."""
    was = checkpoint.owner
    queries = tuple(replace(query, identity={**query.identity, "shards": shards}) for query in was.queries)
    return replace(was, queries=queries, accepted={**fingerprints(State(checkpoint)), **was.accepted})


def _copy(path: Storage, made: Storage, batch: int, partitions: int) -> None:
    """Copy everything but the state; set the number of partitions in the last plans."""
    for entry in path.iterdir():
        if entry.name not in ("state", OWNER) and (entry.is_dir() or not entry.name.startswith(".")):
            copy_tree(entry, made / entry.name)
    for file in [
        file for file in (made / OFFSETS_FOLDER).iterdir() if file.name.isdecimal() and int(file.name) >= batch
    ]:
        version, head, *lines = file.read_text("utf-8").split("\n")
        metadata = json.loads(head)
        metadata["conf"][PARTITIONS] = str(partitions)
        file.write_text("\n".join([version, json.dumps(metadata, separators=(",", ":")), *lines]), "utf-8")
        # A checksum of the file as it was.
        file.with_name(f"{file.name}.crc").unlink(missing_ok=True)
