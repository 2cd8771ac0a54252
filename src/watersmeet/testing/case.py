"""A case as a value: a query, batches of rows in, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from watersmeet.errors import WatersmeetError, catalogue, did_you_mean, refuse

RowList = tuple[tuple[Any, ...], ...]
"""Rows by position, their cells as YAML gives them (`cells` turns them into values of the declared types)."""


@dataclass(frozen=True)
class CaseBatch:
    """One micro-batch of a case: what arrives, and what must come of it.

    ``rows`` (written ``in``) are the arrivals by source, ``marks`` promises by source or by ``source.column``, ``now``
    the wall clock. ``out`` is always checked; of the other expectations, None means that the case does not speak of it.
    """

    rows: Mapping[str, RowList] = field(default_factory=dict[str, RowList])
    marks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    now: str | None = None
    restart: bool = False
    out: RowList = ()
    late: RowList | None = None
    unmatched_left: RowList | None = None
    unmatched_right: RowList | None = None
    state: Mapping[str, int] | None = None
    partitions: Mapping[str, int] | None = None
    watermarks: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    """A case: a script with batches and an optional ``end``, or one that ``fails`` with a condition."""

    path: str
    name: str
    sql: str
    batches: tuple[CaseBatch, ...] = ()
    ordered: bool = False
    end: RowList | None = None
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
        content: Any = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise refuse("WRONG_CASE", path=path, reason="it is not a mapping of fields")
        model = _Case.model_validate(content)
    except yaml.YAMLError as error:
        raise refuse("WRONG_CASE", path=path, reason=f"it is not YAML ({_one_line(error)})") from None
    except ValidationError as error:
        raise _refused(path, error) from None
    return model.case(path)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Batch(_Strict):
    rows: dict[str, list[list[Any]]] = Field(default={}, alias="in")
    marks: dict[str, Any] = {}
    now: str | None = None
    restart: bool = False
    out: list[list[Any]] = []
    late: list[list[Any]] | None = None
    unmatched_left: list[list[Any]] | None = None
    unmatched_right: list[list[Any]] | None = None
    state: dict[str, int] | None = None
    partitions: dict[str, int] | None = None
    watermarks: dict[str, Any] | None = None

    def batch(self) -> CaseBatch:
        return CaseBatch(
            rows={source: _rows(rows) or () for source, rows in self.rows.items()},
            marks=self.marks,
            now=self.now,
            restart=self.restart,
            out=_rows(self.out) or (),
            late=_rows(self.late),
            unmatched_left=_rows(self.unmatched_left),
            unmatched_right=_rows(self.unmatched_right),
            state=self.state,
            partitions=self.partitions,
            watermarks=self.watermarks,
        )


class _Case(_Strict):
    name: str
    sql: str
    ordered: bool = False
    batches: list[_Batch] | None = None
    end: list[list[Any]] | None = None
    fails: str | None = None
    fails_with: str | None = None

    @model_validator(mode="after")
    def _runs_or_fails(self) -> _Case:
        if (self.batches is None) == (self.fails is None):
            raise ValueError("it needs either `batches` or `fails`")
        if self.fails is not None and self.end is not None:
            raise ValueError("`end` has no meaning beside `fails`")
        if self.fails_with is not None and self.fails is None:
            raise ValueError("`fails_with` needs `fails` beside it")
        if self.fails is not None and self.fails not in catalogue():
            raise ValueError(f"`fails` names no condition: `{self.fails}`; {did_you_mean(self.fails, catalogue())}")
        return self

    def case(self, path: str) -> Case:
        return Case(
            path=path,
            name=self.name,
            sql=self.sql,
            batches=tuple(batch.batch() for batch in self.batches or ()),
            ordered=self.ordered,
            end=_rows(self.end),
            fails=self.fails,
            fails_with=self.fails_with,
        )


def _rows(rows: list[list[Any]] | None) -> RowList | None:
    return None if rows is None else tuple(tuple(row) for row in rows)


def _refused(path: str, error: ValidationError) -> WatersmeetError:
    first = error.errors()[0]
    where = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            reason = f"there is no field `{where}`"
        case "missing":
            reason = f"the field `{where}` is missing"
        case "value_error":
            reason = first["msg"].removeprefix("Value error, ")
        case _:
            reason = f"the field `{where}` is wrong: {first['msg'].lower()}"
    return refuse("WRONG_CASE", path=path, reason=reason)


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())
