"""Put jars beside those of the installed Spark: of formats by name, and of packages by their coordinates in Maven.

Every session then has them, executors too, and nothing is fetched when a query starts:

    python deploy/add_jars.py kafka delta org.apache.hadoop:hadoop-aws:3.5.0
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.formats.packages import connector_of
from watersmeet.spark.session.jars import fetch_jars


def add_jars(names: Sequence[str], folder: Path) -> list[str]:
    """The file names of the jars that were added to a folder; those that it has already stay."""
    packages = [name for name in names if ":" in name]
    formats = [name for name in names if ":" not in name]
    if unknown := [name for name in formats if connector_of(name, pyspark.__version__) is None]:
        raise SystemExit(f"No package is known for {', '.join(unknown)} on Spark {pyspark.__version__}.")
    jars = [Path(jar) for jar in ws.jars(*formats).split(",") if jar] if formats else []
    jars += fetch_jars(packages, os.environ, is_whole=False) if packages else []
    added = [jar for jar in jars if not (folder / jar.name).exists()]
    for jar in added:
        shutil.copyfile(jar, folder / jar.name)
    return [jar.name for jar in added]


if __name__ == "__main__":
    try:
        for name in add_jars(sys.argv[1:], Path(pyspark.__file__).parent / "jars"):
            print(name)
    except WatersmeetError as error:
        raise SystemExit(str(error)) from None
