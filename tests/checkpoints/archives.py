"""Kept checkpoints: a project whose queries have every family, stopped after its first rows.

An archive holds the project as it stood then: queries, data, checkpoints, sinks, and what its second part must give.
It was written by the version that had that format first, and is never written again: later versions must continue it,
also in other words.

Write the archive of a new format: ``python -m tests.checkpoints.archives tests/checkpoints/format-3.tar.gz``. Rows that
wait for a table do so for an hour by the wall clock: leave what they would still give out of its ``expected.json``.

All blocks of an archive have parts, however small they are (`SMALL_PARTS`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from watersmeet.physical.identity import digest
from watersmeet.project import resolve_paths
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.state.owner import OWNER

HERE = Path(__file__).parent
QUERIES, REWORDED = HERE / "queries.sql", HERE / "reworded.sql"
ROOT = "/kept-checkpoint"
"""Where the project was, as the archive has it; extraction puts the real place in."""

SMALL_PARTS = """
from watersmeet.operators.state import format

format.SPLIT_AT, format.PART_BYTES = 0, 40
"""
"""What every Python process does first while an archive is written."""

Rows = Mapping[str, list[dict[str, Any]]]


def _at(seconds: int) -> str:
    return f"2024-05-01T10:{seconds // 60:02}:{seconds % 60:02}Z"


PARTS: tuple[Rows, Rows] = (
    {
        "orders": [
            {"id": 1, "customer": "ann", "amount": 10.25, "t": _at(0)},
            {"id": 2, "customer": "bob", "amount": 20.50, "t": _at(5)},
            {"id": 3, "customer": "ann", "amount": None, "t": _at(20)},
            {"id": 4, "customer": None, "amount": 4.00, "t": _at(30)},
            {"id": 5, "customer": "cid", "amount": 5.75, "t": _at(40)},
        ],
        "deliveries": [
            {"id": 1, "courier": "ann", "t": _at(10)},
            {"id": 3, "courier": "bob", "t": _at(20)},
            {"id": 9, "courier": "cid", "t": _at(35)},
            {"id": 4, "courier": None, "t": _at(40)},
        ],
        "payments": [{"id": 1, "paid": 1.5, "t": _at(12)}, {"id": 3, "paid": 0.1, "t": _at(20)}],
        "customers": [{"name": "ann", "city": "oslo"}, {"name": "bob", "city": "rome"}],
        "cities": [{"city": "oslo", "zone": 1}, {"city": "bern", "zone": 2}],
    },
    {
        "orders": [
            {"id": 6, "customer": "ann", "amount": 6.00, "t": _at(50)},
            {"id": 7, "customer": "bob", "amount": 7.00, "t": _at(61)},
            {"id": 8, "customer": "cid", "amount": 8.00, "t": _at(200)},
        ],
        "deliveries": [
            {"id": 2, "courier": "bob", "t": _at(55)},
            {"id": 5, "courier": "ann", "t": _at(60)},
            {"id": 6, "courier": "ann", "t": _at(61)},
            {"id": 8, "courier": "cid", "t": _at(210)},
        ],
        "payments": [{"id": 2, "paid": 2.5, "t": _at(61)}, {"id": 8, "paid": 3.5, "t": _at(205)}],
        "customers": [{"name": "cid", "city": "bern"}, {"name": "bob", "city": "oslo"}],
        "cities": [{"city": "rome", "zone": 3}, {"city": "oslo", "_change": "-"}],
    },
)
"""What comes before the stop, and what comes after."""


def add_rows(project: Path, part: int) -> None:
    """A file of rows for each source."""
    for source, rows in PARTS[part].items():
        folder = project / "data" / source
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{part}.json").write_text("\n".join(json.dumps(row) for row in rows))


def run(project: Path, spark: SparkSession, queries: Path = QUERIES) -> None:
    """Let all queries process what is there."""
    script = resolve_paths(read_script(queries.read_text(), queries.name), project)
    run_script(script, spark=spark, storage=project / "storage", trigger="available_now")


def sink_rows(project: Path) -> dict[str, Counter[str]]:
    """The rows of every sink, as text."""
    return {
        folder.name: Counter(_canonical(line) for file in folder.rglob("*.json") for line in _lines(file))
        for folder in sorted((project / "output").iterdir())
    }


def _lines(file: Path) -> Iterable[str]:
    return (line for line in file.read_text().splitlines() if line.strip())


def _canonical(line: str) -> str:
    return json.dumps(json.loads(line), sort_keys=True)


def extract(archive: Path, folder: Path) -> Path:
    """The project of an archive, moved to a folder."""
    with tarfile.open(archive) as kept:
        kept.extractall(folder, filter="data")
    project = folder / "project"
    for path in project.rglob("*"):
        _replace_root(path, ROOT, str(project))
    return project


def keep(archive: Path, spark: SparkSession) -> None:
    """Write an archive: the project after its first part, and what the second part gives."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "work"
        add_rows(project, 0)
        run(project, spark)
        kept = Path(folder) / "project"
        shutil.copytree(project, kept, ignore=shutil.ignore_patterns("*.crc"))
        before = sink_rows(project)
        add_rows(project, 1)
        run(project, spark)
        after = {name: rows - before.get(name, Counter()) for name, rows in sink_rows(project).items()}
        for path in kept.rglob("*"):
            _replace_root(path, str(project), ROOT)
        for queries in (QUERIES, REWORDED):
            shutil.copy(queries, kept)
        expected = {name: sorted(rows.elements()) for name, rows in after.items()}
        (kept / "expected.json").write_text(json.dumps(expected, indent=1))
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(kept, "project")


def _replace_root(path: Path, old: str, new: str) -> None:
    """Put another place into a file of text; what is no text names no place."""
    try:
        text = path.read_text() if path.is_file() else ""
    except UnicodeDecodeError:
        return
    if old in text:
        path.write_text(_sign(text.replace(old, new)) if path.name == OWNER else text.replace(old, new))


def _sign(owner: str) -> str:
    """An owner record whose digest is that of what it says now."""
    record = json.loads(owner)
    return json.dumps({**record, "digest": digest(record["queries"])}, indent=2)


if __name__ == "__main__":
    from watersmeet.spark.session import session

    customized = Path(tempfile.mkdtemp())
    (customized / "sitecustomize.py").write_text(SMALL_PARTS)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(customized), os.environ.get("PYTHONPATH", "")])
    keep(Path(sys.argv[1]), session("local[2]", conf={"spark.sql.shuffle.partitions": "2"}))
