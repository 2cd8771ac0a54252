"""From a path to a script that has been read and analyzed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from watersmeet.analyze import analyze
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.language import read_script
from watersmeet.plan.analyzed import AnalyzedQuery
from watersmeet.plan.nodes import Script
from watersmeet.project import Project, open_project


@dataclass(frozen=True)
class Opened:
    """A project whose queries may all run."""

    project: Project
    script: Script
    queries: tuple[AnalyzedQuery, ...]


def open_script(path: Path) -> Opened:
    """Read and analyze all queries of a project; refuses with places in the files that the user wrote."""
    project = open_project(path)
    try:
        script = read_script(project.text, project.script_name)
        queries = analyze(script)
    except WatersmeetError as error:
        raise project.relocate(error) from error
    if not queries:
        raise refuse("NO_QUERY", script=project.script_name)
    return Opened(project, script, queries)
