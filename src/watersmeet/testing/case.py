"""A case as a value: a query, batches of rows in, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import yaml
from pydantic import ConfigDict, Field, GetPydanticSchema, StrictBool, StrictInt, TypeAdapter, ValidationError
from pydantic_core import core_schema

from watersmeet.errors import WatersmeetError, catalogue, did_you_mean, refuse
from watersmeet.fates.model import OutcomeKind
from watersmeet.yaml_text import DoubledKeyError, read_yaml


def _read_as(kind: Any, made: Any) -> GetPydanticSchema:
    """A field that a file holds as one type, and a case as another."""
    return GetPydanticSchema(lambda _, handler: core_schema.no_info_after_validator_function(made, handler(kind)))


def _tuples(rows: list[list[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in rows)


RowList = Annotated[tuple[tuple[Any, ...], ...], _read_as(list[list[Any]], _tuples)]
"""Rows by position, their cells as YAML gives them (`cells` turns them into values of the declared types)."""

_CLOSED = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class CaseBatch:
    """One micro-batch of a case: what arrives, and what must come of it.

    ``rows`` (written ``in``) are the arrivals by source, ``marks`` promises by source or by ``source.column``, ``now``
    the wall clock. ``out`` is always checked; of the other expectations, None means that the case does not speak of it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    rows: Annotated[Mapping[str, RowList], Field(alias="in")] = field(default_factory=dict[str, RowList])
    marks: Mapping[str, Any] = field(default_factory=dict[str, Any])
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
    """What must become of a row: ``of`` which source or alias, the ``row``, what it ``is``, and words of the reason."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    of: str
    row: Annotated[tuple[Any, ...], _read_as(list[Any], tuple)]
    what: Annotated[OutcomeKind, Field(alias="is")]
    says: str | None = None


@dataclass(frozen=True)
class Case:
    """A case: a script with batches and an optional ``end``, or one that ``fails`` with a condition.

    The script is its own (``sql``), or that of a project, of which it names a ``query``: ``sql/joined.sql#joined``.
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
