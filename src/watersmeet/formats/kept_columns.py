"""Columns that were read from data when a query first started: they stay for as long as its checkpoint is there.

A file in ``columns`` of the storage has them for each query, and counts while that query has a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watersmeet.catalog import Field, Source
from watersmeet.locations import local_path

FOLDER = "columns"


def save_columns(storage: Path, query: str, sources: Iterable[Source]) -> None:
    """Keep the columns of those sources of a query that declare none, unless an earlier start did."""
    read = [source for source in sources if source.read_from]
    file = storage / FOLDER / f"{query}.json"
    if not read or (file.exists() and (storage / "checkpoints" / query).exists()):
        return
    entries = [
        {
            "source": source.name,
            "format": source.format,
            "path": _path(source),
            "columns": [[field.name, field.type] for field in source.fields if not field.hidden],
        }
        for source in read
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.with_name(f".{file.name}")
    hidden.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
    # Renamed when it is whole: a run killed here must not leave half of it.
    hidden.rename(file)


def load_columns(storage: Path, source: Source) -> tuple[Field, ...]:
    """The columns that a source had when a query first started that still has its checkpoint; none: none has."""
    for file in sorted((storage / FOLDER).glob("*.json")):
        if not (storage / "checkpoints" / file.stem).exists():
            continue
        entries: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
        for entry in entries:
            is_same = (entry["format"], entry["path"]) == (source.format, _path(source))
            if entry["source"].lower() == source.name.lower() and is_same:
                return tuple(Field(name, type_) for name, type_ in entry["columns"])
    return ()


def _path(source: Source) -> str:
    return local_path(source.lowercase_options.get("path", "")).rstrip("/")
