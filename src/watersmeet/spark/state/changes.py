"""Queries that have changed since their checkpoint was written: the effects, and whether they are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pyspark.sql import SparkSession

from watersmeet.errors import refuse
from watersmeet.locations import Storage
from watersmeet.operators import change_rules, table_operators
from watersmeet.operators.core.identity import Identity
from watersmeet.physical.change import ChangeEffect, WatermarkValues, classify_edit
from watersmeet.physical.identity import changes_outcomes
from watersmeet.spark.private.files import folder_of
from watersmeet.spark.private.introspection import set_accepted_states
from watersmeet.spark.state.checkpoint import Checkpoint, last_committed
from watersmeet.spark.state.inspect import State
from watersmeet.spark.state.owner import Owner

Accepting = Literal["refuse", "accept", "rebuild", "tell"]
"""The treatment of a changed query. ``accept``: continue with its state, whatever the effects. ``rebuild``: rebuild its
state. ``tell``: report which of these is possible.
"""


def continue_checkpoint(
    spark: SparkSession,
    checkpoint: str | Storage,
    was: Owner,
    now: Owner,
    accepting: Accepting,
    restart_hint: str,
    accept_hint: str,
    rebuild: str = "",
) -> tuple[Owner, tuple[ChangeEffect, ...]]:
    """The owner of the checkpoint once these queries continue it, and the effects; ``was``, if they are the same.

    An edit without effects on the state is recorded, too, if it changes what becomes of rows.

    Refused for other queries, and for effects that are not accepted; ``accept_hint`` says how to accept them, and
    ``rebuild`` how to rebuild a state.
    """
    if not was.check(now, str(checkpoint), restart_hint, change_rules(), None, table_operators(), rebuild):
        return _with_outcomes(spark, checkpoint, was, now), ()
    # A query that has never finished a batch has nothing in its state.
    batch = last_committed(folder_of(spark, checkpoint))
    state = None if batch is None else State(Checkpoint.open(spark, checkpoint))
    follows = was.check(
        now, str(checkpoint), restart_hint, change_rules(), None if state is None else _watermarks_by_stage(state)
    )
    if accepting == "refuse" or not set_accepted_states(spark, {}):
        consequences = "; ".join(dict.fromkeys(effect.consequence for effect in follows))
        changed = "; ".join(dict.fromkeys(effect.change for effect in follows))
        hint = (
            accept_hint
            if accepting == "refuse"
            else f"Spark Connect cannot accept the change: undo it, or {restart_hint}"
        )
        raise refuse(
            "CHECKPOINT_OF_A_CHANGED_QUERY", checkpoint=checkpoint, follows=consequences, difference=changed, hint=hint
        )
    fingerprints_left = {} if state is None else fingerprints(state)
    changed = was.changed if batch is None else batch
    return replace(was, queries=now.queries, accepted={**fingerprints_left, **was.accepted}, changed=changed), follows


def take_sinks(
    name: str, checkpoint: str, was: Owner, sinks: Sequence[str], accepting: Accepting, accept_hint: str
) -> tuple[ChangeEffect, ...]:
    """The effects of sinks that a checkpoint did not write to before, or a refusal if they are not accepted."""
    before = was.sinks or (name,)
    effects = tuple(
        ChangeEffect(f"{sink} gets the rows of this query, too", f"{sink} gets rows from now on, and none from before")
        for sink in sinks
        if sink not in before
    )
    if effects and accepting == "refuse":
        consequences, changed = "; ".join(e.consequence for e in effects), "; ".join(e.change for e in effects)
        parameters = {"follows": consequences, "difference": changed, "hint": accept_hint}
        raise refuse("CHECKPOINT_OF_A_CHANGED_QUERY", checkpoint=checkpoint, **parameters)
    return effects


def _with_outcomes(spark: SparkSession, checkpoint: str | Storage, was: Owner, now: Owner) -> Owner:
    """The owner of the same state with what now becomes of rows; ``was``, if that is the same."""
    pairs = [(before.outcomes, after.outcomes) for before, after in zip(was.queries, now.queries, strict=True)]
    if all(before == after for before, after in pairs):
        return was
    is_known = any(changes_outcomes(before, after) for before, after in pairs)
    batch = last_committed(folder_of(spark, checkpoint)) if is_known else None
    return replace(was, queries=now.queries, changed=was.changed if batch is None else batch)


def rebuild_reason(was: Owner, now: Owner, accepting: Accepting) -> str | None:
    """The change because of which a state is to be rebuilt; None: no change, or no rebuild.

    With ``rebuild`` the state is rebuilt even where it could continue.
    """
    if accepting not in ("rebuild", "tell") or len(was.queries) != len(now.queries):
        return None
    for before, after in zip(was.queries, now.queries, strict=True):
        edit = classify_edit(before, after, change_rules(), None, table_operators())
        if edit.kind == "rebuilt" or (edit.kind == "continued" and accepting == "rebuild"):
            return edit.difference or "; ".join(dict.fromkeys(effect.change for effect in edit.effects))
    return None


def _watermarks_by_stage(state: State) -> list[list[WatermarkValues]]:
    """The watermarks that each stage of each query has received: the latest of its shards."""
    queries = state.checkpoint.owner.queries
    by_stage = [[dict[str, int]() for _ in query.identity["stages"]] for query in queries]
    for operator in state.checkpoint.operators:
        latest = by_stage[queries.index(operator.query)][operator.place]
        for directory in state.directories[operator.number]:
            for name, watermark in directory.received.items():
                latest[name] = max(watermark, latest.get(name, watermark))
    return [list[WatermarkValues](stages) for stages in by_stage]


def fingerprints(state: State) -> dict[str, Identity]:
    """By what the shards of all operators were left, and what that was."""
    by_fingerprint: dict[str, Identity] = {}
    for operator in state.checkpoint.operators:
        with state.checkpoint.guard_reads():
            rows = state.checkpoint.values(operator).where("name = 'fingerprint'").select("value").distinct().collect()
        by_fingerprint |= {bytes(row.value).decode(): operator.identity for row in rows}
    return by_fingerprint
