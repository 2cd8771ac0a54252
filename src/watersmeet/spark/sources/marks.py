"""Marks from outside: files that a running query reads like a source, and by which it is told what no row tells."""

from __future__ import annotations

import json
import time

from watersmeet.operators.core.operator import END_OF_INPUT, LOADED
from watersmeet.spark.run.prepare import Prepared

_LOADED_FILES = "loaded-*.json"


def write_end(prepared: Prepared) -> None:
    """Declare the input finished: every watermark goes to the end of time."""
    _write(prepared, "end", dict.fromkeys(prepared.times, END_OF_INPUT))


def write_loaded(prepared: Prepared) -> None:
    """Declare the tables caught up: rows that wait for them are let go."""
    _write(prepared, "loaded", {LOADED: 1})


def is_waiting(prepared: Prepared) -> bool:
    """Whether rows of a query wait until its tables are caught up: that is not declared yet."""
    return bool(prepared.tables) and not any(prepared.watermark_folder.glob(_LOADED_FILES))


def _write(prepared: Prepared, name: str, watermarks: dict[str, int]) -> None:
    if not watermarks:
        return
    prepared.watermark_folder.mkdir(parents=True, exist_ok=True)
    hidden = prepared.watermark_folder / f".{name}-{time.time_ns()}"
    hidden.write_text(
        "".join(json.dumps({"column": column, "value": value}) + "\n" for column, value in watermarks.items())
    )
    # It appears whole.
    hidden.rename(prepared.watermark_folder / f"{name}-{time.time_ns()}.json")
