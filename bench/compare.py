"""Our contenders on the packages of two trees: measured alternately, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.contender import Run
from bench.data import Workload
from bench.report import Report
from bench.running import TREE, Measured, in_a_process
from bench.sections import SECTIONS

MeasureIn = Callable[[Run, Path], Measured]


@dataclass(frozen=True)
class Comparison:
    """The median seconds of a batch (or of a start) in every repetition, on the package of this tree and the other."""

    run: Run
    section: str
    here: tuple[float, ...]
    there: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The factor by which this tree takes longer: above one, it is slower."""
        return median(self.here) / median(self.there)

    @property
    def ratio_of_shortest(self) -> float:
        """The same of the shortest repetitions: what else the machine does only makes a repetition longer."""
        return min(self.here) / min(self.there)


def compare_trees(
    other: Path,
    sections: Sequence[str],
    workload: Workload,
    repeat: int,
    measure: MeasureIn = in_a_process,
    *,
    only: str = "",
    without: str | None = None,
) -> Iterator[Comparison]:
    """Measure each of our runs on both trees in turn; the first tree alternates, so that a drift affects both."""
    for name in sections:
        for run in SECTIONS[name](workload):
            if run.is_ours and run.matches(only, without):
                yield _compare_run(name, run, other, repeat, measure)


def _compare_run(section: str, run: Run, other: Path, repeat: int, measure: MeasureIn) -> Comparison:
    seconds: dict[Path, list[float]] = {TREE: [], other: []}
    results: set[int | None] = set()
    for number in range(repeat):
        for tree in (TREE, other) if number % 2 == 0 else (other, TREE):
            result = measure(run, tree)
            seconds[tree].append(result["median"])
            results.add(result.get("results"))
    if len(results) > 1:
        raise RuntimeError(f"{run.label or run.contender}: the trees disagree about the number of rows: {results}")
    return Comparison(run, section, tuple(seconds[TREE]), tuple(seconds[other]))


def table(measured: Sequence[Comparison]) -> Report:
    """The runs, each with its medians and their ratio; the range is that of the ratios of single repetitions."""
    rows = list[list[str]]()
    for m in measured:
        ratios = [here / there for here, there in zip(m.here, m.there, strict=True)]
        rows.append([
            m.section, m.run.label or m.run.contender, f"{median(m.here):.3f}", f"{median(m.there):.3f}",
            f"{m.ratio:.2f}", f"{m.ratio_of_shortest:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
        ])  # fmt: skip
    headings = ("section", "contender", "this tree", "other tree", "ratio", "of shortest", "range")
    return Report("Median seconds per batch (start: to the first result)", headings, rows, labels=2)


def as_json(measured: Comparison) -> Measured:
    """A run as JSON for the file of results."""
    return asdict(measured) | {
        "ratio": round(measured.ratio, 3),
        "ratio_of_shortest": round(measured.ratio_of_shortest, 3),
    }
