"""``make faults``: kills and hindrances at random moments, and the rows compared with those of an undisturbed run.

For each query, in turn: the whole process group is killed, the JVM, a Python worker, the process that stands ready;
Postgres or Kafka is restarted at once; a second run is started on the same checkpoint, and one that does not see the
locks of the first, as from another host; the run is paused while such a rival goes on, and then woken; an older copy of
the checkpoint is put back; the disk of the storage is full, or can only be read. Some queries have lines among their
data that cannot be read. The run goes on, or ends by itself and is started again. At the end all input is read, and
every row must be there as often as without any of it. Without a broker nothing goes into Kafka, which is said.

    .venv/bin/python -m faults --kills 12 --only interval-files
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from faults.harms import END_SECONDS, HINDRANCES, Plan, run_disturbed
from faults.outcomes import COLUMNS, Outcome, make_table
from faults.processes import Run
from faults.scenarios import SCENARIOS, Scenario
from faults.servers import Servers, servers


def main(arguments: Sequence[str] | None = None) -> None:
    """Disturb the scenarios that are asked for, and show what became of them."""
    options = _options(arguments)
    plan = Plan(options.kills, hindrances=options.hindrances, seed=options.seed)
    console = Console()
    outcomes: list[Outcome] = []
    with TemporaryDirectory(prefix="faults", ignore_cleanup_errors=True) as temporary, servers() as found:
        folder = options.folder or Path(temporary)
        if found.kafka is None:
            console.print(f"Nothing goes into Kafka: {found.missing}")
        for scenario in options.scenarios:
            if scenario.sink == "kafka" and found.kafka is None:
                continue
            outcome = disturb(scenario, folder / scenario.name.replace(" ", "-"), found, options.files, plan)
            outcomes.append(outcome)
            cells = zip(COLUMNS, outcome.cells, strict=True)
            print("; ".join(f"{column}: {cell}" for column, cell in cells), flush=True)
    console.print(make_table(outcomes))
    sys.exit(0 if all(outcome.is_right for outcome in outcomes) else 1)


def disturb(scenario: Scenario, place: Path, found: Servers, files: int, plan: Plan) -> Outcome:
    """Run a scenario undisturbed, and then disturbed."""
    address = found.address(scenario.sink)
    names = [f"{scenario.name.split(' into ')[0].replace(' ', '_')}_{what}" for what in ("calm", "disturbed")]
    calm, disturbed = (place / what for what in ("calm", "disturbed"))
    scenario.make(calm, files, address, names[0], is_calm=True)
    scenario.make(disturbed, files, address, names[1], is_calm=False)
    run = Run(calm, "--end")
    if run.wait(END_SECONDS) != 0:
        raise SystemExit(f"{scenario.name} fails undisturbed: {run.errors[-2000:]}")
    expected = scenario.rows(calm, address, names[0]) + scenario.expected_poison(disturbed)
    outcome = run_disturbed(scenario, disturbed, names[1], found, plan)
    outcome.compare(expected, scenario.rows(disturbed, address, names[1]) + scenario.poison(disturbed))
    return outcome


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = {scenario.name.replace(" into ", "-").replace(" ", "-"): scenario for scenario in SCENARIOS}
    parser.add_argument("--kills", type=int, default=24, help="kills of each query; 24 make more than 200 of all")
    parser.add_argument("--files", type=int, default=150, help="files of each source, a batch each")
    parser.add_argument("--only", default=",".join(known), metavar="NAME,...", help=f"of {', '.join(known)}")
    parser.add_argument("--folder", type=Path, help="a new folder where all of it is done, and stays, but the storage")
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
    options.scenarios = [known[name] for name in options.only.split(",")]
    return options


if __name__ == "__main__":
    main()
