"""The log of a run in a rotated file, a follower of histories, and a guard so that watchers never fail a query."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import Any, Literal, ParamSpec

from watersmeet.errors import escape_controls
from watersmeet.locations import Storage, is_local, mask_secrets
from watersmeet.metrics.history import History, QueryEvent, history_file, merge_metrics, merge_operators, records_in
from watersmeet.metrics.metrics import OperatorMetrics
from watersmeet.metrics.progress import Progress, Totals

FILE = "watersmeet.log"
LARGEST, BACKUP_COUNT = 10_000_000, 5
"""The size of a log file in bytes, and the number of older files that are kept."""

PIECES = "log"
"""The folder with the pieces of logs, in a storage that is not on this machine."""
PIECE_BYTES, PIECE_SECONDS = 100_000, 10.0
"""The size at which a piece is finished, and how often it is written."""

Level = Literal["debug", "info", "warning", "error"]
"""``debug``: every number of every batch, as text too; ``info``: a line per batch; ``warning``: restarts,
and what else there is to say; ``error``: failures."""
Form = Literal["text", "json"]

_NUMBERS: dict[Level, int] = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip
LOGGER = logging.getLogger("watersmeet.run")


@dataclass(frozen=True)
class LogOptions:
    """The level of the log, and its form."""

    level: Level = "info"
    form: Form = "text"

    @contextmanager
    def attach(self, storage: Storage) -> Generator[None]:
        """Log into the storage while this is entered. Raises OSError where that cannot be done."""
        storage.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler
        if is_local(storage):
            handler = RotatingFileHandler(storage / FILE, maxBytes=LARGEST, backupCount=BACKUP_COUNT, encoding="utf-8")
        else:
            handler = _PieceHandler(storage / PIECES)
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
    """Log what happened to a query; ``numbers`` appear in JSON, and with ``debug``."""
    entry = {"event": event, "query": query, "text": mask_secrets(text), "numbers": numbers or {}}
    LOGGER.log(_NUMBERS[level], event, extra={"told": entry})


class _PieceHandler(logging.Handler):
    """Writes a log in pieces to a storage where files do not grow: a piece is written whole every few seconds.

    Two runs at once write different pieces, as their names have the start of the run.
    """

    def __init__(self, folder: Storage) -> None:
        super().__init__()
        self._folder, self._begun = folder, f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        self._lines: list[str] = []
        self._number = self._size = 0
        self._written_at = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line; warnings are written at once, or later if the storage cannot be reached."""
        line = self.format(record) + "\n"
        self._lines.append(line)
        self._size += len(line)
        try:
            if record.levelno >= logging.WARNING or time.monotonic() - self._written_at >= PIECE_SECONDS:
                self.flush()
        except OSError:
            # The storage is away for a while: the lines stay, and the query reports it if it matters.
            self._written_at = time.monotonic()
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Write the piece as it is now; the next line begins another one if it is long enough."""
        if not self._lines:
            return
        file = self._folder / f"{self._begun}-{self._number:05}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(self._lines), "utf-8")
        self._written_at = time.monotonic()
        if self._size >= PIECE_BYTES:
            self._lines, self._size = [], 0
            self._number += 1

    def close(self) -> None:
        """Write what is not written yet."""
        with suppress(OSError):
            self.flush()
        super().close()


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


P = ParamSpec("P")


def guard_observer(name: str, observe: Callable[P, None], on_news: Callable[[str], None]) -> Callable[P, None]:
    """The same observer, of which an error does not get out: it is told once, and logged each time.

    An output that is no longer read (``watersmeet run | head``) still ends the run.

    >>> failing = guard_observer("The page", lambda batch: print(1 / batch), print)
    >>> failing(0), failing(0)
    The page is incomplete: ZeroDivisionError: division by zero. The query continues. This message appears only once.
    (None, None)
    """
    is_reported = False

    def observe_safely(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal is_reported
        try:
            observe(*args, **kwargs)
        except BrokenPipeError:
            raise
        except Exception as error:
            log("warning", "unobserved", text=f"{name}: {traceback.format_exc()}")
            if not is_reported:
                is_reported = True
                reason = f"{type(error).__name__}: {error}"
                on_news(f"{name} is incomplete: {reason}. The query continues. This message appears only once.")

    return observe_safely


class HistoryFollower:
    """The history of a query as far as it was read. ``version`` changes with whatever is new."""

    def __init__(self, storage: Storage, query: str) -> None:
        self.query, self.path = query, history_file(storage, query)
        self.version = 0
        self._looked, self._changed = 0.0, (0, 0.0)
        self._forget()

    def poll(self) -> bool:
        """Read what is new; whether there is something."""
        if not is_local(self.path):
            return self._poll_remote(self.path)
        try:
            stat = self.path.stat()
            if stat.st_ino != self._file or stat.st_size < self._read:
                self._forget()
            if stat.st_size == self._read:
                return False
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            is_gone = bool(self._read)
            self._forget()
            self.version += is_gone
            return is_gone
        whole = new.rfind(b"\n") + 1
        self._file, self._read = stat.st_ino, self._read + whole
        self._take(list(records_in(new[:whole], self.query)))
        self.version += bool(whole)
        return bool(whole)

    def _poll_remote(self, path: Storage) -> bool:
        """The same where a file is written whole each time: it is read again if it has changed."""
        if time.monotonic() - self._looked < PIECE_SECONDS and self._looked:
            return False
        self._looked = time.monotonic()
        try:
            stat = path.stat()
            changed = (stat.st_size, stat.st_mtime)
            if changed == self._changed:
                return False
            text = path.read_bytes()
        except FileNotFoundError:
            return False
        self._forget()
        self._changed = changed
        self._take(list(records_in(text, self.query)))
        self.version += 1
        return True

    @property
    def history(self) -> History:
        """All that was read."""
        return History(self.query, tuple(self.batches), tuple(self.events))

    def _forget(self) -> None:
        self._file: int = 0
        self._read: int = 0
        self.batches: list[Progress] = []
        self.events: list[QueryEvent] = []
        self.totals = Totals()
        self.operators: dict[str, OperatorMetrics] = {}

    def _take(self, records: list[Progress | QueryEvent]) -> None:
        self.events += [record for record in records if isinstance(record, QueryEvent)]
        batches = [record for record in records if isinstance(record, Progress)]
        self.batches += batches
        self.totals = self.totals.plus(*batches)
        for name, record in merge_operators(batches).items():
            previous = self.operators.get(name)
            self.operators[name] = record if previous is None else merge_metrics([previous, record])
