"""``make faults``: kills and hindrances at random moments, and the rows compared with those of an undisturbed run.

The faults of each query: the whole process group, the JVM, a Python worker or the prefork server is killed; Postgres or
Kafka is restarted; a second run is started on the same checkpoint, and one that does not see the locks of the first, as
from another host; the run is paused while such a rival continues, and then resumed; an older copy of the checkpoint is
restored; the disk of the storage is full or read-only. Some queries have malformed lines in their data. The run
continues, or ends and is started again. At the end all input has been read, and every row must be there as often as
without faults. Without a broker the scenarios of Kafka are skipped, and the reason is printed.

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
    """Disturb the requested scenarios, and print their outcomes."""
    options = _options(arguments)
    plan = Plan(options.kills, hindrances=options.hindrances, seed=options.seed)
    console = Console()
    outcomes: list[Outcome] = []
    with TemporaryDirectory(prefix="faults", ignore_cleanup_errors=True) as temporary, servers() as backends:
        folder = options.folder or Path(temporary)
        if backends.kafka is None:
            console.print(f"Scenarios of Kafka are skipped: {backends.missing}")
        for scenario in options.scenarios:
            if scenario.sink == "kafka" and backends.kafka is None:
                continue
            outcome = disturb(scenario, folder / scenario.name.replace(" ", "-"), backends, options.files, plan)
            outcomes.append(outcome)
            cells = zip(COLUMNS, outcome.cells, strict=True)
            print("; ".join(f"{column}: {cell}" for column, cell in cells), flush=True)
    console.print(make_table(outcomes))
    sys.exit(0 if all(outcome.is_right for outcome in outcomes) else 1)


def disturb(scenario: Scenario, place: Path, backends: Servers, files: int, plan: Plan) -> Outcome:
    """Run a scenario undisturbed, and then disturbed."""
    address = backends.address(scenario.sink)
    names = [f"{scenario.name.split(' into ')[0].replace(' ', '_')}_{what}" for what in ("calm", "disturbed")]
    calm, disturbed = (place / what for what in ("calm", "disturbed"))
    scenario.make(calm, files, address, names[0], is_calm=True)
    scenario.make(disturbed, files, address, names[1], is_calm=False)
    run = Run(calm, "--end")
    if run.wait(END_SECONDS) != 0:
        raise SystemExit(f"{scenario.name} fails undisturbed: {run.errors[-2000:]}")
    expected = scenario.rows(calm, address, names[0]) + scenario.input_poison(disturbed)
    outcome = run_disturbed(scenario, disturbed, names[1], backends, plan)
    outcome.compare(expected, scenario.rows(disturbed, address, names[1]) + scenario.poison(disturbed))
    return outcome


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    by_name = {scenario.name.replace(" into ", "-").replace(" ", "-"): scenario for scenario in SCENARIOS}
    parser.add_argument("--kills", type=int, default=24, help="kills of each query; 24 give more than 200 in total")
    parser.add_argument("--files", type=int, default=150, help="files of each source, a batch each")
    parser.add_argument("--only", default=",".join(by_name), metavar="NAME,...", help=f"of {', '.join(by_name)}")
    parser.add_argument(
        "--folder", type=Path, help="a new folder for all files, which stay there, except for the storage"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the kinds and moments of kills")
    hindrances = f"other faults, once for each query, among {', '.join(HINDRANCES)}"
    parser.add_argument("--hindrances", default=",".join(HINDRANCES), metavar="NAME,...", help=hindrances)
    parser.add_argument("--no-hindrances", dest="hindrances", action="store_const", const="", help="only kills")
    options = parser.parse_args(arguments)
    wrong = [name for name in options.only.split(",") if name not in by_name]
    if wrong:
        parser.error(f"there is no {wrong[0]}; there are {', '.join(by_name)}")
    options.hindrances = [name for name in options.hindrances.split(",") if name]
    wrong = [name for name in options.hindrances if name not in HINDRANCES]
    if wrong:
        parser.error(f"there is no {wrong[0]}; there are {', '.join(HINDRANCES)}")
    options.scenarios = [by_name[name] for name in options.only.split(",")]
    return options


if __name__ == "__main__":
    main()
