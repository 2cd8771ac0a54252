"""Queries that have changed since their checkpoint was written: what follows, and whether somebody accepts it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from watersmeet.errors import refuse
from watersmeet.families import changing, tables
from watersmeet.joins.core.identity import Identity
from watersmeet.physical.change import Follows, Marks, edit_of
from watersmeet.spark.private.files import folder_of
from watersmeet.spark.private.told import tell_workers
from watersmeet.spark.run.owner import Owner
from watersmeet.spark.state.checkpoint import Checkpoint, last_committed
from watersmeet.spark.state.look import State

Accepting = Literal["refuse", "accept", "rebuild", "tell"]
"""What becomes of a query that has changed. ``accept``: it goes on with its state, whatever follows from that.
``rebuild``: its state is made anew. ``tell``: whichever of these can be done, for somebody who asks which it is."""


def continued(
    spark: SparkSession,
    checkpoint: str | Path,
    was: Owner,
    now: Owner,
    accepting: Accepting,
    anew: str,
    how: str,
    rebuild: str = "",
) -> tuple[Owner, tuple[Follows, ...]]:
    """Whose the checkpoint is once these queries go on with it, and what follows; ``was``, if they are the same.

    Refused, if they are others, or if something follows that nobody has accepted; ``how`` says how that is done, and
    ``rebuild`` how a state is made anew.
    """
    if not was.check(now, str(checkpoint), anew, changing(), None, tables(), rebuild):
        return was, ()
    # A query that has never finished a batch has nothing in its state.
    has_batch = last_committed(folder_of(spark, checkpoint)) is not None
    state = State(Checkpoint.open(spark, checkpoint)) if has_batch else None
    follows = was.check(now, str(checkpoint), anew, changing(), None if state is None else _marks(state))
    if accepting == "refuse" or not tell_workers(spark, {}):
        told = "; ".join(dict.fromkeys(one.consequence for one in follows))
        changed = "; ".join(dict.fromkeys(one.change for one in follows))
        hint = how if accepting == "refuse" else f"through Spark Connect it cannot be accepted: undo it, or {anew}"
        raise refuse(
            "CHECKPOINT_OF_A_CHANGED_QUERY", checkpoint=checkpoint, follows=told, difference=changed, hint=hint
        )
    left = {} if state is None else fingerprints(state)
    return replace(was, queries=now.queries, accepted={**left, **was.accepted}), follows


def to_rebuild(was: Owner, now: Owner, accepting: Accepting) -> str | None:
    """What has changed of queries whose state is to be made anew; None: nothing has, or it is not.

    Who wants to have it anew gets it so, also where it could go on.
    """
    if accepting not in ("rebuild", "tell") or len(was.queries) != len(now.queries):
        return None
    for before, after in zip(was.queries, now.queries, strict=True):
        found = edit_of(before, after, changing(), None, tables())
        if found.kind == "rebuilt" or (found.kind == "continued" and accepting == "rebuild"):
            return found.difference or "; ".join(dict.fromkeys(one.change for one in found.follows))
    return None


def _marks(state: State) -> list[list[Marks]]:
    """The marks that each stage of each query has received: the latest of its shards."""
    queries = state.checkpoint.owner.queries
    found = [[dict[str, int]() for _ in told.identity["stages"]] for told in queries]
    for operator in state.checkpoint.operators:
        latest = found[queries.index(operator.told)][operator.place]
        for directory in state.directories[operator.number]:
            for name, mark in directory.received.items():
                latest[name] = max(mark, latest.get(name, mark))
    return [list[Marks](stages) for stages in found]


def fingerprints(state: State) -> dict[str, Identity]:
    """By what the shards of all operators were left, and what that was."""
    found: dict[str, Identity] = {}
    for operator in state.checkpoint.operators:
        with state.checkpoint.reading():
            rows = state.checkpoint.values(operator).where("name = 'fingerprint'").select("value").distinct().collect()
        found |= {bytes(row.value).decode(): operator.identity for row in rows}
    return found
