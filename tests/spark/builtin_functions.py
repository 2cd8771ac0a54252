"""What ``functions.txt`` must say, asked of Spark; ``python -m tests.spark.builtin_functions`` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from watersmeet.spark.private.introspection import suppress_logs

FILE = Path(__file__).parents[2] / "src" / "watersmeet" / "functions.txt"
MOST = 24
"""More arguments than any function takes that does not take any number of them."""


def names(spark: SparkSession) -> list[str]:
    """All functions that are called by a name."""
    return [str(row[0]) for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if re.fullmatch(r"\w+", str(row[0]))]


def counts(spark: SparkSession, name: str) -> list[int]:
    """The numbers of arguments that Spark names when it gets too many, if it takes all of them; none: it tells none."""
    told = _valid_counts(spark, name, MOST)
    # Some names are words of the grammar, which counts otherwise: only what Spark says about each number holds.
    return [count for count in told if not _valid_counts(spark, name, count)]


def _valid_counts(spark: SparkSession, name: str, count: int) -> list[int]:
    try:
        with suppress_logs():
            _ = spark.sql(f"SELECT `{name}`({', '.join(['NULL'] * count)})").schema
    except AnalysisException as error:
        if str(error.getCondition()).startswith("WRONG_NUM_ARGS"):
            expected = str((error.getMessageParameters() or {}).get("expectedNum", ""))
            is_list = re.fullmatch(r"[\d\[\], ]+", expected) is not None
            return [int(number) for number in re.findall(r"\d+", expected)] if is_list else []
    except PySparkException:
        pass
    return []


if __name__ == "__main__":
    from watersmeet.spark.session import session

    spark = session()
    lines = (" ".join([name, *map(str, counts(spark, name))]) for name in names(spark))
    FILE.write_text("".join(f"{line}\n" for line in lines), "utf-8")
