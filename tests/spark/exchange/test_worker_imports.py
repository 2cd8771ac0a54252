"""A worker of a join loads the operators and the exchange: nothing that reads, plans, compiles or watches queries.

Two kinds of workers load more. One that reads files over columns, or that decodes or encodes Avro and Protobuf, loads
the connector of that format, with the options and checks that a connector shares with its declaration (`formats`), and
the codec: that is the work that Spark hands to it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import watersmeet as ws
from watersmeet.spark.compile import compiler
from watersmeet.spark.exchange.packing import Pack, Unpack
from watersmeet.spark.exchange.stateful import ShardProcessor
from watersmeet.spark.private.daemon import IMPORTED_ONCE

PACKAGES = ("watersmeet.operators", "watersmeet.spark.exchange", "watersmeet.spark.private")
"""What workers run; of private API the hosts, versions and transfers of tasks."""
BOTTOM = frozenset({
    "watersmeet", "watersmeet.deprecation", "watersmeet.errors", "watersmeet.locations", "watersmeet.schema",
    "watersmeet.spark", "watersmeet.spark.daemon", "watersmeet.version",
})  # fmt: skip
"""What these need in turn: refusals and types, and packages that modules are in."""
READS_AND_PLANS = frozenset({"parse", "analyze", "plan", "explain", "relation", "definition"})
"""The modules of a family's folder that are for other stages of a query."""


def foreign(modules: Iterable[str]) -> list[str]:
    """The modules of Watersmeet that no worker needs to join rows."""
    return sorted(
        module
        for module in modules
        if module.partition(".")[0] == "watersmeet"
        and module not in BOTTOM
        and (
            not any(module == package or module.startswith(f"{package}.") for package in PACKAGES)
            or module.rpartition(".")[2] in READS_AND_PLANS
        )
    )


def modules_of(program: str) -> list[str]:
    """The modules that a fresh process has loaded after a program."""
    text = f"{program}\nimport json, sys\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


FAMILIES = sorted(
    f"watersmeet.operators.{path.parent.name}.kernel" for path in Path(ws.__file__).parent.glob("operators/*/kernel.py")
)


def test_modules_that_a_worker_does_not_need_are_found() -> None:
    modules = ["pyarrow", "watersmeet.errors", "watersmeet.operators.asof.kernel", "watersmeet.spark.exchange.store"]
    more = ["watersmeet.operators.asof.plan", "watersmeet.physical.nodes", "watersmeet.spark.exchanges"]
    assert foreign([*modules, *more]) == more


READER = "watersmeet.spark.connectors.parquet"
"""What reads files over columns; imported before the fork, because each worker that reads them would import it."""


def test_modules_imported_before_the_fork_are_operators_the_exchange_and_the_reader_of_files() -> None:
    loaded = modules_of("from watersmeet.spark.private.daemon import import_once\nimport_once()")
    assert {module for module in IMPORTED_ONCE if module.startswith("watersmeet.")} <= {*loaded}
    assert {*foreign(loaded)} <= {*foreign(modules_of(f"import {READER}"))}


def test_workers_unpickle_operators_and_the_exchange() -> None:
    modules = [cls.__module__ for cls in (ShardProcessor, Pack, Unpack)]
    imports = "\n".join(f"import {module}" for module in (*modules, *FAMILIES))
    loaded = modules_of(imports)
    assert len(FAMILIES) > 5 and {*FAMILIES} <= {*loaded}
    assert foreign(loaded) == []


@pytest.mark.spark
def test_workers_of_a_run_load_operators_and_the_exchange(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_modules = _note_modules(str(tmp_path))
    # Workers of another environment are other processes: those that wait may have read files in an earlier test.
    monkeypatch.setitem(spark.sparkContext.environment, "WATERSMEET_WORKERS_OF", str(tmp_path))

    # Local classes are pickled with their code, and the classes below them by name, as always.
    class NotingProcessor(ShardProcessor):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803 - Spark's
            yield from ShardProcessor.handleInputRows(self, key, rows, timerValues)
            note_modules("join")

    class NotingPack(Pack):
        def __call__(self, batches: Any) -> Any:
            yield from Pack.__call__(self, batches)
            note_modules("pack")

    class NotingUnpack(Unpack):
        def __call__(self, batches: Any) -> Any:
            yield from Unpack.__call__(self, batches)
            note_modules("unpack")

    for name, cls in (("ShardProcessor", NotingProcessor), ("Pack", NotingPack), ("Unpack", NotingUnpack)):
        monkeypatch.setattr(compiler, name, cls)
    orders = spark.createDataFrame([(1, 10)], "id BIGINT, at BIGINT")
    deliveries = spark.createDataFrame([(1, 12)], "id BIGINT, at BIGINT")
    result = ws.join(orders, deliveries, on="id", within=5, left_time="at", right_time="at")
    assert result.count() == 1
    noted = {path.stem.partition("-")[0]: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert noted.keys() == {"join", "pack", "unpack"}
    reader = {*foreign(modules_of(f"import {READER}"))}
    for role, loaded in noted.items():
        assert "watersmeet.spark.exchange.packing" in loaded
        assert {*foreign(loaded)} <= reader, role


def _note_modules(folder: str) -> Any:
    """A function, pickled with its code, that writes which modules its process has loaded."""

    def note(role: str) -> None:
        import json
        import os
        import sys
        from pathlib import Path

        Path(folder, f"{role}-{os.getpid()}.json").write_text(json.dumps([*sys.modules]))

    return note
