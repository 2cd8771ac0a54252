"""``fmt``: SQL files in canonical layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from watersmeet.duration import format_count
from watersmeet.errors import Refusal, WatersmeetError, refuse
from watersmeet.project import visible_files
from watersmeet.queries import format_script


@dataclass(frozen=True)
class _File:
    """A file, its text, and the text it should have."""

    path: Path
    text: str
    canonical: str

    @property
    def is_canonical(self) -> bool:
        return self.text == self.canonical


def format_files(paths: list[Path]) -> None:
    """Write every file anew that is not in canonical layout. If one cannot be read, none is written."""
    files = _read(paths)
    changed = [file for file in files if not file.is_canonical]
    for file in changed:
        file.path.write_text(file.canonical, "utf-8", newline="\n")
        typer.echo(f"{file.path}: reformatted.")
    typer.echo(f"{format_count(len(changed), 'file')} reformatted, {len(files) - len(changed)} unchanged.")


def check_layout(paths: list[Path]) -> None:
    """Name every file that is not in canonical layout; exits with 1 if there is one."""
    files = _read(paths)
    changed = [file for file in files if not file.is_canonical]
    for file in changed:
        typer.echo(f"{file.path}: would change.")
    typer.echo(f"{format_count(len(changed), 'file')} would change, {len(files) - len(changed)} would not.")
    if changed:
        raise typer.Exit(1)


def _read(paths: list[Path]) -> list[_File]:
    files: list[_File] = []
    refusals: list[Refusal] = []
    for path in dict.fromkeys(file for folder in paths for file in _files(folder)):
        try:
            with path.open(encoding="utf-8", newline="") as opened:
                text = opened.read()
            files.append(_File(path, text, format_script(text.replace("\r\n", "\n"), str(path))))
        except WatersmeetError as error:
            refusals += error.refusals
        except UnicodeDecodeError:
            reason = "it cannot be read as text"
            refusals += refuse("WRONG_PROJECT", path=path, reason=reason, hint="use UTF-8 text.").refusals
    if refusals:
        raise WatersmeetError(refusals)
    return files


def _files(path: Path) -> list[Path]:
    """The file itself, or all SQL files of a folder."""
    hint = "name an SQL file, or a folder with some."
    if not path.exists():
        raise refuse("FILE_NOT_FOUND", path=path, hint=hint)
    files = visible_files(path, "*.sql") if path.is_dir() else [path]
    if not files:
        raise refuse("WRONG_PROJECT", path=path, reason="it has no SQL file", hint=hint)
    return files
