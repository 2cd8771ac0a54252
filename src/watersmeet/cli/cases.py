"""``test``: run case files and show which did not give what they say."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from watersmeet.cli.console import exit_code, print_text, show_wait
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.project import SPEC_NAME, visible_files
from watersmeet.tools.testing import check_any_order, read_case, run_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Verdict = Literal["passed", "failed", "not run", "varies", "unreadable"]
"""``not run``: only Spark could evaluate the case's SQL, and it was not to run on Spark. ``varies``: the query goes by the
order of arrival, and gives other rows in another order."""

AT_ONCE = 3
"""How many cases run on Spark at a time: a batch of few rows is mostly waiting."""

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "not run": 0, "varies": 0, "failed": 1, "unreadable": 2}


def run_cases(paths: list[Path], on: Literal["spark", "kernel", "any order"], master: str | None) -> None:
    """Run all cases under the paths; exits with 1 if one failed, 2 if a file could not be read.

    ``any order``: on the kernels, also with other batches, orders, restarts and numbers of shards.
    """
    files = [file for path in paths for file in case_files(path)]
    with show_wait("Starting Spark") if on == "spark" else nullcontext():
        spark = _session(master) if on == "spark" else None
    verdicts: Counter[Verdict] = Counter()
    with ThreadPoolExecutor(AT_ONCE if on == "spark" else 1) as pool:
        for verdict, text in pool.map(partial(_judge, on=on, spark=spark), files):
            verdicts[verdict] += 1
            print_text(text)
    typer.echo(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    raise typer.Exit(max(map(EXIT_CODES.__getitem__, verdicts)))


def case_files(path: Path) -> list[Path]:
    """The case files that a path stands for: itself, or all of a folder."""
    if not path.exists():
        raise refuse("FILE_NOT_FOUND", path=path, hint="name a case file or a folder of them, such as `cases`.")
    files = [f for f in visible_files(path, "*.y*ml") if f.name != SPEC_NAME] if path.is_dir() else [path]
    if not files:
        raise refuse("WRONG_CASE", path=path, reason="the folder holds no .yaml file")
    return files


def _session(master: str | None) -> SparkSession:
    from watersmeet.spark.session import session

    return session(master)


def _judge(
    file: Path, on: Literal["spark", "kernel", "any order"], spark: SparkSession | None
) -> tuple[Verdict, str]:
    """How one case went, and that in words; of a failed one with its difference."""
    try:
        case = read_case(file)
        result = check_any_order(case) if on == "any order" else run_case(case, on, spark)
    except WatersmeetError as error:
        verdict: Verdict = "unreadable" if exit_code(error) == 2 else "failed"
        return verdict, f"{verdict:<11} {file}\n{error}"
    lines = [f"{result.status:<11} {file}: {result.case.name}", *([result.detail] if result.detail else [])]
    return result.status, "\n".join(lines)
