"""A case as a value: its script, batches of rows in, and the expected output.

The script is its own, or the query of a project that it names, with all declarations of the project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import yaml
from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    GetPydanticSchema,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError, core_schema

from watersmeet.errors import WatersmeetError, catalogue, did_you_mean, refuse
from watersmeet.formats.records import CHANGE
from watersmeet.logical.nodes import Query, Script
from watersmeet.operators.outcomes import OutcomeKind
from watersmeet.project import SPEC_NAME, DoubledKeyError, Project, open_project, read_yaml
from watersmeet.queries import read_script


def _read_as(kind: Any, made: Any) -> GetPydanticSchema:
    """A field that a file holds as one type, and a case as another."""
    return GetPydanticSchema(lambda _, handler: core_schema.no_info_after_validator_function(made, handler(kind)))


CaseRow = tuple[Any, ...] | Mapping[str, Any]
"""The cells of a row as YAML gives them, by position or by column (`cells_of`)."""


def _parse_row(row: Any) -> CaseRow:
    if isinstance(row, list | tuple):
        return tuple(cast("list[Any]", row))
    if not isinstance(row, Mapping):
        raise PydanticCustomError("row", "a row is a list of cells or a mapping of columns to cells")
    for name in cast("Mapping[Any, Any]", row):
        if not isinstance(name, str):
            raise PydanticCustomError(
                "row", "{name} is not the name of a column; write it in quotes", {"name": str(name)}
            )
    return dict(cast("Mapping[str, Any]", row))


_Row = Annotated[CaseRow, GetPydanticSchema(lambda _, __: core_schema.no_info_plain_validator_function(_parse_row))]

RowList = Annotated[tuple[CaseRow, ...], _read_as(list[_Row], tuple)]
"""Rows of a case; `watersmeet.local.cells` turns their cells into values of the declared types."""

_CLOSED = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class CaseBatch:
    """One micro-batch of a case: its input, and the expected output.

    ``rows`` (written ``in``) are the arrivals by source, ``input_watermarks`` (before: ``marks``) the watermarks by
    source or by ``source.column``, ``now`` the wall clock. ``out`` is always checked; any other expectation is not
    checked if it is None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    rows: Annotated[Mapping[str, RowList], Field(alias="in")] = field(default_factory=dict[str, RowList])
    input_watermarks: Annotated[
        Mapping[str, Any], Field(validation_alias=AliasChoices("input_watermarks", "marks"))
    ] = field(default_factory=dict[str, Any])
    now: str | None = None
    restart: StrictBool = False
    out: RowList = ()
    late: RowList | None = None
    unmatched_left: RowList | None = None
    unmatched_right: RowList | None = None
    state: Mapping[str, StrictInt] | None = None
    partitions: Mapping[str, StrictInt] | None = None
    watermarks: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CaseWhy:
    """The expected outcome of a row: ``of`` a source or alias, the ``row``, what it ``is``, and words of the reason."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    of: str
    row: _Row
    what: Annotated[OutcomeKind, Field(alias="is")]
    says: str | None = None


@dataclass(frozen=True)
class Case:
    """A case: a script with batches and an optional ``end``, or one that ``fails`` with a condition.

    The script is its own (``sql``), or that of a project: ``query`` then names one, ``sql/joined.sql#joined``.
    ``spec`` is the number of what it shows in a specification.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    path: str
    name: str
    sql: str = ""
    query: str | None = None
    batches: Annotated[tuple[CaseBatch, ...], _read_as(list[CaseBatch], tuple)] = ()
    ordered: StrictBool = False
    end: RowList | None = None
    why: Annotated[tuple[CaseWhy, ...], _read_as(list[CaseWhy], tuple)] = ()
    fails: str | None = None
    fails_with: str | None = None
    spec: str | None = None


def cells_of(row: CaseRow, columns: Sequence[str], of: str) -> Sequence[Any]:
    """The cells of a row in the order of ``columns``; ValueError if it names one that ``of`` does not have.

    A column that the row does not name is NULL, or ``+`` where a change is listed. A name stands for one column,
    whatever its case, and for ``alias.name`` if only one has it.

    >>> cells_of({"item": "lamp"}, ["id", "item"], "`orders`")
    [None, 'lamp']
    """
    if not isinstance(row, Mapping):
        return row
    cells: dict[str, Any] = {}
    for name, value in row.items():
        column = _column(name, columns, of)
        if column in cells:
            raise ValueError(f"{dict(row)} names `{column}` twice")
        cells[column] = value
    return [cells.get(column, "+" if column == CHANGE else None) for column in columns]


def _column(name: str, columns: Sequence[str], of: str) -> str:
    lower = name.lower()
    matches = [c for c in columns if c == name] or [
        c for c in columns if lower in (c.lower(), c.partition(".")[2].lower())
    ]
    if len(matches) > 1:
        raise ValueError(f"`{name}` could be any of {', '.join(f'`{c}`' for c in matches)}")
    if not matches:
        bare = [c.partition(".")[2] or c for c in columns]
        raise ValueError(f"`{name}` is not a column of {of} ({did_you_mean(name, bare).rstrip('.')})")
    return matches[0]


def read_case(path: Path) -> Case:
    """The case that a file holds; refused with WRONG_CASE, which names the field, or FILE_NOT_FOUND."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise refuse("FILE_NOT_FOUND", path=path, hint="name a case file, such as `tests/late.yaml`.") from None
    except UnicodeDecodeError:
        raise refuse("WRONG_CASE", path=path, reason="it is not UTF-8 text") from None
    return parse_case(text, str(path))


def parse_case(text: str, path: str = "case") -> Case:
    """The case that a text holds.

    >>> case = parse_case("{name: a pair, sql: SELECT, batches: [{in: {l: [[1]]}, out: [[1, null]]}]}")
    >>> case.batches[0].out
    ((1, None),)
    """
    try:
        content: Any = read_yaml(text)
    except DoubledKeyError as error:
        raise refuse("WRONG_CASE", path=path, reason=str(error)) from None
    except yaml.YAMLError as error:
        raise refuse("WRONG_CASE", path=path, reason=f"it is not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise refuse("WRONG_CASE", path=path, reason="it is not a mapping of fields")
    fields = {name: value for name, value in cast("dict[str, Any]", content).items() if value is not None}
    if "path" in fields:
        raise refuse("WRONG_CASE", path=path, reason="there is no field `path`")
    try:
        case = TypeAdapter(Case).validate_python({**fields, "path": path})
    except ValidationError as error:
        raise _validation_refusal(path, error) from None
    wrong = _contradiction(case, runs="batches" in fields)
    if wrong is not None:
        raise refuse("WRONG_CASE", path=path, reason=wrong)
    return case


def _contradiction(case: Case, *, runs: bool) -> str | None:
    """Why the fields of a case do not go together."""
    if bool(case.sql) == (case.query is not None):
        return "it needs either `sql` or `query`"
    if runs == (case.fails is not None):
        return "it needs either `batches` or `fails`"
    if case.fails is not None and case.end is not None:
        return "`end` has no meaning together with `fails`"
    if case.fails is not None and case.why:
        return "`why` has no meaning together with `fails`"
    if case.fails_with is not None and case.fails is None:
        return "`fails_with` needs `fails`"
    if case.fails is not None and case.fails not in catalogue():
        return f"`fails` names an unknown condition: `{case.fails}`; {did_you_mean(case.fails, catalogue())}"
    return None


def _validation_refusal(path: str, error: ValidationError) -> WatersmeetError:
    first = error.errors()[0]
    where = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
    match first["type"]:
        case "unexpected_keyword_argument":
            reason = f"there is no field `{where}`"
        case "missing":
            reason = f"the field `{where}` is missing"
        case _:
            reason = f"the field `{where}` is wrong: {first['msg'].lower()}"
    return refuse("WRONG_CASE", path=path, reason=reason)


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
