"""The script of a case: its own, or the query of a project that it names, with everything that the project declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from watersmeet.errors import WatersmeetError, did_you_mean, refuse
from watersmeet.plan.nodes import Query, Script
from watersmeet.project import SPEC_NAME, Project, open_project
from watersmeet.queries import read_script
from watersmeet.testing.case import Case


def script_of(case: Case) -> Script:
    """The script that a case runs; refused if it cannot be read, or names a query that is not there."""
    if case.query is None:
        return read_script(case.sql, case.path, external_names=())
    file, _, name = case.query.partition("#")
    root = _root(case)
    project = _open_case_project(case, root, file)
    try:
        script = read_script(project.text, project.script_name, external_names=())
    except WatersmeetError as error:
        raise project.relocate(error) from error
    of_file = [query for query in script.queries if _lies_in(project, query, root / file)]
    matches = [query for query in of_file if not name or (query.into or "").lower() == name.lower()]
    if len(matches) != 1:
        names = [query.into for query in of_file if query.into is not None]
        reason = f"{file} has {len(matches)} queries{f' into `{name}`' if name else ''}, not one"
        raise refuse("WRONG_CASE", path=case.path, reason=f"{reason}: {did_you_mean(name, names)}".rstrip("."))
    return replace(script, queries=(matches[0],))


def _root(case: Case) -> Path:
    """Where the files begin that a case names: its project, or the folder that it lies in."""
    folder = Path(case.path).absolute().parent
    return next((above for above in (folder, *folder.parents) if (above / SPEC_NAME).is_file()), folder)


def _open_case_project(case: Case, root: Path, file: str) -> Project:
    if not (root / file).is_file():
        raise refuse("WRONG_CASE", path=case.path, reason=f"there is no file `{file}` in {root}")
    whole = open_project(root) if (root / SPEC_NAME).is_file() else None
    if whole is not None and any(Path(part.name).absolute() == (root / file).absolute() for part in whole.files):
        return whole
    return open_project(root / file)


def _lies_in(project: Project, query: Query, file: Path) -> bool:
    place = project.in_file(Script(project.script_name, project.text).place(query.span))
    return place is not None and Path(place.name).absolute() == file.absolute()
