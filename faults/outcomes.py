"""The faults of a scenario, and the outcome of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from rich.table import Table

from faults.scenarios import Rows, Scenario

SHOWN = 5
"""The number of lost rows, and of doubled rows, that are printed."""


@dataclass
class Outcome:
    """The faults and the ends of a scenario, and its rows compared with those of an undisturbed run.

    ``problems``: faults that did not happen, or whose effect was not the documented one.
    """

    scenario: Scenario
    done: Counter[str] = field(default_factory=Counter[str])
    starts: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    rows: int = 0
    lost: int = 0
    doubled: int = 0

    @property
    def is_right(self) -> bool:
        """Whether every row is there as often as it should, after all faults."""
        return self.rows > 0 and not self.lost and not self.doubled and not self.problems

    def compare(self, expected: Rows, actual: Rows) -> None:
        """Count the rows, and the lost and doubled ones, some of which are listed as problems."""
        lost, doubled = expected - actual, actual - expected
        self.rows, self.lost, self.doubled = expected.total(), lost.total(), doubled.total()
        for name, rows in (("lost", lost), ("doubled", doubled)):
            self.problems += [f"{name}: {row}" for row in islice(rows.elements(), SHOWN)]

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the scenario in a table."""
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.done.items()) if count)
        ends = ", ".join(f"{code}: {count}" for code, count in sorted(self.ends.items()) if count)
        numbers = map(str, (self.rows, self.lost, self.doubled))
        return (self.scenario.name, done, str(self.starts), ends, *numbers, "; ".join(self.problems) or "none")


COLUMNS = ("query", "faults", "starts", "ends by exit code", "rows", "lost", "doubled", "problems")


def make_table(outcomes: Sequence[Outcome]) -> Table:
    """All scenarios, a row each."""
    table = Table(*COLUMNS, title="Faults, and the rows that came out")
    for outcome in outcomes:
        table.add_row(*outcome.cells)
    return table
