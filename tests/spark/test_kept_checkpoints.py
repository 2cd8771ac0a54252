"""A checkpoint that was written by the first version of a format is continued by this one, however it is worded.

That of the latest format with every run of the tests; those of all formats with ``WATERSMEET_CASES=all``, as in
`make cases` and in the matrix.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.checkpoints.kept import HERE, REWORDED, add_rows, extract, run, written

pytestmark = pytest.mark.spark


ALL = os.environ.get("WATERSMEET_CASES") == "all"
ARCHIVES = sorted(HERE.glob("*.tar.gz"))[0 if ALL else -1 :]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_kept_checkpoint_of_every_family_is_continued(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    project = extract(archive, tmp_path)
    before = written(project)
    add_rows(project, 1)
    run(project, spark, project / REWORDED.name)
    after = written(project)
    assert {name: rows - after[name] for name, rows in before.items()} == {name: Counter() for name in before}
    found = {name: rows - before[name] for name, rows in after.items()}
    assert found == {name: Counter(rows) for name, rows in json.loads((project / "expected.json").read_text()).items()}
