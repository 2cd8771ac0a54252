"""A checkpoint as of its last committed batch, whether or not its query runs.

A copy of a running query's checkpoint may have the plan of an uncommitted batch, and incomplete files: the newest batch
whose commit and plan are complete counts, and Spark's state reader reads that one.

A copy in another place is read through a folder of links, because Spark stores the absolute path of a state's schema;
so is a checkpoint whose path has a space or a percent sign, which Spark's reader escapes and does not find.

On this machine a checkpoint replaces another by two renames. A kill between them leaves the old one under another name,
from which the next reader restores it; before the first rename the old one is untouched. Elsewhere a file names the
folder that counts, and is replaced last.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import (
    CURRENT,
    GENERATION,
    AnyStorage,
    Storage,
    checkpoint_at,
    is_local,
    location_of,
    query_of,
    write_whole,
)
from watersmeet.operators import state_schema_of
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.state.state_schema import StateSchema
from watersmeet.physical.change import NamedIdentity
from watersmeet.spark.exchange.stateful import prefixes
from watersmeet.spark.private.files import Folder, LocalFolder, delete_tree, folder_of
from watersmeet.spark.private.introspection import operator_name, suppress_logs
from watersmeet.spark.refusals import innermost_cause
from watersmeet.spark.state.owner import (
    COMMITS_FOLDER,
    OFFSETS_FOLDER,
    OWNER,
    Owner,
    batch_numbers,
    damage_refusal,
    is_whole,
)

_SCHEMA = re.compile(r'"file:(/[^"]*?)(/state/\d+/_stateSchema/[^"]*)"')
_LOG = "_metadata"


def readable_location(path: str, folder: Folder) -> str:
    """The folder where Spark finds a checkpoint with its schemas: the same if Spark can read it, else links to it."""
    if not isinstance(folder, LocalFolder):
        return path
    if not _is_misplaced(folder.path) and not _is_escaped(folder.path):
        return location_of(folder.path)
    made = Path(tempfile.mkdtemp(prefix="watersmeet-copy-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    _link(folder.path.absolute(), made)
    return location_of(made)


def _is_misplaced(checkpoint: Path) -> bool:
    """Whether a schema of a state is not where Spark would look for it."""
    texts = [file.read_text("utf-8", "replace") for file in checkpoint.glob(f"state/*/{_LOG}/v2/*") if file.is_file()]
    return any(not Path(place + name).exists() for text in texts for place, name in _SCHEMA.findall(text))


def _is_escaped(checkpoint: Path) -> bool:
    """Whether a path has characters that a URI writes in another way."""
    path = str(checkpoint.absolute())
    return quote(path, safe="/:=,+@~-._") != path


def _link(checkpoint: Path, made: Path) -> None:
    """Fill a folder with links to a checkpoint; the metadata of operators is rewritten."""
    for entry in checkpoint.iterdir():
        if entry.name != "state":
            (made / entry.name).symlink_to(entry)
    for operator in (checkpoint / "state").iterdir():
        own = made / "state" / operator.name
        own.mkdir(parents=True)
        for entry in operator.iterdir():
            if entry.name != _LOG:
                (own / entry.name).symlink_to(entry)
    for file in checkpoint.glob(f"state/*/{_LOG}/*/*"):
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".crc":
            target = made / file.relative_to(checkpoint)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text("utf-8", "replace")
            target.write_text(_SCHEMA.sub(lambda match: f'"file:{made}{match[2]}"', text), "utf-8")


COPY_AGAIN_HINT = "copy the checkpoint again: a copy made while its query ran may be incomplete."
OURS = "transformWithState"
"""The names in Spark of the operators that ours run in."""


@dataclass(frozen=True)
class StatefulOperator:
    """A stateful operator of a query: its number in the query, Spark's number, and its identity.

    ``prefix``: the prefix of its names in the state, where it shares an operator of Spark's with others.
    """

    number: int
    spark_number: int
    place: int
    query: NamedIdentity
    prefix: str = ""

    @property
    def stage(self) -> Identity:
        """Its stage of the query."""
        return self.query.identity["stages"][self.place]

    @property
    def identity(self) -> Identity:
        """The identity of the operator's state."""
        return self.stage["operator"]

    @cached_property
    def state_schema(self) -> StateSchema:
        """The state schema of the operator's family."""
        return state_schema_of(self.identity["family"])

    @property
    def name(self) -> str:
        """The display name of the operator."""
        sides = " and ".join(dict.fromkeys(self.side(port) for port in range(len(self.stage["ports"]))))
        return f"{self.identity['family']} of {sides}"

    def side(self, port: int) -> str:
        """The name of a side in the query: its alias, or those of all that is joined there."""
        return self.query.side(self.place, port)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that can be read: whose it is, and its last committed batch."""

    spark: SparkSession
    path: str
    owner: Owner
    batch: int
    folder: Folder = field(repr=False)

    @staticmethod
    def open(spark: SparkSession, place: str | Storage) -> Checkpoint:
        """The checkpoint at a path, or a refusal if it is not ours; a string is resolved as Spark does."""
        folder, path = folder_of(spark, place), str(place)
        text = folder.read(OWNER)
        if text is None:
            raise refuse("NO_CHECKPOINT", path=path, reason=f"there is no {OWNER} in it")
        owner = Owner.from_text(text, path, COPY_AGAIN_HINT)
        batch = last_committed(folder)
        if batch is None:
            raise refuse("NO_CHECKPOINT", path=path, reason="no batch has been committed yet")
        return Checkpoint(spark, path, owner, batch, folder)

    @cached_property
    def place(self) -> str:
        """The folder where Spark can read it."""
        return readable_location(self.path, self.folder)

    @cached_property
    def operators(self) -> tuple[StatefulOperator, ...]:
        """The operators of ours, in the order in which rows go through them."""
        # Spark has a reader of this, too, which fails where the newest commit is torn.
        numbers = sorted(int(name) for name in self.folder.names("state") if name.isdecimal())
        own_numbers = [number for number in numbers if self._is_ours(number)]
        # Spark numbers operators from the result on, and of one operator the inputs from left to right.
        stages = [(query, place) for query in self.owner.queries for place in _stages_from_result(query)]
        if len(own_numbers) != len(stages):
            reason = f"has {len(own_numbers)} operators, but its query has {len(stages)}"
            raise damage_refusal(self.path, f"{self.path}/state", reason, COPY_AGAIN_HINT)
        ours = [
            (query, place, number, prefix)
            for (query, last), number in zip(stages, own_numbers, strict=True)
            for place, prefix in _chain_members(query, last)
        ]
        ours.sort(key=lambda entry: (-self.owner.queries.index(entry[0]), entry[1]))
        return tuple(
            StatefulOperator(n, number, place, query, prefix) for n, (query, place, number, prefix) in enumerate(ours)
        )

    def read_store(self, spark_number: int) -> DataFrame:
        """The stored values of one of Spark's operators: a row per shard and name."""
        options = {"stateVarName": "state", "operatorId": str(spark_number), "batchId": str(self.batch)}
        # Asked for, since Spark 4.1 reads no state before what coordinates states is there, which comes with streams.
        _ = self.spark.streams
        with self.guard_reads():
            frame = self.spark.read.format("statestore").options(**options).load(self.place)
        return frame.selectExpr("key.shard AS shard", "user_map_key.name AS name", "user_map_value.value AS value")

    def values(self, operator: StatefulOperator) -> DataFrame:
        """The stored values of an operator, under its own names."""
        values = self.read_store(operator.spark_number)
        if not operator.prefix:
            return values
        own, begin = values.where(F.col("name").startswith(operator.prefix)), len(operator.prefix) + 1
        return own.withColumn("name", F.expr(f"substring(name, {begin})"))

    def guard_reads(self) -> _ReadGuard:
        """Around whatever reads the state: what Spark cannot read is refused with the place."""
        return _ReadGuard(self.path)

    def _is_ours(self, number: int) -> bool:
        """Whether an operator of Spark's is one that ours run in; what users do to a result may keep rows as well."""
        log = f"state/{number}/_metadata/v2"
        texts = (self.folder.read(f"{log}/{name}") or "" for name in self.folder.names(log))
        return any(operator_name(text).startswith(OURS) for text in texts)


class _ReadGuard:
    def __init__(self, path: str) -> None:
        self.path = path
        self.silence = suppress_logs()

    def __enter__(self) -> None:
        self.silence.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.silence.__exit__(None, None, None)
        if isinstance(error, Exception) and not isinstance(error, WatersmeetError):
            raise read_failure(self.path, error) from error


def read_failure(path: str, error: Exception) -> WatersmeetError:
    """The refusal of a state that Spark cannot read."""
    return damage_refusal(path, f"{path}/state", f"could not be read: {innermost_cause(error)}", COPY_AGAIN_HINT)


def last_committed(folder: Folder) -> int | None:
    """The newest batch whose plan and commit are both complete; None if no batch is complete."""
    planned = set(batch_numbers(folder, OFFSETS_FOLDER))
    for batch in reversed(batch_numbers(folder, COMMITS_FOLDER)):
        if (
            batch in planned
            and is_whole(folder, f"{OFFSETS_FOLDER}/{batch}")
            and is_whole(folder, f"{COMMITS_FOLDER}/{batch}")
        ):
            return batch
    return None


def _chain_members(query: NamedIdentity, last: int) -> Iterator[tuple[int, str]]:
    """The stages that share the operator of this one, which is the last of them, and what their names begin with."""
    group = next((group for group in query.identity.get("together", ()) if group[-1] == last), [last])
    return zip(group, prefixes(len(group)), strict=True)


def _stages_from_result(query: NamedIdentity) -> list[int]:
    """The positions of stages among those of a query, from the result on, each before its inputs.

    Of several that share an operator only the last is listed.
    """
    stages = query.identity["stages"]
    reads = [[read for port in stage["ports"] for read in port["reads"]] for stage in stages]
    below = [[int(read.removeprefix("stage ")) for read in own if read.startswith("stage ")] for own in reads]

    def from_here(place: int) -> list[int]:
        return [place, *(stage for inner in below[place] for stage in from_here(inner))]

    # A union may stand above several.
    inside = {place for own in below for place in own}
    within = {place for group in query.identity.get("together", ()) for place in group[:-1]}
    ordered = [stage_place for place in range(len(stages)) if place not in inside for stage_place in from_here(place)]
    return [place for place in ordered if place not in within]


_NEW, _BEFORE = ".new-", ".before-"


def prepare_staging(checkpoint: AnyStorage) -> AnyStorage:
    """The folder where the new one is made; nothing is there yet."""
    if not is_local(checkpoint):
        return checkpoint.with_name(f"{query_of(checkpoint)}{GENERATION}{uuid4().hex[:8]}")
    made = checkpoint.with_name(f"{_NEW}{checkpoint.name}")
    shutil.rmtree(made, ignore_errors=True)
    return made


def final_place(made: Storage, checkpoint: Storage) -> Storage:
    """The place of the new one: in the place of the old one, or, where folders cannot be renamed, where it is."""
    return checkpoint.absolute() if is_local(checkpoint) else made


def swap(made: Storage, checkpoint: Storage) -> None:
    """Put the new one in the place of the old one, which is deleted."""
    if not is_local(checkpoint):
        query, folder = query_of(checkpoint), checkpoint.parent
        # One file, replaced at once, says which of them counts.
        write_whole(folder / f"{query}{CURRENT}", f"{made.name}\n")
        for old in list(folder.iterdir()):
            if query_of(old) == query and old.name != made.name and old.suffix != CURRENT:
                delete_tree(old)
        return
    assert isinstance(made, Path)
    before = _before(checkpoint)
    shutil.rmtree(before, ignore_errors=True)
    checkpoint.rename(before)
    made.rename(checkpoint)
    shutil.rmtree(before, ignore_errors=True)


def discard_staging(made: Storage, checkpoint: Storage) -> None:
    """Delete the new one, unless it has taken the place of the old one by now."""
    if is_local(made) or checkpoint_at(checkpoint.parent.parent, query_of(checkpoint)) != made:
        delete_tree(made)


def recover_swap(checkpoint: Path) -> None:
    """Restore the old checkpoint if a process was killed between the two renames."""
    before = _before(checkpoint)
    if before.exists() and not checkpoint.exists():
        before.rename(checkpoint)


def recover_swaps(folder: Path) -> None:
    """The same for all checkpoints of a folder."""
    for before in folder.glob(f"{_BEFORE}*"):
        recover_swap(folder / before.name.removeprefix(_BEFORE))


def clear_leftovers(checkpoint: Path) -> None:
    """Restore the old checkpoint, and delete unfinished ones; the caller must hold the lock."""
    recover_swap(checkpoint)
    for leftover in (_before(checkpoint), checkpoint.with_name(f"{_NEW}{checkpoint.name}")):
        shutil.rmtree(leftover, ignore_errors=True)


def _before(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{_BEFORE}{checkpoint.name}")
