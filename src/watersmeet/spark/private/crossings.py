"""What crosses from Spark to Python in a query, and how much of it at once.

Why: after each row that Spark hands to Python it asks how large the Arrow batch has become, a third of the time of such
a task. It does not ask where ``maxBytesPerBatch`` is the largest integer of Java; then the number of records alone
bounds a batch, of all that crosses in the query. Uses: that setting, which is internal, and that it and the one of
records become properties of tasks; of a query before its start the nodes of the analysed plan and their patterns,
through the JVM of a classic session. Seen in: 4.0 to 4.3. Missing: it cannot be told what crosses, and Spark asks as
ever; or a task does not know of the setting, and there are no spacers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNLIMITED = str(2**31 - 1)
"""With so many bytes per batch Spark does not ask how many there are."""
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_USUAL = "10000"
_BYTES_PER_BATCH = 64 * 2**20
"""As Spark has it since 4.1; before, it was more."""
_LEAST = 1024
"""With less room there would be more spacers than records are worth."""
_CALLS = ("MapInArrow", "MapInPandas", "TransformWithStateInPySpark")
_SINKS = frozenset(["console", "csv", "delta", "iceberg", "json", "kafka", "memory", "noop", "orc", "parquet", "text"])
"""The formats that are known to be written without Python."""
IN_BATCHES = "#batches "
"""What stands in place of a format where a function gets every batch, before the module of that function."""
_OURS = f"{IN_BATCHES}watersmeet."


@dataclass(frozen=True)
class PythonTransfer:
    """Rows that are handed to a function in Python, and those that it gives."""

    input_schema: StructType
    output_schema: StructType


def room(records: str | None) -> int | None:
    """How many bytes there may be per record, where a batch has at most so many records; None: too little, or no limit.

    >>> room("16384"), room("0")
    (4096, None)
    """
    most = int(records or _USUAL)
    return _BYTES_PER_BATCH // most if 0 < most <= _BYTES_PER_BATCH // _LEAST else None


def room_here() -> int | None:
    """In a task of a query: the `room` of a record; None where Spark itself counts bytes."""
    context = TaskContext.get()
    if context is None or context.getLocalProperty(BYTES) != UNLIMITED:
        return None
    return room(context.getLocalProperty(RECORDS))


def python_transfers(frame: Any, sink: str) -> tuple[PythonTransfer, ...] | None:
    """All that crosses to Python when this frame is written to a format; None: that cannot be told.

    What functions of ours do with a batch may be that its rows cross.
    """
    is_ours = sink.startswith(_OURS)
    if not hasattr(frame, "_jdf") or not (is_ours or sink.lower() in _SINKS):
        return None
    try:
        patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        transfers = [*_in_plan(frame._jdf.queryExecution().analyzed(), (patterns.PYTHON_UDF(), patterns.GENERATE()))]
    except Exception:  # our own, of Java, or of the library that speaks to it
        return None
    return (*transfers, PythonTransfer(frame.schema, StructType())) if is_ours else tuple(transfers)


def _in_plan(node: Any, patterns: tuple[Any, Any]) -> Iterator[PythonTransfer]:
    """What crosses in a part of a plan; an error where Python is called in another way than by whole rows."""
    if not _has(node, patterns):
        return
    kind = node.getClass().getSimpleName()
    if kind in _CALLS:
        yield PythonTransfer(
            *(StructType.fromJson(json.loads(plan_node.schema().json())) for plan_node in (node.child(), node))
        )
    elif any(_has(plan_node, patterns) for plan_node in _scala_items(node.expressions())) or _makes_a_table(kind, node):
        raise LookupError(kind)
    for child in _scala_items(node.children()):
        yield from _in_plan(child, patterns)


def _has(part: Any, patterns: tuple[Any, Any]) -> bool:
    return any(part.containsPattern(pattern) for pattern in patterns)


def _makes_a_table(kind: str, node: Any) -> bool:
    """Whether a function in Python makes rows of a row there, which no pattern tells."""
    return kind == "Generate" and "Python" in node.generator().getClass().getSimpleName()


def _scala_items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(n) for n in range(sequence.size()))
