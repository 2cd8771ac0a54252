"""Follows a history as it grows: reads what was appended since the last look, and keeps what all of it adds up to."""

from __future__ import annotations

from pathlib import Path

from watersmeet.observe.history import Event, History, history_file, records_in
from watersmeet.observe.metrics import OperatorNumbers
from watersmeet.observe.progress import Progress
from watersmeet.observe.records import added_up, merged_operators
from watersmeet.observe.totals import Totals


class Following:
    """The history of a query as far as it was read. ``version`` changes with whatever is new."""

    def __init__(self, storage: Path, query: str) -> None:
        self.query, self.path = query, history_file(storage, query)
        self.version = 0
        self._forget()

    def look(self) -> bool:
        """Read what is new; whether there is something."""
        try:
            known = self.path.stat()
            if known.st_ino != self._file or known.st_size < self._read:
                self._forget()
            if known.st_size == self._read:
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
        self._file, self._read = known.st_ino, self._read + whole
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
        self.events: list[Event] = []
        self.totals = Totals()
        self.operators: dict[str, OperatorNumbers] = {}

    def _take(self, records: list[Progress | Event]) -> None:
        self.events += [one for one in records if isinstance(one, Event)]
        batches = [one for one in records if isinstance(one, Progress)]
        self.batches += batches
        self.totals = self.totals.plus(*batches)
        for name, one in merged_operators(batches).items():
            known = self.operators.get(name)
            self.operators[name] = one if known is None else added_up([known, one])
