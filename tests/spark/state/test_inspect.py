"""Looking into states on Spark: what is kept, read as rows, and checked; also in a copy that was torn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.checkpoints.archives import HERE, QUERIES, add_rows, extract, run, sink_rows
from tests.cli.test_commands import watersmeet

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.spark.state.moving import export_checkpoint, import_checkpoint

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of every family, as the first version of a format wrote them."""
    return extract(HERE / "format-2.tar.gz", tmp_path_factory.mktemp("kept")) / "storage" / "checkpoints"


TEN = 1_714_557_600
"""Ten o'clock of that day, in seconds since 1970."""


def test_a_copy_of_a_running_querys_checkpoint_is_read(spark: SparkSession, checkpoints: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoints / "interval_left", tmp_path / "copy")
    # A batch that was planned and not committed, and a commit that was torn.
    (copy / "offsets" / "1").write_text((copy / "offsets" / "0").read_text())
    (copy / "commits" / "1").write_text("v1\n{")
    # The checkpoint that it was copied from is gone.
    (operator,) = copy.glob("state/0/_metadata/v2/0")
    operator.write_text(operator.read_text().replace(str(checkpoints), "/gone"))
    state = ws.state(copy, spark)
    assert (state.batch, state.shards) == (0, 2)
    found = state.rows("o").selectExpr("id", "customer", "_matched", f"unix_seconds(_until) - {TEN}", "_until_of")
    assert sorted(map(tuple, found.collect())) == [
        (1, "ann", True, 60, "d.t"), (2, "bob", False, 65, "d.t"), (3, "ann", True, 80, "d.t"),
        (4, None, True, 90, "d.t"), (5, "cid", False, 100, "d.t"),
    ]  # fmt: skip
    # The same through the command.
    (record,) = json.loads(watersmeet("state", "show", copy, "--format", "json").stdout)
    kept = {one["kept"]: sum(shard["rows"] for shard in one["shards"]) for one in record["operators"][0]["kept"]}
    assert (record["batch"], kept["left"]) == (0, 5)
    assert record["operators"][0]["watermarks"]["d.t"] == "2024-05-01 10:00:30"
    shown = watersmeet(
        "state", "read", copy, "--side", "o", "--where", "id = 2", "--as", "json", "--into", tmp_path / "o"
    )
    assert (shown.exit_code, shown.stdout) == (0, f"Wrote the rows after batch 0 to {tmp_path}/o.\n")
    (row,) = [json.loads(line) for file in (tmp_path / "o").glob("*.json") for line in file.read_text().splitlines()]
    assert (row["id"], row["_matched"], row["amount"]) == (2, False, 20.5)
    assert "--where" in watersmeet("state", "read", copy, "--side", "o", "--where", "nothing = 2").stderr
    checked = watersmeet("state", "check", copy)
    assert (checked.exit_code, checked.stdout.endswith("no problems.\n")) == (0, True)


def test_every_operator_of_a_chain_and_windows(spark: SparkSession, checkpoints: Path) -> None:
    chain = ws.state(checkpoints / "chain", spark)
    assert [operator.name for operator in chain.checkpoint.operators] == [
        "interval of o and d",
        "interval of o+d and p",
    ]
    assert [(one.operator.number, one.name) for one in chain.spines] == [(0, "o"), (0, "d"), (1, "o+d")]
    assert [row["courier"] for row in chain.rows("o+d").orderBy("courier").collect()] == [None, "ann", "bob"]
    with pytest.raises(WatersmeetError) as raised:
        chain.rows("q")
    assert raised.value.getCondition() == "UNKNOWN_SIDE"
    with pytest.raises(WatersmeetError) as raised:
        chain.rows(operator=0)
    assert raised.value.getCondition() == "WHICH_SIDE"
    hours = ws.state(checkpoints / "hours", spark)
    ends = hours.rows().selectExpr("unix_micros(_until) AS until").distinct().collect()
    assert [row.until for row in ends] == [TEN * 1_000_000 + 59_999_999]


def test_folders_without_a_checkpoint_are_refused(spark: SparkSession, checkpoints: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoints / "interval_semi", tmp_path / "copy")
    for file in copy.glob("state/0/*/1.*"):
        file.write_bytes(b"torn")
    with pytest.raises(WatersmeetError) as raised:
        ws.state(copy, spark).spines  # noqa: B018 - it is what reads
    assert raised.value.getCondition() == "DAMAGED_CHECKPOINT"
    (copy / "watersmeet.json").unlink()
    with pytest.raises(WatersmeetError) as raised:
        ws.state(copy, spark)
    assert raised.value.getCondition() == "NO_CHECKPOINT"


def test_an_imported_checkpoint_goes_on_in_another_place(
    spark: SparkSession, checkpoints: Path, tmp_path: Path
) -> None:
    project, query = checkpoints.parents[1], "interval_left"
    elsewhere = tmp_path / "other place"
    shutil.copytree(project / "data", elsewhere / "data")
    export_checkpoint(checkpoints / query, project, tmp_path / "archive.tar.gz")
    import_checkpoint(tmp_path / "archive.tar.gz", elsewhere / "storage", elsewhere)
    add_rows(elsewhere, 1)
    text = QUERIES.read_text()
    insert = re.search(rf"INSERT INTO {query}\n.*?;", text, re.DOTALL)
    assert insert is not None
    (tmp_path / "one.sql").write_text(text[: text.index("INSERT INTO")] + insert[0])
    run(elsewhere, spark, tmp_path / "one.sql")
    expected = json.loads((project / "expected.json").read_text())[query]
    assert sorted(sink_rows(elsewhere)[query].elements()) == sorted(expected)
    assert ws.state(elsewhere / "storage" / "checkpoints" / query, spark).batch == 1
