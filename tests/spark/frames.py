"""Small DataFrames as batches and as streams of files, and results as multisets."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from watersmeet.operators.core.operator import END_OF_INPUT

_NUMBERS = count(1)


def rows_of(frame: DataFrame) -> Counter[str]:
    """The rows of a batch DataFrame, by position, as a multiset in which NaN is itself and -0.0 is not 0.0."""
    return count_rows(frame.collect())


def count_rows(rows: Sequence[Row]) -> Counter[str]:
    """Rows as a multiset."""
    return Counter(repr(tuple(row)) for row in rows)


def types_of(frame: DataFrame) -> list[tuple[str, bool]]:
    """Type and nullability of every column, by position; inside a type nullability is part of it."""
    return [(field.dataType.json(), field.nullable) for field in frame.schema]


def stream_files(folder: Path, batches: Sequence[DataFrame], *, per_trigger: int = 1) -> DataFrame:
    """The same rows as a stream of Parquet files, one file per batch, in this order."""
    for batch in batches:
        add_file(folder, batch)
    reader = batches[0].sparkSession.readStream.schema(batches[0].schema)
    return reader.option("maxFilesPerTrigger", str(per_trigger)).parquet(str(folder))


def add_file(folder: Path, frame: DataFrame) -> None:
    """Write a DataFrame as one more file of a streaming folder."""
    number = next(_NUMBERS)
    hidden = folder.parent / f"_{folder.name}-{number}"
    frame.coalesce(1).write.parquet(str(hidden))
    folder.mkdir(parents=True, exist_ok=True)
    (written,) = hidden.glob("*.parquet")
    # The file source takes files in the order of their times.
    moment = 1_700_000_000 + number
    os.utime(written, (moment, moment))
    written.rename(folder / f"{number:05}.parquet")


def end_of_input(spark: SparkSession, folder: Path, *columns: str, batch: int = 0) -> DataFrame:
    """Marks that declare the inputs of a join finished with that batch."""
    folder.mkdir(parents=True)
    names = columns or ("left.t", "right.t")
    for number in range(batch + 1):
        value = END_OF_INPUT if number == batch else -END_OF_INPUT
        lines = [json.dumps({"column": column, "value": value}) for column in names]
        file = folder / f"{number}.json"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    reader = spark.readStream.schema("column STRING, value BIGINT").option("maxFilesPerTrigger", "1")
    return reader.json(str(folder))


def run_all(frame: DataFrame, checkpoint: Path, mode: str = "append") -> list[list[Row]]:
    """The rows of every micro-batch of a stream, until what is there now is processed."""
    found: dict[int, list[Row]] = {}

    def collect(batch: DataFrame, number: int) -> None:
        found[number] = batch.collect()

    writer: Any = frame.writeStream.foreachBatch(collect).outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [found[number] for number in sorted(found)]


def all_rows(frame: DataFrame, checkpoint: Path) -> Counter[str]:
    """All rows of a stream as a multiset."""
    return count_rows([row for batch in run_all(frame, checkpoint) for row in batch])
