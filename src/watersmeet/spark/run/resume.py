"""Sinks that are not where their checkpoint is, after one of the two was put back from an older copy."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import SparkSession

from watersmeet.errors import Place, refuse
from watersmeet.spark.sinks.positions import BatchPlans, sink_ahead
from watersmeet.spark.sinks.table_sinks import SinkTarget

SinkAhead = Literal["refuse", "rewind"]
"""What becomes of a sink that has batches which its checkpoint does not have. ``rewind``: what these wrote is taken
back, where that can be done exactly."""


def is_ahead(target: SinkTarget, spark: SparkSession, ahead: SinkAhead, place: Place | None) -> bool:
    """Whether a sink is to be rewound before the query starts; refused if it is ahead, or behind, and cannot be."""
    plans = BatchPlans.of(spark, target.checkpoint)
    position = target.format.position(target, spark) if plans.is_visible else None
    if position is None:
        return False
    difference, hint = plans.difference(position), target.format.recovery_hint(target, plans.last_planned)
    if difference is not None:
        can_rewind = target.format.can_rewind(target, spark)
        if can_rewind and ahead == "rewind":
            return True
        resume = "run it with `--sink-resume`, which removes later batches from the sink; or "
        raise sink_ahead(target.sink.name, difference, f"{resume if can_rewind else ''}{hint}", place)
    if position.batch < plans.last_done and target.format.has_every_batch:
        parameters = {"batch": position.batch, "done": plans.last_done, "hint": hint}
        raise refuse("SINK_BEHIND_CHECKPOINT", place, target=target.sink.name, **parameters)
    return False


def rewind(target: SinkTarget, spark: SparkSession) -> str:
    """Take back what a sink has of batches that the checkpoint does not have, and say so."""
    target.format.rewind(target, spark)
    return f"{target.sink.name} is as it was after batch {BatchPlans.of(spark, target.checkpoint).last_planned}."
