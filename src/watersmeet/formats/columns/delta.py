"""The columns of tables of Delta, from the newest metadata in their log.

The log is a file for every version, and now and then a checkpoint, which has all that counts of the versions up to it;
versions before one may be gone. What is told in a version counts until a later one tells it anew, so the way leads from
the newest one back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.formats.columns.kinds import Kind, NoColumnsError
from watersmeet.formats.columns.spark_json import field_kinds

FEED: Mapping[str, Kind] = {"_change_type": "STRING", "_commit_version": "BIGINT", "_commit_timestamp": "TIMESTAMP"}
"""The columns that a change feed has besides those of the table."""

_FEEDS = ("readchangefeed", "readchangedata")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\..+)?\.(?:parquet|json)")
_STAGED = re.compile(r"(\d{20})\..+\.json")


def delta_columns(path: str, said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    """The columns of the table in a folder, and the file of the log that tells them."""
    if "timestampasof" in said:
        raise NoColumnsError("only Delta knows which version `timestampAsOf` means")
    log = _Log.of(Path(path) / "_delta_log")
    schema, file = log.schema(log.version(said.get("versionasof")))
    try:
        kinds = field_kinds(json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise NoColumnsError(f"{file} is not a Delta log") from error
    is_feed = any(said.get(name, "").lower() == "true" for name in _FEEDS)
    return {**kinds, **(FEED if is_feed else {})}, str(file)


@dataclass(frozen=True)
class _Log:
    """The files of a log by their versions: of commits one each, of checkpoints the parts of all that there are."""

    folder: Path
    commits: Mapping[int, Path]
    checkpoints: Mapping[int, list[Path]]

    @staticmethod
    def of(folder: Path) -> _Log:
        """The log in a folder."""
        names = sorted(folder.iterdir()) if folder.is_dir() else []
        commits = {int(match[1]): file for file in names if (match := _COMMIT.fullmatch(file.name))}
        checkpoints: dict[int, list[Path]] = {}
        for file in names:
            if match := _CHECKPOINT.fullmatch(file.name):
                checkpoints.setdefault(int(match[1]), []).append(file)
        if not commits and not checkpoints:
            raise NoColumnsError(f"{folder.parent} has no Delta table yet")
        return _Log(folder, commits, checkpoints)

    def version(self, requested: str | None) -> int:
        """The version that is read: the one that is asked for, else the newest."""
        newest = max((*self.commits, *self.checkpoints))
        if requested is not None:
            if not requested.isdecimal() or int(requested) > newest:
                raise NoColumnsError(f"the table has no version {requested}")
            return int(requested)
        staged = (_STAGED.fullmatch(file.name) for file in (self.folder / "_staged_commits").glob("*.json"))
        if any(match and int(match[1]) > newest for match in staged):
            raise NoColumnsError("only its catalog knows its newest version")
        return newest

    def schema(self, version: int) -> tuple[str, Path]:
        """The schema that a version has, as JSON, and the file that tells it."""
        for number in range(version, -1, -1):
            commit = [self.commits[number]] if number in self.commits else []
            for file in (*commit, *self.checkpoints.get(number, ())):
                for schema in _schemas(file):
                    return schema, file
            if not commit:
                break
        raise NoColumnsError(f"the log in {self.folder} is incomplete")


def _schemas(file: Path) -> Iterator[str]:
    """The schemas that a file of the log tells, of which there is one at most."""
    # Imported late: reading a script must not wait for Arrow.
    import pyarrow as pa

    try:
        yield from _in_parquet(file) if file.suffix == ".parquet" else _in_json(file)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise NoColumnsError(f"{file} is not a Delta log") from error


def _in_json(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8") as lines:
        # Most lines are about files of the table, and long.
        for line in lines:
            entry: Any = json.loads(line) if '"metaData"' in line else {}
            if "metaData" in entry:
                yield str(entry["metaData"]["schemaString"])


def _in_parquet(file: Path) -> Iterator[str]:
    import pyarrow.parquet as pq

    read: Any = pq.ParquetFile(file)
    for group in range(read.num_row_groups):
        rows: Iterable[Any] = read.read_row_group(group, columns=["metaData.schemaString"]).column(0).to_pylist()
        yield from (str(row["schemaString"]) for row in rows if row is not None and row["schemaString"] is not None)
