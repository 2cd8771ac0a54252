"""Whose checkpoint a folder is: the plan of the query that wrote it, kept beside Spark's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from watersmeet.errors import refuse
from watersmeet.explanation.physical import render
from watersmeet.spark.compile.build import Built

OWNER = "watersmeet.json"


def recorded_owner(checkpoint: Path) -> dict[str, Any]:
    """Whose checkpoint this is, if it is anyone's."""
    owner = checkpoint / OWNER
    return cast("dict[str, Any]", json.loads(owner.read_text())) if owner.exists() else {}


def record_owner(built: Built, checkpoint: Path) -> None:
    """Write down whose checkpoint this is, unless that is known."""
    owner = checkpoint / OWNER
    if not owner.exists():
        hidden = owner.with_name(f".{OWNER}")
        hidden.write_text(
            json.dumps({"query": render(built.query, built.plan), "shards": built.compiler.shards}, indent=2)
        )
        # Renamed when it is whole: a run killed here must not leave half an owner.
        hidden.rename(owner)


def check_owner(built: Built, recorded: dict[str, Any], checkpoint: Path) -> None:
    """Refuse a checkpoint that another query has written, naming the first line in which they differ."""
    if not recorded:
        return
    now = [line for line in render(built.query, built.plan).split("\n") if line.strip("│ ")]
    then = [line for line in str(recorded["query"]).split("\n") if line.strip("│ ")]
    change = next(((a, b) for a, b in zip(then, now, strict=False) if a != b), None)
    if change is None and len(now) == len(then) and recorded["shards"] == built.compiler.shards:
        return
    was, is_ = change or ("", "")
    difference = (
        f"it had `{_bare(was)}`, now it is `{_bare(is_)}`" if change else f"it runs in {recorded['shards']} shards"
    )
    hint = f"undo the change, or delete {checkpoint} to start this query anew."
    raise refuse("CHECKPOINT_OF_ANOTHER_QUERY", checkpoint=checkpoint, difference=difference, hint=hint)


def _bare(line: str) -> str:
    return line.strip("│├└─ ")
