"""A checkpoint as it was when its last batch was committed, whether or not its query runs.

A copy of a running query's checkpoint may have the plan of a batch that nobody committed, and files that are torn: the
newest batch whose commit and plan are whole counts, and Spark's reader of states is asked for that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.families import keeping_of
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import Keeping
from watersmeet.physical.difference import Told
from watersmeet.spark.exchange.stateful import prefixes
from watersmeet.spark.private.files import Folder, folder_of
from watersmeet.spark.private.told import operator_name, unlogged
from watersmeet.spark.refusals import innermost
from watersmeet.spark.run.damage import DONE, PLANNED, damaged, is_whole, numbers_in
from watersmeet.spark.run.owner import OWNER, Owner
from watersmeet.spark.state.copies import readable

ANEW = "copy the checkpoint once more: what was copied while its query ran may be torn."
OURS = "transformWithState"
"""How Spark calls the operators that ours run in."""


@dataclass(frozen=True)
class Operator:
    """A stateful operator of a query: its number among those of the query, Spark's for it, and what it is.

    ``prefix``: what its names in the state begin with, where others share an operator of Spark's with it.
    """

    number: int
    spark_number: int
    place: int
    told: Told
    prefix: str = ""

    @property
    def stage(self) -> Identity:
        """Its stage of the query."""
        return self.told.identity["stages"][self.place]

    @property
    def identity(self) -> Identity:
        """What its state means."""
        return self.stage["operator"]

    @cached_property
    def keeping(self) -> Keeping:
        """What its family keeps."""
        return keeping_of(self.identity["family"])

    @property
    def name(self) -> str:
        """What people call it."""
        sides = " and ".join(dict.fromkeys(self.side(port) for port in range(len(self.stage["ports"]))))
        return f"{self.identity['family']} of {sides}"

    def side(self, port: int) -> str:
        """What a side is called in the query: its alias, or those of all that is joined there."""
        return self.told.side(self.place, port)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that can be read: whose it is, and its last committed batch."""

    spark: SparkSession
    path: str
    owner: Owner
    batch: int
    folder: Folder = field(repr=False)

    @staticmethod
    def open(spark: SparkSession, place: str | Path) -> Checkpoint:
        """The checkpoint at a path, or the refusal of what is none of ours; a text is read as Spark reads it."""
        folder, path = folder_of(spark, place), str(place)
        text = folder.read(OWNER)
        if text is None:
            raise refuse("NO_CHECKPOINT", path=path, reason=f"there is no {OWNER} in it")
        owner = Owner.from_text(text, path, ANEW)
        batch = last_committed(folder)
        if batch is None:
            raise refuse("NO_CHECKPOINT", path=path, reason="no batch has been committed yet")
        return Checkpoint(spark, path, owner, batch, folder)

    @cached_property
    def place(self) -> str:
        """Where Spark can read it."""
        return readable(self.path, self.folder)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of ours, in the order in which rows go through them."""
        # Spark has a reader of this, too, which fails where the newest commit is torn.
        numbers = sorted(int(name) for name in self.folder.names("state") if name.isdecimal())
        found = [number for number in numbers if self._is_ours(number)]
        # Spark numbers operators from the result on, and of one operator the inputs from left to right.
        stages = [(told, place) for told in self.owner.queries for place in _from_the_result(told)]
        if len(found) != len(stages):
            reason = f"has {len(found)} operators, and its query {len(stages)}"
            raise damaged(self.path, f"{self.path}/state", reason, ANEW)
        ours = [
            (told, place, number, prefix)
            for (told, last), number in zip(stages, found, strict=True)
            for place, prefix in _sharing(told, last)
        ]
        ours.sort(key=lambda one: (-self.owner.queries.index(one[0]), one[1]))
        return tuple(Operator(n, number, place, told, prefix) for n, (told, place, number, prefix) in enumerate(ours))

    def stored(self, spark_number: int) -> DataFrame:
        """What is stored of an operator of Spark's: a row per shard and name."""
        options = {"stateVarName": "state", "operatorId": str(spark_number), "batchId": str(self.batch)}
        # Asked for, since Spark 4.1 reads no state before what coordinates states is there, which comes with streams.
        _ = self.spark.streams
        with self.reading():
            frame = self.spark.read.format("statestore").options(**options).load(self.place)
        return frame.selectExpr("key.shard AS shard", "user_map_key.name AS name", "user_map_value.value AS value")

    def values(self, operator: Operator) -> DataFrame:
        """What is stored of an operator, by the names that it has there alone."""
        values = self.stored(operator.spark_number)
        if not operator.prefix:
            return values
        own, begin = values.where(F.col("name").startswith(operator.prefix)), len(operator.prefix) + 1
        return own.withColumn("name", F.expr(f"substring(name, {begin})"))

    def reading(self) -> _Reading:
        """Around whatever reads the state: what Spark cannot read is refused with the place."""
        return _Reading(self.path)

    def _is_ours(self, number: int) -> bool:
        """Whether an operator of Spark's is one that ours run in; what users do to a result may keep rows as well."""
        log = f"state/{number}/_metadata/v2"
        texts = (self.folder.read(f"{log}/{name}") or "" for name in self.folder.names(log))
        return any(operator_name(text).startswith(OURS) for text in texts)


class _Reading:
    def __init__(self, path: str) -> None:
        self.path = path
        self.silence = unlogged()

    def __enter__(self) -> None:
        self.silence.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.silence.__exit__(None, None, None)
        if isinstance(error, Exception) and not isinstance(error, WatersmeetError):
            raise unread(self.path, error) from error


def unread(path: str, error: Exception) -> WatersmeetError:
    """The refusal of a state that Spark cannot read."""
    return damaged(path, f"{path}/state", f"could not be read: {innermost(error)}", ANEW)


def last_committed(folder: Folder) -> int | None:
    """The newest batch of which both the plan and the commit are whole; None: there is none."""
    planned = set(numbers_in(folder, PLANNED))
    for batch in reversed(numbers_in(folder, DONE)):
        if batch in planned and is_whole(folder, f"{PLANNED}/{batch}") and is_whole(folder, f"{DONE}/{batch}"):
            return batch
    return None


def _sharing(told: Told, last: int) -> Iterator[tuple[int, str]]:
    """The stages that share the operator of this one, which is the last of them, and what their names begin with."""
    group = next((group for group in told.identity.get("together", ()) if group[-1] == last), [last])
    return zip(group, prefixes(len(group)), strict=True)


def _from_the_result(told: Told) -> list[int]:
    """The places of stages among those of a query, from the result on, each before what it reads.

    Of several that share an operator only the last is there.
    """
    stages = told.identity["stages"]
    reads = [[read for port in stage["ports"] for read in port["reads"]] for stage in stages]
    below = [[int(read.removeprefix("stage ")) for read in own if read.startswith("stage ")] for own in reads]

    def from_here(place: int) -> list[int]:
        return [place, *(one for inner in below[place] for one in from_here(inner))]

    # A union may stand above several.
    inside = {place for own in below for place in own}
    within = {place for group in told.identity.get("together", ()) for place in group[:-1]}
    found = [one for place in range(len(stages)) if place not in inside for one in from_here(place)]
    return [place for place in found if place not in within]
