"""An older copy of a checkpoint is put back: what happens must be what the documents promise for the sink."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import IsolationLevel
from psycopg.sql import SQL, Identifier

from faults.processes import Run

if TYPE_CHECKING:
    from faults.harms import Disturbed

TRIES = 4
"""The number of tries until a snapshot still has the version that the older copy ends with."""
START_SECONDS = 150
AHEAD, RESUME = "SINK_AHEAD_OF_CHECKPOINT", "--sink-resume"


def restore(disturbed: Disturbed, run: Run) -> Run:
    """Put an older copy back and let the query go on; gives the run that does."""
    scenario = disturbed.outcome.scenario
    if not scenario.has_snapshot:
        return _restore_once(disturbed, run)
    for _ in range(TRIES):
        run = _restore_once(disturbed, run)
        if disturbed.outcome.ends[_way_out(RESUME)] or disturbed.outcome.problems:
            return run
    disturbed.outcome.problems.append(f"{RESUME} was never offered")
    return run


def _restore_once(disturbed: Disturbed, run: Run) -> Run:
    """Put an older copy back once, some batches after it was taken, and do what the query then says."""
    outcome, scenario = disturbed.outcome, disturbed.outcome.scenario
    _kill(disturbed, run)
    older = Copy.take(disturbed, "older")
    run = disturbed.start()
    # A batch that is reported is in the sink. Of a snapshot, only the version before the last one can be put back.
    goal = older.planned + (1 if scenario.has_snapshot else 3)
    last = older.planned
    while last < goal and (batch := run.next_batch(START_SECONDS)) is not None:
        last = batch
    _kill(disturbed, run)
    if last <= older.planned:
        outcome.done["restored (none)"] += 1
        outcome.problems.append("restored: no batch was left to be put back")
        return disturbed.start()
    newer = Copy.take(disturbed, "newer")
    older.put_back_checkpoint()
    outcome.done[f"restored by {newer.planned - older.planned} batches"] += 1
    run = disturbed.start()
    batch = run.next_batch(START_SECONDS)
    if not scenario.refuses_older_checkpoint:
        outcome.ends["restored: went on"] += 1
        if batch is None:
            outcome.problems.append(f"restored: did not go on: {run.errors[-300:]}")
        return run
    if batch is not None or AHEAD not in run.errors:
        outcome.problems.append(f"restored: not refused, batch {batch}: {run.errors[-300:]}")
        return run
    disturbed.end(run)
    return _go_on(disturbed, older, newer, is_offered=RESUME in run.errors)


def _go_on(disturbed: Disturbed, older: Copy, newer: Copy, *, is_offered: bool) -> Run:
    """Do what the refusal says, and see the query go on."""
    outcome, sink = disturbed.outcome, disturbed.outcome.scenario.sink
    if is_offered:
        way = RESUME
    elif sink == "kafka":
        way = "newer copy"
        newer.put_back_checkpoint()
    else:
        way = "sink put back"
        older.put_back_sink()
    run = disturbed.start(*([RESUME] if is_offered else []))
    batch = run.next_batch(START_SECONDS)
    outcome.ends[_way_out(way)] += 1
    if batch is None and not run.is_running:
        outcome.problems.append(f"restored: {way} did not help: {run.errors[-300:]}")
    return run


def _way_out(way: str) -> str:
    return f"restored: refused, then {way}"


def _kill(disturbed: Disturbed, run: Run) -> None:
    run.kill("group")
    disturbed.end(run)


@dataclass(frozen=True)
class Copy:
    """A copy of the checkpoints of a project, and of its sink where that can be put back."""

    disturbed: Disturbed
    name: str

    @staticmethod
    def take(disturbed: Disturbed, name: str) -> Copy:
        """Copy what there is now, in the place of an earlier copy of that name."""
        copy = Copy(disturbed, name)
        _replace(copy._checkpoints, copy._folder / "checkpoints")
        if disturbed.outcome.scenario.has_snapshot:
            _replace(disturbed.project / "result", copy._folder / "result")
        if disturbed.outcome.scenario.sink == "postgres":
            copy._replace_tables({table: f"{table}_{name}" for table in copy._tables})
        return copy

    @property
    def planned(self) -> int:
        """The last batch that its query has planned; -1: none."""
        plans = (self._folder / "checkpoints").glob("*/offsets/[0-9]*")
        return max((int(file.name) for file in plans), default=-1)

    def put_back_checkpoint(self) -> None:
        """Put the checkpoints back."""
        _replace(self._folder / "checkpoints", self._checkpoints)

    def put_back_sink(self) -> None:
        """Put the table or the folder back, with what it says of its last batch."""
        if self.disturbed.outcome.scenario.sink == "files":
            _replace(self._folder / "result", self.disturbed.project / "result")
            return
        self._replace_tables({f"{table}_{self.name}": table for table in self._tables})

    @property
    def _folder(self) -> Path:
        return self.disturbed.project / self.name

    @property
    def _checkpoints(self) -> Path:
        return self.disturbed.project / "storage" / "checkpoints"

    @property
    def _tables(self) -> tuple[str, str]:
        return self.disturbed.table, "watersmeet_batches"

    def _replace_tables(self, targets: Mapping[str, str]) -> None:
        """Make the rows of tables those of others, all of the same moment."""
        with psycopg.connect(self.disturbed.servers.address("postgres")) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            for source, target in targets.items():
                names = {"source": Identifier(source), "target": Identifier(target)}
                connection.execute(SQL("CREATE TABLE IF NOT EXISTS {target} (LIKE {source})").format(**names))
                connection.execute(SQL("DELETE FROM {target}").format(**names))
                connection.execute(SQL("INSERT INTO {target} SELECT * FROM {source}").format(**names))


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
