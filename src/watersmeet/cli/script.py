"""The script or project that a command is about: opened, checked and read; and `fmt`, its canonical layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import typer

from watersmeet.cli.dev import add_dev_variables
from watersmeet.duration import format_count
from watersmeet.errors import Refusal, WatersmeetError, refuse
from watersmeet.formats.records import VALUE_FORMAT
from watersmeet.locations import Storage, recorded_sinks
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes import sort_refusals
from watersmeet.logical.passes.branches import share_views
from watersmeet.logical.passes.check_declarations import check_references
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.parser import UnreadPart
from watersmeet.project import (
    Project,
    Sends,
    fill_columns,
    has_local_storage,
    open_project,
    resolve_paths,
    root_references,
    storage_folder,
    visible_files,
)
from watersmeet.queries import analyze, format_script, read_readable, refusals_in


@dataclass(frozen=True)
class OpenedScript:
    """A project whose queries may all run."""

    project: Project
    script: Script
    queries: tuple[AnalyzedQuery, ...]


def open_script(
    path: Path,
    paths: Paths = "written",
    further: Callable[[Project, Script], Iterable[Refusal]] | None = None,
    sends: Sends = "resolved",
    storage: Storage | None = None,
) -> OpenedScript:
    """Read and analyze all queries of a project; refuses with places in the files that the user wrote.

    ``further`` is what else is refused in a script, together with all the rest. ``storage``: where the columns of the
    first start are; without it that of the project, if it is on this machine.
    """
    project, script, unread = _read_readable(path)
    script = root_references(script, project.root.absolute())
    script = resolve_paths(script, project.root) if paths == "absolute" else script
    if storage is None and has_local_storage(project):
        storage = storage_folder(project)
    script, unfilled = fill_columns(script, project.root, storage, sends=sends)
    refusals = [*unread.refusals, *unfilled, *(further(project, script) if further else ())]
    if refusals:
        raise project.relocate(WatersmeetError(sort_refusals([*refusals, *refusals_in(script, unread)])))
    try:
        queries = analyze(script)
    except WatersmeetError as error:
        raise project.relocate(error) from error
    if not queries:
        raise refuse("NO_QUERY", script=project.script_name)
    return OpenedScript(project, *share_views(script, queries, {} if storage is None else recorded_sinks(storage)))


def check_external_references(opened: OpenedScript) -> None:
    """Refuse what refers to variables and files that are not there."""
    opened.project.check_settings()
    try:
        check_references(opened.script)
    except WatersmeetError as error:
        raise opened.project.relocate(error) from error


def check_declared(opened: OpenedScript) -> None:
    """Refuse columns that were read from files of this machine, where Spark reads those of another.

    Schemas of the values of records are read here in any case.
    """
    reason = "Spark has files of its own"
    refusals = [
        Refusal(
            "UNKNOWN_COLUMNS",
            {"source": source.name, "reason": reason, "format": str(source.format), "kind": source.kind.upper()},
            opened.script.place(source.span),
        )
        for source in opened.script.sources
        if source.read_from and VALUE_FORMAT not in source.lowercase_options
    ]
    if refusals:
        raise opened.project.relocate(WatersmeetError(refusals))


def read_project(path: Path) -> tuple[Project, Script]:
    """A project and the script that its files are."""
    project, script, unread = _read_readable(path)
    if unread.refusals:
        raise project.relocate(WatersmeetError(sort_refusals([*unread.refusals, *refusals_in(script, unread)])))
    return project, script


def _read_readable(path: Path) -> tuple[Project, Script, UnreadPart]:
    """A project, the readable part of its script, and the errors in the rest.

    The SQL file next to a Substrait plan, with the same name, declares the tables that the plan reads. The plan writes
    to its one sink.
    """
    if path.suffix != PLAN or not path.is_file():
        project = open_project(path)
        add_dev_variables(project.root)
        return project, *read_readable(project.text, project.script_name)
    sql_file = path.with_suffix(".sql")
    project = (
        open_project(sql_file) if sql_file.is_file() else Project(path.parent, path.stem, f"{path.stem}.storage", ())
    )
    script, unread = read_readable(project.text, project.script_name)
    return project, _with_plan(script, path), unread


def _with_plan(script: Script, path: Path) -> Script:
    """The declarations of a SQL file with the query of a plan."""
    from watersmeet.tools.substrait.relations import read_substrait  # imported late: only plans need it

    read = read_substrait(path.read_bytes(), str(path), script.sources)
    declared = {source.name.lower() for source in script.sources}
    unread = tuple(source for source in read.sources if source.name.lower() not in declared)
    into = script.sinks[0].name if len(script.sinks) == 1 else None
    queries = tuple(replace(query, into=into) for query in read.queries)
    return replace(script, sources=(*script.sources, *unread), queries=(*script.queries, *queries))


PLAN = ".substrait"
"""The suffix of files with Substrait plans."""


Paths = Literal["written", "absolute"]
"""Paths of sources and sinks as they are written, or as seen from the folder of the project."""


@dataclass(frozen=True)
class _SqlFile:
    """A file, its text, and the text it should have."""

    path: Path
    text: str
    canonical: str

    @property
    def is_canonical(self) -> bool:
        return self.text == self.canonical


def format_files(paths: list[Path]) -> None:
    """Rewrite every file that is not in canonical layout. If one cannot be read, none is written."""
    files = _read_layouts(paths)
    changed = [file for file in files if not file.is_canonical]
    for file in changed:
        file.path.write_text(file.canonical, "utf-8", newline="\n")
        typer.echo(f"{file.path}: reformatted.")
    typer.echo(f"{format_count(len(changed), 'file')} reformatted, {len(files) - len(changed)} unchanged.")


def check_layout(paths: list[Path]) -> None:
    """Name every file that is not in canonical layout; exits with 1 if there is one."""
    files = _read_layouts(paths)
    changed = [file for file in files if not file.is_canonical]
    for file in changed:
        typer.echo(f"{file.path}: would change.")
    typer.echo(f"{format_count(len(changed), 'file')} would change, {len(files) - len(changed)} would not.")
    if changed:
        raise typer.Exit(1)


def _read_layouts(paths: list[Path]) -> list[_SqlFile]:
    files: list[_SqlFile] = []
    refusals: list[Refusal] = []
    for path in dict.fromkeys(file for folder in paths for file in _sql_files(folder)):
        try:
            with path.open(encoding="utf-8", newline="") as opened:
                text = opened.read()
            files.append(_SqlFile(path, text, format_script(text.replace("\r\n", "\n"), str(path))))
        except WatersmeetError as error:
            refusals += error.refusals
        except UnicodeDecodeError:
            reason = "it cannot be read as text"
            refusals += refuse("WRONG_PROJECT", path=path, reason=reason, hint="use UTF-8 text.").refusals
    if refusals:
        raise WatersmeetError(refusals)
    return files


def _sql_files(path: Path) -> list[Path]:
    """The file itself, or all SQL files of a folder."""
    hint = "name an SQL file, or a folder with some."
    if not path.exists():
        raise refuse("FILE_NOT_FOUND", path=path, hint=hint)
    files = visible_files(path, "*.sql") if path.is_dir() else [path]
    if not files:
        raise refuse("WRONG_PROJECT", path=path, reason="it has no SQL file", hint=hint)
    return files
