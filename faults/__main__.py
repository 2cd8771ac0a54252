"""``make faults``: kills and hindrances at random moments, and the rows compared with those of an undisturbed run.

For each query, in turn: the whole process group is killed, the JVM, a Python worker, the process that stands ready;
Postgres or Kafka is restarted at once; a second run is started on the same checkpoint, and one that does not see the
locks of the first, as from another host; an older copy of the checkpoint is put back; the disk of the storage is full,
or can only be read. Some queries have lines among their data that cannot be read. The run goes on, or ends by itself
and is started again. At the end all input is read, and every row must be there as often as without any of it. Without a
broker nothing goes into Kafka, which is said.

    .venv/bin/python -m faults --kills 12 --only interval-files
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from faults.processes import Run
from faults.scenarios import SCENARIOS, Rows, Scenario
from faults.servers import Servers, servers

KILLS = ("group", "jvm", "worker", "ready")
HINDRANCES = ("restart", "second", "rival", "restored", "full", "read-only")
BATCH_SECONDS, END_SECONDS = 45, 900
RETRIES = 3
"""So often the last run is started, if it ends with a code that says that it may be."""
RIVAL_BATCHES = 3
"""So many batches a second driver without the locks of the first reports, before it is killed."""
BIG, SMALL = "2g", "2m"


@dataclass
class Outcome:
    """What was done to a scenario, and what became of its rows."""

    scenario: Scenario
    done: Counter[str] = field(default_factory=Counter[str])
    starts: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    rows: int = 0
    lost: int = 0
    doubled: int = 0

    @property
    def is_right(self) -> bool:
        """Whether every row is there as often as it should."""
        return self.rows > 0 and not self.lost and not self.doubled


def main(arguments: Sequence[str] | None = None) -> None:
    """Disturb the scenarios that are asked for, and show what became of them."""
    options = _options(arguments)
    console = Console()
    outcomes: list[Outcome] = []
    with TemporaryDirectory(prefix="faults", ignore_cleanup_errors=True) as folder, servers() as found:
        if found.kafka is None:
            console.print(f"Nothing goes into Kafka: {found.missing}")
        for scenario in options.scenarios:
            if scenario.sink == "kafka" and found.kafka is None:
                continue
            place = Path(folder) / scenario.name.replace(" ", "-")
            outcome = disturb(scenario, place, found, options)
            console.print(
                f"{scenario.name}: {sum(outcome.done.values())} faults, lost {outcome.lost}, doubled {outcome.doubled}"
            )
            outcomes.append(outcome)
    console.print(table(outcomes))
    sys.exit(0 if all(outcome.is_right for outcome in outcomes) else 1)


def disturb(scenario: Scenario, place: Path, found: Servers, options: argparse.Namespace) -> Outcome:
    """Run a scenario undisturbed, and then disturbed."""
    address = found.address(scenario.sink)
    names = [f"{scenario.name.split(' into ')[0].replace(' ', '_')}_{what}" for what in ("calm", "disturbed")]
    calm, disturbed = (place / what for what in ("calm", "disturbed"))
    scenario.make(calm, options.files, address, names[0])
    scenario.make(disturbed, options.files, address, names[1], has_poison=scenario.is_poisoned)
    run = Run(calm, "--end")
    if run.wait(END_SECONDS) != 0:
        raise SystemExit(f"{scenario.name} fails undisturbed: {run.said.read_text()[-2000:]}")
    expected = scenario.rows(calm, address, names[0]) + scenario.expected_poison(disturbed)
    outcome = harmed(scenario, disturbed, found, options)
    _compare(outcome, expected, scenario.rows(disturbed, address, names[1]) + scenario.poison(disturbed))
    return outcome


def harmed(scenario: Scenario, project: Path, found: Servers, options: argparse.Namespace) -> Outcome:
    """Run a project of a scenario, disturbed, to its end; its rows are not compared yet."""
    outcome = Outcome(scenario)
    with _disk(project / "storage") as disk:
        _harm(project, outcome, found, disk, options)
    return outcome


def _harm(project: Path, outcome: Outcome, found: Servers, disk: str | None, options: argparse.Namespace) -> None:
    """Do all harm, one after the other, each at a random moment between two batches or inside one."""
    chance = random.Random(options.seed)
    harms = [kind for kind in options.kinds for _ in range(options.kills // len(options.kinds))]
    harms += [kind for kind in options.hindrances if _is_possible(kind, outcome.scenario, disk)]
    chance.shuffle(harms)
    run = _start(project, outcome)
    for harm in harms:
        # Without a batch for so long it has read everything, or has ended by itself.
        if run.next_batch(BATCH_SECONDS) is None and not run.is_running:
            _end(run, outcome)
            run = _start(project, outcome)
            run.next_batch(BATCH_SECONDS)
        time.sleep(chance.random())
        run = _do(harm, run, project, outcome, found, disk)
    run.kill("group")
    run.wait(BATCH_SECONDS)
    for _ in range(RETRIES):
        last = Run(project, "--end")
        code = last.wait(END_SECONDS)
        if code == 0:
            return
        outcome.ends[f"last: {code}"] += 1
        log = (project / "storage" / "watersmeet.log").read_text()[-3000:]
        print(f"{outcome.scenario.name}, last run: {code}: {''.join(last.last_lines)}{log}", file=sys.stderr)
        if code not in (4, 5):
            break
    raise SystemExit(f"{outcome.scenario.name} does not go on")


def _is_possible(kind: str, scenario: Scenario, disk: str | None) -> bool:
    if kind == "restart":
        return scenario.sink != "files"
    if kind in ("rival", "restored") and not scenario.can_write_again:
        return False
    return disk is not None or kind in ("second", "restored")


def _do(harm: str, run: Run, project: Path, outcome: Outcome, found: Servers, disk: str | None) -> Run:
    outcome.done[harm] += 1
    if harm in KILLS:
        if not run.kill(harm):
            outcome.done[harm] -= 1
            outcome.done[f"{harm} (none)"] += 1
    elif harm == "restart":
        found.restart(outcome.scenario.sink)
    elif harm == "second":
        second = Run(project, "--once")
        code = second.wait(BATCH_SECONDS)
        outcome.ends[f"second run: {code}"] += 1
    elif harm == "rival":
        _rival(project, outcome)
    elif harm == "restored":
        return _restored(run, project, outcome)
    else:
        option = f"size={SMALL}" if harm == "full" else "ro"
        subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=False, capture_output=True)
        time.sleep(5)
        subprocess.run(["mount", "-o", f"remount,rw,size={BIG}", str(disk)], check=False)
    if harm in ("group", "jvm"):
        _end(run, outcome)
        return _start(project, outcome)
    return run


def _rival(project: Path, outcome: Outcome) -> None:
    """Let a second driver run on the checkpoint that has other locks, as one on another host would."""
    with TemporaryDirectory(prefix="locks") as folder:
        mounts = [f"touch {folder}/{lock.name} && mount --bind {folder}/{lock.name} {lock}"
                  for lock in sorted((project / "storage").glob("in-use*.lock"))]  # fmt: skip
        script = " && ".join([*mounts, 'exec "$@"'])
        rival = Run(project, before=("unshare", "--mount", "sh", "-c", script, "rival"))
        batches = [rival.next_batch(BATCH_SECONDS) for _ in range(RIVAL_BATCHES)]
        code = rival.process.poll()
        rival.kill("group")
        rival.wait(BATCH_SECONDS)
        count = sum(batch is not None for batch in batches)
        outcome.ends[f"rival, {count} batches: {'killed' if code is None else code}"] += 1


def _restored(run: Run, project: Path, outcome: Outcome) -> Run:
    """Put back a copy of the checkpoints that is some batches old; where the sink refuses it, the newer one again."""
    checkpoints, older, newer = project / "storage" / "checkpoints", project / "older", project / "newer"
    if not checkpoints.exists():
        outcome.done["restored"] -= 1
        outcome.done["restored (none)"] += 1
        return run
    for copy in (older, newer):
        run.kill("group")
        _end(run, outcome)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(checkpoints, copy)
        if copy is older:
            run = _start(project, outcome)
            for _ in range(3):
                run.next_batch(BATCH_SECONDS)
    _put_back(older, checkpoints)
    outcome.done["restored"] -= 1
    outcome.done[f"restored by {_planned(newer) - _planned(older)} batches"] += 1
    run = _start(project, outcome)
    run.next_batch(BATCH_SECONDS)
    if run.is_running:
        outcome.ends["restored: went on"] += 1
        return run
    refused = "SINK_AHEAD_OF_CHECKPOINT" in run.said.read_text()
    outcome.ends[f"restored: {'refused' if refused else run.process.poll()}"] += 1
    _put_back(newer, checkpoints)
    return _start(project, outcome)


def _planned(checkpoints: Path) -> int:
    """How many batches the queries of a copy have planned."""
    offsets = (folder for folder in checkpoints.rglob("offsets") if folder.is_dir())
    return sum(max((int(file.name) for file in folder.glob("[0-9]*")), default=-1) for folder in offsets)


def _put_back(copy: Path, checkpoints: Path) -> None:
    shutil.rmtree(checkpoints)
    shutil.copytree(copy, checkpoints)


def _start(project: Path, outcome: Outcome) -> Run:
    outcome.starts += 1
    return Run(project)


def _end(run: Run, outcome: Outcome) -> None:
    code = run.wait(60)
    outcome.ends["hung" if code is None else str(code)] += 1


def _compare(outcome: Outcome, expected: Rows, found: Rows) -> None:
    outcome.rows = sum(expected.values())
    outcome.lost = sum((expected - found).values())
    outcome.doubled = sum((found - expected).values())


@contextmanager
def _disk(folder: Path) -> Iterator[str | None]:
    """A disk of its own for a folder, if we may make one; else None, and disks are left in peace."""
    folder.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={BIG}", "tmpfs", str(folder)], capture_output=True)
    try:
        yield str(folder) if made.returncode == 0 else None
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def table(outcomes: Sequence[Outcome]) -> Table:
    """All scenarios, a row each."""
    shown = Table(title="Faults, and the rows that came out")
    for name in ("query", "faults", "starts", "ends by exit code", "rows", "lost", "doubled"):
        shown.add_column(name)
    for one in outcomes:
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(one.done.items()) if count)
        ends = ", ".join(f"{code}: {count}" for code, count in sorted(one.ends.items()))
        shown.add_row(one.scenario.name, done, str(one.starts), ends, str(one.rows), str(one.lost), str(one.doubled))
    return shown


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = {scenario.name.replace(" into ", "-").replace(" ", "-"): scenario for scenario in SCENARIOS}
    parser.add_argument("--kills", type=int, default=24, help="kills of each query; 24 make more than 200 of all")
    parser.add_argument("--files", type=int, default=150, help="files of each source, a batch each")
    parser.add_argument("--only", default=",".join(known), metavar="NAME,...", help=f"of {', '.join(known)}")
    parser.add_argument("--seed", type=int, default=1, help="when what is killed")
    hindrances = f"what else happens, once to each query, of {', '.join(HINDRANCES)}"
    parser.add_argument("--hindrances", default=",".join(HINDRANCES), metavar="NAME,...", help=hindrances)
    parser.add_argument("--no-hindrances", dest="hindrances", action="store_const", const="", help="kills alone")
    options = parser.parse_args(arguments)
    wrong = [name for name in options.only.split(",") if name not in known]
    if wrong:
        parser.error(f"there is no {wrong[0]}; there are {', '.join(known)}")
    options.hindrances = [name for name in options.hindrances.split(",") if name]
    wrong = [name for name in options.hindrances if name not in HINDRANCES]
    if wrong:
        parser.error(f"there is no {wrong[0]}; there are {', '.join(HINDRANCES)}")
    options.kinds = KILLS
    options.scenarios = [known[name] for name in options.only.split(",")]
    return options


if __name__ == "__main__":
    main()
