"""The floor: an operator that does nothing, compiled as a join is. It tells what Spark's plumbing costs by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from watersmeet.operators import OPERATORS
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.operator import Emission, Port, StateStore, StepReport, StreamOperator, Watermarks
from watersmeet.physical import JoinPlan, plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.spark.compile.compiler import Compiler
from watersmeet.spark.connectors.reading import find_unread, read_sources


@dataclass(frozen=True, kw_only=True)
class Floor(StreamOperator):
    """An operator that lets every row arrive and does nothing with it."""

    name: ClassVar[str] = "floor"

    @property
    def ports(self) -> tuple[Port, ...]:
        """Two, of which nothing is shown."""
        return (Port(()), Port(()))

    @property
    def identity(self) -> Identity:
        """It keeps nothing."""
        return {"family": self.name}

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Count the rows and forget them."""
        rows = tuple(arrivals[port].num_rows if port in arrivals else 0 for port in (0, 1))
        return Emission(report=StepReport(rows=(rows[0], rows[1])))


def floor_query(spark: SparkSession, text: str, shards: int) -> DataFrame:
    """The query of a script of one join, with the floor in the place of its operator."""
    script = read_script(text)
    plan = plan_query(analyze(script)[0], OPERATORS)
    assert isinstance(plan.relation, JoinPlan)
    without = replace(plan, relation=replace(plan.relation, operator=Floor()))
    frames, files = read_sources(spark, script, {}), find_unread(spark, script, {})
    return Compiler(spark, frames, shards, files=files).compile_query(without).result
