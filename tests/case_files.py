"""The cases of `tests/cases`: a folder per family with what it refuses in `refused/`. Tests name them by their path."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "cases"
FILES = sorted(FOLDER.rglob("*.yaml"))
RUNNING = [file for file in FILES if "\nfails:" not in file.read_text("utf-8")]
"""The cases whose query runs."""


def case_name(path: Path | str) -> str:
    """The path of a case below `tests/cases`, without its ending: ``asof/tolerance``."""
    return str(Path(path).relative_to(FOLDER).with_suffix("").as_posix())


def case_file(name: str) -> Path:
    """The file of a case by its name."""
    return FOLDER / f"{name}.yaml"
