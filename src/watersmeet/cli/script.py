"""From a path to a script that has been read and analyzed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from watersmeet.analyze.check_declarations import check_references
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.plan.nodes import Script
from watersmeet.plan.relation import AnalyzedQuery
from watersmeet.project import Project, open_project, resolve_paths, root_references
from watersmeet.queries import analyze, read_script

PLAN = ".substrait"
"""What the files of Substrait plans end with."""


@dataclass(frozen=True)
class Opened:
    """A project whose queries may all run."""

    project: Project
    script: Script
    queries: tuple[AnalyzedQuery, ...]


Paths = Literal["written", "absolute"]
"""Paths of sources and sinks as they are written, or as seen from the folder of the project."""


def open_script(path: Path, paths: Paths = "written") -> Opened:
    """Read and analyze all queries of a project; refuses with places in the files that the user wrote."""
    project, script = read_project(path)
    script = root_references(script, project.root.absolute())
    script = resolve_paths(script, project.root) if paths == "absolute" else script
    try:
        queries = analyze(script)
    except WatersmeetError as error:
        raise project.relocate(error) from error
    if not queries:
        raise refuse("NO_QUERY", script=project.script_name)
    return Opened(project, script, queries)


def check_outside(opened: Opened) -> None:
    """Refuse what refers to variables and files that are not there."""
    opened.project.check_settings()
    try:
        check_references(opened.script)
    except WatersmeetError as error:
        raise opened.project.relocate(error) from error


def read_project(path: Path) -> tuple[Project, Script]:
    """A project and the script that its files are.

    A Substrait plan reads the tables that the SQL file of the same name beside it declares, if there is one, and writes
    to its one sink.
    """
    if path.suffix != PLAN or not path.is_file():
        project = open_project(path)
        return project, _read(project)
    beside = path.with_suffix(".sql")
    project = open_project(beside) if beside.is_file() else Project(path.parent, path.stem, f"{path.stem}.storage", ())
    return project, _with_plan(_read(project), path)


def _read(project: Project) -> Script:
    try:
        return read_script(project.text, project.script_name, given=())
    except WatersmeetError as error:
        raise project.relocate(error) from error


def _with_plan(script: Script, path: Path) -> Script:
    """The declarations of a SQL file with the query of a plan."""
    from watersmeet.language.substrait.plans import read_substrait  # imported late: only plans need it

    read = read_substrait(path.read_bytes(), str(path), script.sources)
    declared = {source.name.lower() for source in script.sources}
    unread = tuple(source for source in read.sources if source.name.lower() not in declared)
    into = script.sinks[0].name if len(script.sinks) == 1 else None
    queries = tuple(replace(query, into=into) for query in read.queries)
    return replace(script, sources=(*script.sources, *unread), queries=(*script.queries, *queries))
