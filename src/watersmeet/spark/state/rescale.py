"""A checkpoint in another number of shards, or on another number of partitions; its query does not run meanwhile."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError, refusal_in, refuse
from watersmeet.operators.state.state_schema import UnevenError
from watersmeet.physical.difference import NamedIdentity
from watersmeet.spark.compile.shards import PARTITIONS
from watersmeet.spark.private.state_files import UnknownStateError, relocate_state, renumber
from watersmeet.spark.private.told import without_plan
from watersmeet.spark.refusals import innermost_cause
from watersmeet.spark.run.changes import fingerprints
from watersmeet.spark.run.damage import COMMITS_FOLDER, OFFSETS_FOLDER, batch_numbers, check_files
from watersmeet.spark.run.owner import OWNER, Owner
from watersmeet.spark.state.checkpoint import Checkpoint
from watersmeet.spark.state.look import State
from watersmeet.spark.state.places import check_resharding
from watersmeet.spark.state.seeding import seed
from watersmeet.spark.state.spreading import reshard_operators
from watersmeet.spark.state.swap import prepare_staging, swap

CHECK_HINT = "correct the cause and try again; `watersmeet state check` says whether the state can be read."


@dataclass(frozen=True)
class Parallelism:
    """In how many shards a state is, and on how many partitions these lie."""

    shards: int
    partitions: int


def current_parallelism(checkpoint: Checkpoint) -> Parallelism:
    """How a state is spread now."""
    head = json.loads((checkpoint.folder.read(f"{OFFSETS_FOLDER}/{checkpoint.batch}") or "").split("\n")[1])
    return Parallelism(checkpoint.owner.shards, int(head["conf"][PARTITIONS]))


def rescale(spark: SparkSession, path: Path, name: str, now: Parallelism) -> None:
    """Spread the state of a query otherwise: beside the old one, which is replaced in the end."""
    checkpoint = Checkpoint.open(spark, path)
    check_files(checkpoint.folder, str(path), "leave it as it is.")
    was = current_parallelism(checkpoint)
    _check(checkpoint, name, was, now)
    begun = _batch_numbers(checkpoint)
    made = prepare_staging(path)
    try:
        _make(spark, checkpoint, made, name, was, now)
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
        shutil.rmtree(made, ignore_errors=True)


def _make(
    spark: SparkSession, checkpoint: Checkpoint, made: Path, name: str, was: Parallelism, now: Parallelism
) -> None:
    """Make the new checkpoint, as it will lie where the old one is."""
    path, is_spread = Path(checkpoint.path), now.shards != was.shards
    ordered = sorted(checkpoint.operators, key=lambda operator: operator.spark_number)
    for number, sharing in groupby(ordered, lambda operator: operator.spark_number):
        stored = checkpoint.read_store(number)
        values = reshard_operators(checkpoint, tuple(sharing), now.shards, name) if is_spread else stored
        seed(spark, values, made, number, now.partitions)
    renumber(made, 0, checkpoint.batch)
    relocate_state(made, path.absolute())
    _copy(path, made, checkpoint.batch, now.partitions)
    owner = _owner(checkpoint, now.shards) if is_spread else checkpoint.owner
    (made / OWNER).write_text(owner.to_text(spark.version), "utf-8")
    # What was told of its batches since is still told by the same lags.
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
    """The batches that are planned, and those that are done: whether a query runs that no lock tells of."""
    return batch_numbers(checkpoint.folder, OFFSETS_FOLDER), batch_numbers(checkpoint.folder, COMMITS_FOLDER)


def _owner(checkpoint: Checkpoint, shards: int) -> Owner:
    """Whose the checkpoint is in another number of shards: each shard was left by the query as it was."""
    was = checkpoint.owner
    queries = tuple(NamedIdentity({**query.identity, "shards": shards}, query.words) for query in was.queries)
    return replace(was, queries=queries, accepted={**fingerprints(State(checkpoint)), **was.accepted})


def _copy(path: Path, made: Path, batch: int, partitions: int) -> None:
    """Copy what is no state; the last plans tell on how many partitions it lies."""
    for entry in path.iterdir():
        if entry.is_dir() and entry.name != "state":
            shutil.copytree(entry, made / entry.name, ignore=shutil.ignore_patterns(".*"))
        elif entry.is_file() and not entry.name.startswith(".") and entry.name != OWNER:
            shutil.copyfile(entry, made / entry.name)
    for file in [
        file for file in (made / OFFSETS_FOLDER).iterdir() if file.name.isdecimal() and int(file.name) >= batch
    ]:
        version, head, *lines = file.read_text("utf-8").split("\n")
        metadata = json.loads(head)
        metadata["conf"][PARTITIONS] = str(partitions)
        file.write_text("\n".join([version, json.dumps(metadata, separators=(",", ":")), *lines]), "utf-8")
        # A checksum of the file as it was.
        file.with_name(f"{file.name}.crc").unlink(missing_ok=True)
