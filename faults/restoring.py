"""Restore an older copy of a checkpoint: the query must do what the documentation says for its sink."""

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
    from faults.harms import Disturbance

TRIES = 4
"""The number of attempts until a snapshot still has the version of the older copy."""
START_SECONDS = 150
AHEAD, RESUME = "SINK_AHEAD_OF_CHECKPOINT", "--sink-resume"


def restore(disturbance: Disturbance, run: Run) -> Run:
    """Restore an older copy and let the query continue; returns the run that does."""
    scenario = disturbance.outcome.scenario
    if not scenario.has_snapshot:
        return _restore_once(disturbance, run)
    for _ in range(TRIES):
        run = _restore_once(disturbance, run)
        if disturbance.outcome.ends[_way_out(RESUME)] or disturbance.outcome.problems:
            return run
    disturbance.outcome.problems.append(f"{RESUME} was never offered")
    return run


def _restore_once(disturbance: Disturbance, run: Run) -> Run:
    """Restore an older copy once, some batches after it was taken, and follow the hint of the query."""
    outcome, scenario = disturbance.outcome, disturbance.outcome.scenario
    _kill(disturbance, run)
    older = Copy.take(disturbance, "older")
    run = disturbance.start()
    # A reported batch is in the sink. A snapshot can be restored only to the version before the last one.
    goal = older.last_batch + (1 if scenario.has_snapshot else 3)
    last = older.last_batch
    while last < goal and (batch := run.next_batch(START_SECONDS)) is not None:
        last = batch
    _kill(disturbance, run)
    if last <= older.last_batch:
        outcome.done["restored (none)"] += 1
        outcome.problems.append("restored: no batch was left to be put back")
        return disturbance.start()
    newer = Copy.take(disturbance, "newer")
    older.put_back_checkpoint()
    outcome.done[f"restored by {newer.last_batch - older.last_batch} batches"] += 1
    run = disturbance.start()
    batch = run.next_batch(START_SECONDS)
    if not scenario.refuses_older_checkpoint:
        outcome.ends["restored: went on"] += 1
        if batch is None:
            outcome.problems.append(f"restored: did not go on: {run.errors[-300:]}")
        return run
    if batch is not None or AHEAD not in run.errors:
        outcome.problems.append(f"restored: not refused, batch {batch}: {run.errors[-300:]}")
        return run
    disturbance.end(run)
    return _go_on(disturbance, older, newer, is_offered=RESUME in run.errors)


def _go_on(disturbance: Disturbance, older: Copy, newer: Copy, *, is_offered: bool) -> Run:
    """Follow the hint of the refusal, and check that the query continues."""
    outcome, sink = disturbance.outcome, disturbance.outcome.scenario.sink
    if is_offered:
        way = RESUME
    elif sink == "kafka":
        way = "newer copy"
        newer.put_back_checkpoint()
    else:
        way = "sink put back"
        older.put_back_sink()
    run = disturbance.start(*([RESUME] if is_offered else []))
    batch = run.next_batch(START_SECONDS)
    outcome.ends[_way_out(way)] += 1
    if batch is None and not run.is_running:
        outcome.problems.append(f"restored: {way} did not help: {run.errors[-300:]}")
    return run


def _way_out(way: str) -> str:
    return f"restored: refused, then {way}"


def _kill(disturbance: Disturbance, run: Run) -> None:
    run.kill("group")
    disturbance.end(run)


@dataclass(frozen=True)
class Copy:
    """A copy of the checkpoints of a project, and of its sink if that can be restored."""

    disturbed: Disturbance
    name: str

    @staticmethod
    def take(disturbance: Disturbance, name: str) -> Copy:
        """Copy the current files, in place of an earlier copy of that name."""
        copy = Copy(disturbance, name)
        _replace(copy._checkpoints, copy._folder / "checkpoints")
        if disturbance.outcome.scenario.has_snapshot:
            _replace(disturbance.project / "result", copy._folder / "result")
        if disturbance.outcome.scenario.sink == "postgres":
            copy._replace_tables({table: f"{table}_{name}" for table in copy._tables})
        return copy

    @property
    def last_batch(self) -> int:
        """The last batch that its query has planned; -1: none."""
        plans = (self._folder / "checkpoints").glob("*/offsets/[0-9]*")
        return max((int(file.name) for file in plans), default=-1)

    def put_back_checkpoint(self) -> None:
        """Restore the checkpoints."""
        _replace(self._folder / "checkpoints", self._checkpoints)

    def put_back_sink(self) -> None:
        """Restore the table or the folder, with the record of its last batch."""
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
        """Replace the rows of tables by those of others, all in one transaction."""
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
