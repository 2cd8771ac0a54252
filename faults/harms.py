"""The faults that happen to a run, one after the other, each at a random moment between two batches or inside one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from faults.outcomes import Outcome
from faults.processes import Run
from faults.scenarios import Scenario
from faults.servers import Servers

KILLS = ("group", "jvm", "worker", "ready")
HINDRANCES = ("restart", "second", "rival", "paused", "restored", "full", "read-only")
NEED_INPUT = ("rival", "paused", "restored")
"""Faults that need batches that are still to be written, so they come first."""
BATCH_SECONDS, IDLE_SECONDS, END_SECONDS = 150, 15, 900
"""The time to wait for a batch, with the start before it; for a batch after all input was read; for the last run."""
RETRIES = 3
"""The number of starts of the last run, if its exit code allows another one."""
RIVAL_BATCHES = 3
"""The number of batches that a second driver without the locks of the first reports, before it is killed."""
BIG, SMALL = "2g", "2m"


@dataclass(frozen=True)
class Plan:
    """The number and kinds of kills, the hindrances that happen once, and the seed of the moments."""

    kills: int
    kinds: Sequence[str] = KILLS
    hindrances: Sequence[str] = HINDRANCES
    seed: int = 1

    def harms(self, scenario: Scenario, chance: random.Random, *, has_disk: bool) -> list[str]:
        """All faults of a scenario, in their order."""
        kills = [kind for kind in self.kinds for _ in range(self.kills // len(self.kinds))]
        harms = kills + [kind for kind in self.hindrances if _is_possible(kind, scenario, has_disk=has_disk)]
        chance.shuffle(harms)
        return sorted(harms, key=lambda harm: harm not in NEED_INPUT)


def _is_possible(kind: str, scenario: Scenario, *, has_disk: bool) -> bool:
    if kind == "restart":
        return scenario.sink != "files"
    if kind in NEED_INPUT and not scenario.can_write_again:
        return False
    return has_disk or kind in ("second", "restored")


def run_disturbed(scenario: Scenario, project: Path, table: str, servers: Servers, plan: Plan) -> Outcome:
    """Run a project of a scenario with faults to its end; its rows are not compared yet."""
    outcome = Outcome(scenario)
    with _make_disk(project / "storage") as disk:
        Disturbance(project, table, servers, outcome, disk, random.Random(plan.seed)).run(plan)
    return outcome


@dataclass
class Disturbance:
    """A project that runs with faults. ``disk``: the disk of its storage, if it has its own."""

    project: Path
    table: str
    servers: Servers
    outcome: Outcome
    disk: Path | None
    chance: random.Random
    is_drained: bool = False
    """Whether a run has read all input."""

    def run(self, plan: Plan) -> None:
        """Apply all faults, and run to the end."""
        run = self.start()
        for harm in plan.harms(self.outcome.scenario, self.chance, has_disk=self.disk is not None):
            if self._wait_for_batch(run) is None and not run.is_running:
                self.end(run)
                run = self.start()
                self._wait_for_batch(run)
            time.sleep(self.chance.random())
            run = self._harm(harm, run)
        run.kill("group")
        self.end(run)
        self._finish()

    def start(self, *options: str) -> Run:
        """Start a run."""
        self.outcome.starts += 1
        return Run(self.project, *options)

    def end(self, run: Run) -> None:
        """Wait for the end of a run, and record it."""
        code = run.wait(60)
        self.outcome.ends["hung" if code is None else str(code)] += 1
        if not self.outcome.scenario.can_merge_batches:
            drop_unplanned_files(self.project / "storage" / "checkpoints")

    def _wait_for_batch(self, run: Run) -> int | None:
        batch = run.next_batch(IDLE_SECONDS if self.is_drained else BATCH_SECONDS)
        self.is_drained |= batch is None and run.is_running
        return batch

    def _finish(self) -> None:
        name = self.outcome.scenario.name
        for _ in range(RETRIES):
            last = Run(self.project, "--end")
            code = last.wait(END_SECONDS)
            if code == 0:
                return
            self.outcome.ends[f"last: {code}"] += 1
            log = (self.project / "storage" / "watersmeet.log").read_text()[-3000:]
            print(f"{name}, last run: {code}: {''.join(last.last_lines)}{last.errors}{log}", file=sys.stderr)
            if code not in (4, 5):
                break
        raise SystemExit(f"{name} does not go on")

    def _harm(self, harm: str, run: Run) -> Run:
        if harm in KILLS:
            return self._kill(harm, run)
        if harm == "restored":
            from faults.restoring import restore

            return restore(self, run)
        self.outcome.done[harm] += 1
        if harm == "restart":
            self.servers.restart(self.outcome.scenario.sink)
        elif harm == "second":
            self._start_second(run)
        elif harm == "rival":
            self._start_rival(run)
        elif harm == "paused":
            self._pause(run)
        else:
            option = f"size={SMALL}" if harm == "full" else "ro"
            subprocess.run(["mount", "-o", f"remount,{option}", str(self.disk)], check=False, capture_output=True)
            time.sleep(5)
            subprocess.run(["mount", "-o", f"remount,rw,size={BIG}", str(self.disk)], check=False)
        return run

    def _kill(self, kind: str, run: Run) -> Run:
        self.outcome.done[kind if run.kill(kind) else f"{kind} (none)"] += 1
        if kind not in ("group", "jvm"):
            return run
        self.end(run)
        return self.start()

    def _start_second(self, run: Run) -> None:
        """Start a second run on this machine, which must be refused."""
        second = Run(self.project, "--once")
        code = second.wait(BATCH_SECONDS)
        self.outcome.ends[f"second run: {code}"] += 1
        if run.is_running and "IN_USE" not in second.errors:
            self.outcome.problems.append(f"a second run was not refused, and ended with {code}: {second.errors[-300:]}")

    def _start_rival(self, run: Run) -> None:
        """Run a second driver on the checkpoint with other locks, as a driver on another host would."""
        with self._rival() as rival:
            batches = [rival.next_batch(BATCH_SECONDS) for _ in range(RIVAL_BATCHES)]
            code = rival.process.poll()
            first = "went on" if run.is_running else f"ended with {run.process.poll()}"
            rival.kill("group")
            rival.wait(BATCH_SECONDS)
        self._note_rival(rival, "rival", batches, code, first)

    def _pause(self, run: Run) -> None:
        """Pause the run, let a rival continue from its checkpoint, and resume the run while the rival writes."""
        run.pause()
        with self._rival() as rival:
            batches = [rival.next_batch(BATCH_SECONDS) for _ in range(RIVAL_BATCHES)]
            run.wake()
            # Both write now, until one of them sees the other.
            until = time.monotonic() + BATCH_SECONDS
            while run.is_running and rival.is_running and time.monotonic() < until:
                batches.append(rival.next_batch(1))
            code = rival.process.poll()
            first = "went on" if run.is_running else f"ended with {run.process.poll()}"
            if run.is_running and rival.is_running:
                self.outcome.problems.append("paused: neither of two runs saw the other")
            elif not run.is_running and not run.reasons:
                self.outcome.problems.append(f"paused: the run ended without a reason: {run.errors[-300:]}")
            print(f"{self.outcome.scenario.name}, paused: {run.reasons if not run.is_running else rival.reasons}")
            rival.kill("group")
            rival.wait(BATCH_SECONDS)
        self._note_rival(rival, "paused", batches, code, first)

    @contextmanager
    def _rival(self) -> Iterator[Run]:
        """A second run on the checkpoint that does not see the locks of the first."""
        with TemporaryDirectory(prefix="locks") as folder:
            locks = sorted((self.project / "storage").glob("in-use*.lock"))
            mounts = [f"touch {folder}/{lock.name} && mount --bind {folder}/{lock.name} {lock}" for lock in locks]
            script = " && ".join([*mounts, 'exec "$@"'])
            yield Run(self.project, before=("unshare", "--mount", "sh", "-c", script, "rival"))

    def _note_rival(self, rival: Run, harm: str, batches: Sequence[int | None], code: int | None, first: str) -> None:
        count = sum(batch is not None for batch in batches)
        self.outcome.ends[f"{harm}, {count} batches: {'killed' if code is None else code}, first {first}"] += 1
        if "IN_USE" in rival.errors:
            self.outcome.problems.append(f"{harm}: saw the locks of the first run")
        elif not count and code is None:
            self.outcome.problems.append(f"{harm}: wrote nothing, and did not end: {rival.errors[-300:]}")


def drop_unplanned_files(checkpoints: Path) -> None:
    """Let Spark read files again that it has recorded for a batch without planning that batch.

    A driver rarely dies between the two steps. Spark would read these files and the next ones in one batch.
    """
    for folder in checkpoints.glob("*"):
        planned = max((int(file.name) for file in folder.glob("offsets/[0-9]*")), default=-1)
        lines = (folder / "offsets" / str(planned)).read_text().splitlines()[2:] if planned >= 0 else []
        for number, line in enumerate(lines):
            if "logOffset" in line:
                last = json.loads(line)["logOffset"]
                for file in (folder / "sources" / str(number)).glob("[0-9]*"):
                    if int(file.name.removesuffix(".compact")) > last:
                        file.unlink()


@contextmanager
def _make_disk(folder: Path) -> Iterator[Path | None]:
    """A separate disk for a folder, if this user may mount one; else None, and there are no faults of disks."""
    folder.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={BIG}", "tmpfs", str(folder)], capture_output=True)
    try:
        yield folder if made.returncode == 0 else None
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)
