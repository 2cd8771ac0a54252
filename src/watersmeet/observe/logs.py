"""The log of a run: what its queries did, a line each, in a file of the storage that is rotated."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from watersmeet.control_characters import escape_controls
from watersmeet.references import mask_secrets

FILE = "watersmeet.log"
LARGEST, BACKUP_COUNT = 10_000_000, 5
"""The bytes of a file, and how many older ones are kept beside it."""

Level = Literal["debug", "info", "warning", "error"]
"""``debug``: every number of every batch, as text too; ``info``: a line per batch; ``warning``: what is started again,
and what else there is to say; ``error``: failures."""
Form = Literal["text", "json"]

_NUMBERS: dict[Level, int] = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip
LOGGER = logging.getLogger("watersmeet.run")


@dataclass(frozen=True)
class LogOptions:
    """How much is logged, and in which form."""

    level: Level = "info"
    form: Form = "text"

    @contextmanager
    def attach(self, storage: Path) -> Generator[None]:
        """Log into the storage while this is entered. Raises OSError where that cannot be done."""
        storage.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(storage / FILE, maxBytes=LARGEST, backupCount=BACKUP_COUNT, encoding="utf-8")
        handler.setFormatter(_AsJson() if self.form == "json" else _AsText())
        before = LOGGER.level, LOGGER.propagate
        LOGGER.addHandler(handler)
        LOGGER.setLevel(_NUMBERS[self.level])
        LOGGER.propagate = False
        try:
            yield
        finally:
            LOGGER.removeHandler(handler)
            LOGGER.setLevel(before[0])
            LOGGER.propagate = before[1]
            handler.close()


def log(level: Level, event: str, query: str = "", text: str = "", numbers: Mapping[str, object] | None = None) -> None:
    """Log what happened to a query; ``numbers`` are for those who read JSON, and for ``debug``."""
    entry = {"event": event, "query": query, "text": mask_secrets(text), "numbers": numbers or {}}
    LOGGER.log(_NUMBERS[level], event, extra={"told": entry})


class _AsText(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = record.__dict__["told"]
        text, event = str(entry["text"]), str(entry["event"])
        message = " ".join(
            part for part in (str(entry["query"]), "" if text.startswith(event) else event, text) if part
        )
        numbers = f" {json.dumps(entry['numbers'], default=str)}" if LOGGER.isEnabledFor(logging.DEBUG) else ""
        # One line each, whatever a failure says.
        return escape_controls(f"{_moment(record)} {record.levelname.lower():7} {message}{numbers}".replace("\n", " "))


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = dict(record.__dict__["told"])
        numbers: Mapping[str, object] = entry.pop("numbers")
        filled = {name: value for name, value in entry.items() if value}
        values = {"time": _moment(record), "level": record.levelname.lower(), **numbers, **filled}
        return escape_controls(json.dumps(values, default=str, ensure_ascii=False))


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
