"""The latest rows of queries that run in this process, for people who want to see rows. They are kept nowhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from watersmeet.duration import rough_duration
from watersmeet.observe.progress import Progress

KEPT = 8
"""How many rows of a kind are shown."""
KINDS = {
    "matched": "Matched",
    "padded": "Padded: they died alone",
    "joined": "Joined: matched or padded, which their columns do not tell",
    "out": "Rows out",
    "late": "Late",
    "malformed": "Malformed",
    "dropped": "Not shown: rows that could not be made into text",
}
ELSEWHERE = "Rows are shown beside a run only, by `watersmeet run --page`: they are not written down."
SWITCHED_OFF = "Rows are switched off by --no-rows."
SOME = "Some of the latest rows, of any one shard of each batch. Choose one to see what became of it, and why."


@dataclass(frozen=True)
class Row:
    """A row with its values as text, why it is where it is, and the number by which it is asked for."""

    values: Mapping[str, str | None]
    why: str
    number: int = 0


class Rows:
    """Takes rows as they are told, and keeps the latest of each kind."""

    def __init__(self, note: str = SOME) -> None:
        self.note = note
        self._kept: dict[tuple[str, str, str], deque[Row]] = {}
        self._numbers = count()

    def take(self, progress: Progress) -> None:
        """Take the rows of a batch."""
        for name, kinds in progress.examples.items():
            for kind, rows in kinds.items():
                kept = self._kept.setdefault((progress.query, kind, name), deque(maxlen=KEPT))
                kept.extendleft(Row(*_told(kind, dict(row), progress), next(self._numbers)) for row in rows)

    def row(self, query: str, number: int) -> Row | None:
        """The row of that number, if it is still shown."""
        found = (row for (of, _, _), rows in self._kept.items() if of == query for row in rows)
        return next((row for row in found if row.number == number), None)

    def shown(self, query: str) -> dict[str, object]:
        """What the page shows of a query: a table of each kind, and of each operator if several have rows of it."""
        found = [(kind, name, rows) for (of, kind, name), rows in self._kept.items() if of == query]
        several = len({name for _, name, _ in found}) > 1
        order = list(KINDS)
        tables: list[dict[str, object]] = []
        for kind, name, rows in sorted(found, key=lambda one: (order.index(one[0]), one[1])):
            columns = list(dict.fromkeys(column for row in rows for column in row.values))
            values = [
                {"values": [row.values.get(column) for column in columns], "why": row.why, "number": row.number}
                for row in rows
            ]
            where = f" ({name})" if several else ""
            tables.append({"name": f"{KINDS[kind]}{where}", "kind": kind, "columns": columns, "rows": values})
        return {"note": self.note, "kinds": tables}


def _told(kind: str, row: dict[str, str | None], progress: Progress) -> tuple[dict[str, str | None], str]:
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
            return row, f"nothing met it before its life ended, in batch {progress.batch}"
        case _:
            return row, f"in batch {progress.batch}"
