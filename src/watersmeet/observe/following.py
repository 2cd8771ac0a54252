"""Follows a history as it grows: reads what was appended since the last look, and keeps what all of it adds up to."""

from __future__ import annotations

from pathlib import Path

from watersmeet.observe.history import History, QueryEvent, history_file, records_in
from watersmeet.observe.metrics import OperatorMetrics
from watersmeet.observe.progress import Progress
from watersmeet.observe.records import merge_metrics, merge_operators
from watersmeet.observe.totals import Totals


class HistoryFollower:
    """The history of a query as far as it was read. ``version`` changes with whatever is new."""

    def __init__(self, storage: Path, query: str) -> None:
        self.query, self.path = query, history_file(storage, query)
        self.version = 0
        self._forget()

    def poll(self) -> bool:
        """Read what is new; whether there is something."""
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
