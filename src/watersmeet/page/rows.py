"""The latest rows of queries that run in this process, for people who want to see rows. They are kept nowhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from watersmeet.duration import rough_duration
from watersmeet.observe.progress import Progress

ROWS_PER_KIND = 8
"""How many rows of a kind are shown."""
KINDS = {
    "matched": "Matched",
    "padded": "Padded: without a match",
    "joined": "Joined: matched or padded, their columns do not show which",
    "out": "Rows out",
    "late": "Late",
    "malformed": "Malformed",
    "dropped": "Not shown: rows that could not be made into text",
}
ONLY_WITH_RUN = "Rows are shown only during a run, by `watersmeet run --page`: they are not stored."
SWITCHED_OFF = "Rows are switched off by --no-rows."
SAMPLE_NOTE = "Some of the latest rows, from one shard of each batch. Click a row to see what happened to it, and why."


@dataclass(frozen=True)
class SampleRow:
    """A row with its values as text, why it is where it is, and the number by which it is asked for."""

    values: Mapping[str, str | None]
    why: str
    number: int = 0


class RowSamples:
    """Takes rows as they are told, and keeps the latest of each kind."""

    def __init__(self, note: str = SAMPLE_NOTE) -> None:
        self.note = note
        self._samples: dict[tuple[str, str, str], deque[SampleRow]] = {}
        self._numbers = count()

    def take(self, progress: Progress) -> None:
        """Take the rows of a batch."""
        for name, kinds in progress.examples.items():
            for kind, rows in kinds.items():
                samples = self._samples.setdefault((progress.query, kind, name), deque(maxlen=ROWS_PER_KIND))
                samples.extendleft(
                    SampleRow(*_split_reason(kind, dict(row), progress), next(self._numbers)) for row in rows
                )

    def row(self, query: str, number: int) -> SampleRow | None:
        """The row of that number, if it is still shown."""
        candidates = (row for (of, _, _), rows in self._samples.items() if of == query for row in rows)
        return next((row for row in candidates if row.number == number), None)

    def to_json(self, query: str) -> dict[str, object]:
        """What the page shows of a query: a table of each kind, and of each operator if several have rows of it."""
        groups = [(kind, name, rows) for (of, kind, name), rows in self._samples.items() if of == query]
        several = len({name for _, name, _ in groups}) > 1
        order = list(KINDS)
        tables: list[dict[str, object]] = []
        for kind, name, rows in sorted(groups, key=lambda group: (order.index(group[0]), group[1])):
            columns = list(dict.fromkeys(column for row in rows for column in row.values))
            values = [
                {"values": [row.values.get(column) for column in columns], "why": row.why, "number": row.number}
                for row in rows
            ]
            where = f" ({name})" if several else ""
            tables.append({"name": f"{KINDS[kind]}{where}", "kind": kind, "columns": columns, "rows": values})
        return {"note": self.note, "kinds": tables}


def _split_reason(kind: str, row: dict[str, str | None], progress: Progress) -> tuple[dict[str, str | None], str]:
    """The values of a row, and the reason, which is taken out of them."""
    match kind:
        case "late":
            column, by = row.pop("watermark", None) or "", row.pop("late_by", None)
            if by is None:
                return row, f"its side had ended ({column}), in batch {progress.batch}"
            length = rough_duration(int(by)) if column in progress.temporal else f"{int(by):,}"
            return row, f"{length} behind the watermark of {column}, in batch {progress.batch}"
        case "malformed":
            reason = row.pop("reason", None) or ""
            return row, f"{reason}, in batch {progress.batch}"
        case "padded":
            return row, f"expired without a match, in batch {progress.batch}"
        case _:
            return row, f"in batch {progress.batch}"
