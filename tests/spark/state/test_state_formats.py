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
from tests.checkpoints.archives import HERE, REWORDED, add_rows, extract, run, sink_rows
from typer.testing import CliRunner

from watersmeet.cli.app import app

pytestmark = pytest.mark.spark


ALL = os.environ.get("WATERSMEET_CASES") == "all"
ARCHIVES = sorted(HERE.glob("*.tar.gz"))[0 if ALL else -1 :]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_an_archived_checkpoint_of_every_family_is_continued(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    project = extract(archive, tmp_path)
    before = sink_rows(project)
    add_rows(project, 1)
    run(project, spark, project / REWORDED.name)
    after = sink_rows(project)
    assert {name: rows - after[name] for name, rows in before.items()} == {name: Counter() for name in before}
    found = {name: rows - before[name] for name, rows in after.items()}
    assert found == {name: Counter(rows) for name, rows in json.loads((project / "expected.json").read_text()).items()}


@pytest.mark.usefixtures("spark")
def test_null_keys_of_an_earlier_version_are_refused_and_the_hint_works(tmp_path: Path) -> None:
    """Two shards of a LEFT JOIN of tables `ON try_cast(a.code AS BIGINT) = b.id`, with the codes `n/a`, `x` and 7."""
    project = extract(HERE / "earlier" / "null-keys.tar.gz", tmp_path)
    (project / "data" / "a" / "1.json").write_text('{"code": "n/a", "_change": "-"}\n{"code": "x", "n": 5}\n')

    def invoke() -> tuple[int, str]:
        said = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["run", str(project), "--once"])
        return said.exit_code, " ".join(said.output.split())

    def rows(folder: str) -> Counter[tuple[str, int, str | None]]:
        shown = Counter[tuple[str, int, str | None]]()
        for file in (project / folder).rglob("*.json"):
            for row in map(json.loads, file.read_text().splitlines()):
                shown[row["code"], row["n"], row.get("name")] += 1 if row["_change"] == "+" else -1
        return +shown

    before = rows("out")
    assert before == Counter([("n/a", 1, None), ("x", 2, None), ("7", 3, "seven")])
    for _ in range(2):
        code, said = invoke()
        assert code != 0 and "an earlier version of Watersmeet kept rows with a NULL key in any shard" in said, said
        assert "Hint: give the query a new checkpoint and a new folder or table to write to." in said
        assert rows("out") == before
    (project / "watersmeet.yml").write_text("name: codes\nstorage: another\n")
    query = project / "sql" / "q.sql"
    query.write_text(query.read_text().replace("path 'out'", "path 'again'"))
    assert invoke()[0] == 0
    assert rows("again") == Counter([("x", 5, None), ("7", 3, "seven")])
