"""``init``: projects from templates.

`templates/starter` is the plain project. A template is a folder of its own over `templates/common`, which has what
surrounds a project: a workflow for CI, a Dockerfile, a compose file.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree

import typer

from watersmeet.errors import refuse
from watersmeet.version import __version__


class Template(StrEnum):
    """``files``, ``kafka``, ``cdc``: SQL over JSON files, topics, or a topic of Debezium. ``python``: a program."""

    files = "files"
    kafka = "kafka"
    cdc = "cdc"
    python = "python"


@dataclass(frozen=True)
class _Content:
    """The parts of a template, and how it is used.

    ``folder``: its files. ``extras``: what it installs. ``variables``: what `check` in CI must find set. ``checks``:
    the commands of its CI. ``commands``: what to type first. ``entry``: the last lines of its Dockerfile.
    """

    folder: str
    extras: str
    variables: Sequence[str]
    checks: Sequence[str]
    commands: Sequence[str]
    entry: str


_SERVICE = """\
EXPOSE 9464
# Also while Spark starts; 503 once a query has failed, or when nothing was heard of one for five minutes.
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m --retries=3 \\
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9464/health', timeout=5)"]
ENTRYPOINT ["tini", "--", "watersmeet"]
CMD ["run", "/project", "--metrics-port", "9464", "--metrics-host", "0.0.0.0"]
"""
_PROGRAM = """\
ENTRYPOINT ["tini", "--"]
CMD ["python", "pipeline.py"]
"""
_OF_SQL = (
    "watersmeet fmt sql --check",
    "watersmeet check",
    "watersmeet test cases --on kernel",
    "watersmeet test cases",
)
_WITH_SERVERS = "dev up {folder} --detach --feed {folder}/cases/{case}.yaml", "run {folder} --once", "dev stop {folder}"
_TEMPLATES = {
    Template.files: _Content(
        "starter", "spark,java", (), _OF_SQL,
        ("watersmeet run {folder} --end", "watersmeet test {folder}/cases --on kernel"), _SERVICE,
    ),
    Template.kafka: _Content(
        "kafka", "spark,java,kafka,servers", ("KAFKA: nowhere:9092",), _OF_SQL,
        [f"watersmeet {command.replace('{case}', 'joined')}" for command in _WITH_SERVERS], _SERVICE,
    ),
    Template.cdc: _Content(
        "cdc", "spark,java,kafka,postgres,servers", ("KAFKA: nowhere:9092", "POSTGRES: postgresql://nowhere/shop"),
        _OF_SQL, [f"watersmeet {command.replace('{case}', 'priced')}" for command in _WITH_SERVERS], _SERVICE,
    ),
    Template.python: _Content(
        "python", "spark,java", (), ("pytest",), ("cd {folder} && pytest", "cd {folder} && python pipeline.py"),
        _PROGRAM,
    ),
}  # fmt: skip


def init_project(folder: Path, template: Template | None = None) -> None:
    """Write a project into a new or empty folder: the starter, or a template with what surrounds it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "name a new folder, for example `watersmeet init shop`."
        raise refuse("FOLDER_NOT_EMPTY", path=folder, what="is not an empty folder", hint=hint)
    if template is None:
        copy_folder("watersmeet.cli", "templates/starter", folder)
        typer.echo(f"Wrote {folder / 'watersmeet.yml'}, {folder / 'sql/joined.sql'}, sample data and a test case. Try:")
        for command in (f"explain {folder}", f"run {folder} --end", f"test {folder / 'cases'} --on kernel"):
            typer.echo(f"  watersmeet {command}")
        return
    content = _TEMPLATES[template]
    _write_template(folder, content)
    names = ", ".join(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
    typer.echo(f"Wrote into {folder}: {names}. Try:")
    for command in content.commands:
        typer.echo(f"  {command.format(folder=shlex.quote(str(folder)))}")


def copy_folder(package: str, name: str, folder: Path) -> None:
    """Copy a folder from inside a package; files of the same name are replaced."""
    with as_file(files(package).joinpath(name)) as source:
        copytree(source, folder, dirs_exist_ok=True)


def _write_template(folder: Path, content: _Content) -> None:
    for name in ("common", content.folder):
        copy_folder("watersmeet.cli", f"templates/{name}", folder)
    # Packages leave out what begins with a dot, and programs of users are not modules of this package.
    for path in sorted([*folder.glob("dot-*"), *folder.rglob("*.template")]):
        path.rename(path.with_name(path.name.replace("dot-", ".").removesuffix(".template")))
    test_tool = ["pytest"] if "pytest" in content.checks else []
    requirements = [f"watersmeet[{content.extras}]=={__version__}", *test_tool]
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements), "utf-8")
    spec = folder / "watersmeet.yml"
    if spec.is_file():
        spec.write_text(spec.read_text("utf-8").replace("__NAME__", folder.absolute().name), "utf-8")
    _append(folder / "Dockerfile", content.entry)
    _append(folder / ".github" / "workflows" / "watersmeet.yml", _workflow_steps(content))


def _workflow_steps(content: _Content) -> str:
    steps = "".join(f"    - run: {command}\n" for command in content.checks)
    if not content.variables:
        return steps
    variables = "".join(f"      {variable}\n" for variable in content.variables)
    reason = "# Nothing connects to these: `check` refuses variables that are not set."
    return f"{steps}    env:\n      {reason}\n{variables}"


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text("utf-8") + text, "utf-8")
