"""``init``: a small project that runs."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree

import typer

from watersmeet.errors import refuse


def init_project(folder: Path) -> None:
    """Write the starter project into a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "name a new folder, for example `watersmeet init shop`."
        raise refuse("FOLDER_NOT_EMPTY", path=folder, what="is not an empty folder", hint=hint)
    copy_folder("watersmeet.cli", "starter", folder)
    typer.echo(f"Wrote {folder / 'watersmeet.yml'}, {folder / 'sql/joined.sql'}, sample data and a test case. Try:")
    for command in (f"explain {folder}", f"run {folder} --end", f"test {folder / 'cases'} --on kernel"):
        typer.echo(f"  watersmeet {command}")


def copy_folder(package: str, name: str, folder: Path) -> None:
    """Copy a folder that lies beside the code of a package; files of the same name are replaced."""
    with as_file(files(package).joinpath(name)) as source:
        copytree(source, folder, dirs_exist_ok=True)
