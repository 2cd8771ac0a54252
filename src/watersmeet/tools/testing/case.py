"""A case as a value: its script, batches of rows in, the expected output, and what differs from it.

The script is its own, or the query of a project that it names, with all declarations of the project.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import pyarrow as pa
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

from watersmeet.catalog import Source
from watersmeet.errors import Place, WatersmeetError, catalogue, did_you_mean, refuse
from watersmeet.formats.records import CHANGE
from watersmeet.local.cells import arrow_table, cell
from watersmeet.logical.nodes import Query, Script
from watersmeet.operators.core.python_values import python_rows, python_values
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.outcomes import OutcomeKind, row_in_words
from watersmeet.project import SPEC_NAME, DoubledKeyError, Project, open_project, read_yaml
from watersmeet.queries import read_script
from watersmeet.tools.trace import Lineage, RowArrival


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
    source or by ``source.column``, ``now`` the wall clock, ``loaded`` whether tables that stream rows wait for are
    caught up. ``table`` is the content of the result after the batch, if that is a table. An expectation that is None
    is not checked.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    rows: Annotated[Mapping[str, RowList], Field(alias="in")] = field(default_factory=dict[str, RowList])
    input_watermarks: Annotated[
        Mapping[str, Any], Field(validation_alias=AliasChoices("input_watermarks", "marks"))
    ] = field(default_factory=dict[str, Any])
    now: str | None = None
    restart: StrictBool = False
    loaded: StrictBool = False
    out: RowList | None = ()
    table: RowList | None = None
    late: RowList | None = None
    unmatched_left: RowList | None = None
    unmatched_right: RowList | None = None
    duplicates: RowList | None = None
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
    ``total``: what comes out over all batches and the end of input, of a table its content in the end. ``spec`` is the
    number of what it shows in a specification. ``text`` is that of its file, in which errors have their places.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    path: str
    name: str
    sql: str = ""
    query: str | None = None
    batches: Annotated[tuple[CaseBatch, ...], _read_as(list[CaseBatch], tuple)] = ()
    ordered: StrictBool = False
    end: RowList | None = None
    total: RowList | None = None
    why: Annotated[tuple[CaseWhy, ...], _read_as(list[CaseWhy], tuple)] = ()
    fails: str | None = None
    fails_with: str | None = None
    spec: str | None = None
    text: str = field(default="", repr=False, compare=False)

    @property
    def ends(self) -> bool:
        """Whether its input ends after the last batch."""
        return self.end is not None or self.total is not None


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
        text = path.read_text("utf-8-sig")
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
    for name in ("path", "text"):
        if name in fields:
            raise refuse("WRONG_CASE", path=path, reason=f"there is no field `{name}`")
    try:
        case = TypeAdapter(Case).validate_python({**_with_unchecked(fields), "path": path, "text": text})
    except ValidationError as error:
        raise _validation_refusal(path, error) from None
    wrong = _contradiction(case, runs="batches" in fields)
    if wrong is not None:
        raise refuse("WRONG_CASE", path=path, reason=wrong)
    return case


def _with_unchecked(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields where a batch without ``out`` is not checked, if the case or the batch says what else must come."""
    batches = fields.get("batches")
    if not isinstance(batches, list):
        return fields

    def complete(batch: Any) -> Any:
        if not isinstance(batch, dict):
            return batch
        content = cast("dict[str, Any]", batch)
        is_checked = "out" in content or not ("total" in fields or content.get("table") is not None)
        return content if is_checked else {**content, "out": None}

    return {**fields, "batches": [complete(batch) for batch in cast("list[Any]", batches)]}


def _contradiction(case: Case, *, runs: bool) -> str | None:
    """The reason why the fields of a case do not go together."""
    if bool(case.sql) == (case.query is not None):
        return "it needs either `sql` or `query`"
    if runs == (case.fails is not None):
        return "it needs either `batches` or `fails`"
    for name in ("end", "total"):
        if case.fails is not None and getattr(case, name) is not None:
            return f"`{name}` has no meaning together with `fails`"
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
        with in_file(case):
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


@contextmanager
def in_file(case: Case) -> Generator[None]:
    """Give refusals of the SQL of a case their places in its file; what is not found there stays as it is."""
    try:
        yield
    except WatersmeetError as error:
        offsets = _sql_offsets(case)
        if offsets is None:
            raise
        raise WatersmeetError(
            refusal if refusal.place is None else replace(refusal, place=_place_in_file(refusal.place, case, offsets))
            for refusal in error.refusals
        ) from error


def _place_in_file(place: Place, case: Case, offsets: Sequence[int]) -> Place:
    if place.text != case.sql:
        return place
    start = offsets[place.start]
    # The end of a place may be behind the last character; line breaks in between have the indent of the file.
    end = offsets[place.end - 1] + 1 if place.end > place.start else start
    return Place(case.path, case.text, start, end)


def _sql_offsets(case: Case) -> list[int] | None:
    """The offset in the file of each character of the SQL, and of its end; None where the file has other text."""
    node = next((value for key, value in _fields_of(case.text) if key.value == "sql"), None)
    if not isinstance(node, yaml.ScalarNode):
        return None
    begin = node.start_mark.index
    if node.style != "|":
        begin += node.style in ('"', "'")
        return [begin + n for n in range(len(case.sql) + 1)] if case.text.startswith(case.sql, begin) else None
    # A block: each line without its indent, which is that of the first line.
    start = case.text.find("\n", begin) + 1
    first = next((line for line in case.sql.split("\n") if line.strip()), "")
    indents = [len(line) - len(first) for line in case.text[start:].split("\n") if line.strip()]
    offsets: list[int] = []
    for line in case.sql.split("\n"):
        begin = start + (max(0, indents[0]) if line else 0)
        if not case.text.startswith(line, begin):
            return None
        offsets += [begin + n for n in range(len(line) + 1)]
        start = case.text.find("\n", begin) + 1 or len(case.text)
    return offsets


def _fields_of(text: str) -> list[tuple[yaml.Node, yaml.Node]]:
    try:
        root: Any = cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return []
    return root.value if isinstance(root, yaml.MappingNode) else []


def _root(case: Case) -> Path:
    """The folder from which the files are named in a case: its project, or the folder that it lies in."""
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


class QueryStoppedError(Exception):
    """Raised where the query of a case stops with an error, with the reason in words."""


@dataclass(frozen=True)
class Outcome:
    """The output of one batch on an executor. Tables, so that types are known; a field it cannot observe is None.

    ``late`` holds a table per source, because their columns differ. ``table`` is the content of a result so far.
    Watermarks are by ``source.column``, in the type of the column.
    """

    out: tuple[pa.Table, ...] = ()
    late: tuple[pa.Table, ...] | None = None
    unmatched_left: tuple[pa.Table, ...] | None = None
    unmatched_right: tuple[pa.Table, ...] | None = None
    duplicates: tuple[pa.Table, ...] | None = None
    state: Mapping[str, int] | None = None
    partitions: Mapping[str, int] | None = None
    watermarks: Mapping[str, Any] | None = field(default=None)
    table: tuple[pa.Table, ...] | None = None


def compare(expected: CaseBatch, actual: Outcome, *, ordered: bool = False) -> str | None:
    """None if the outcome is what the batch expects, else the difference as people read it.

    >>> print(compare(CaseBatch(out=((1, None), (2, 3))), Outcome((pa.table({"a": [2, 4], "b": [3, 4]}),))))
    out:
      - [1, null]
      + [4, 4]
    """
    parts: list[str | None] = []
    if expected.out is not None:
        parts.append(compare_rows("out", expected.out, actual.out, ordered=ordered))
    for name in ("table", "late", "unmatched_left", "unmatched_right", "duplicates"):
        rows: RowList | None = getattr(expected, name)
        tables: tuple[pa.Table, ...] | None = getattr(actual, name)
        if rows is not None:
            parts.append(_unseen(name) if tables is None else compare_rows(name, rows, tables))
    for name in ("state", "partitions", "watermarks"):
        numbers: Mapping[str, Any] | None = getattr(expected, name)
        if numbers is not None:
            # Groups and first rows were called `#group` and `#top` at first.
            numbers = {side.removeprefix("#"): number for side, number in numbers.items()}
            parts.append(_values(name, numbers, getattr(actual, name)))
    differences = [part for part in parts if part is not None]
    return "\n".join(differences) or None


def _unseen(name: str) -> str:
    return f"{name}:\n  ! expected by the case, but not reported where it ran"


def compare_rows(name: str, expected: RowList, tables: Sequence[pa.Table], *, ordered: bool = False) -> str | None:
    """The difference of rows from those that are expected; None: they are equal."""
    actual = [
        _ActualRow(row, table.schema)
        for table in tables
        for row in zip(*map(python_values, table.columns), strict=True)
    ]
    if ordered:
        return _in_order(name, expected, actual)
    left = list(actual)
    missing: list[CaseRow] = []
    for row in expected:
        position = next((i for i, candidate in enumerate(left) if candidate.fits(row)), None)
        if position is None:
            missing.append(row)
        else:
            del left[position]
    return _difference(name, missing, left)


@dataclass(frozen=True)
class _ActualRow:
    """A row of an outcome with the columns of its table."""

    values: tuple[Any, ...]
    schema: pa.Schema

    def fits(self, expected: CaseRow) -> bool:
        """Whether the values are those of an expected row, which may name their columns."""
        try:
            cells = cells_of(expected, self.schema.names, "the result")
        except ValueError:
            return False
        return _is_same(cells, self.values, self.schema.types)


def _in_order(name: str, expected: RowList, actual: Sequence[_ActualRow]) -> str | None:
    same = len(expected) == len(actual) and all(row.fits(e) for e, row in zip(expected, actual, strict=True))
    return None if same else _difference(f"{name} (in order)", expected, actual)


def _is_same(expected: Sequence[Any], actual: Sequence[Any], kinds: Sequence[pa.DataType]) -> bool:
    if len(expected) != len(actual):
        return False
    try:
        wanted = tuple(freeze(_cell_value(value, kind)) for value, kind in zip(expected, kinds, strict=True))
    except ValueError:
        return False
    return wanted == tuple(freeze(value) for value in actual)


def _cell_value(value: Any, kind: pa.DataType) -> Any:
    """A cell as the value it stands for; a value that Python cannot hold is compared as the text it is shown as."""
    try:
        return cell(value, kind)
    except ValueError:
        if isinstance(value, str):
            return value
        raise


def _values(name: str, expected: Mapping[str, Any], actual: Mapping[str, Any] | None) -> str | None:
    """Only what the case names is compared. A bare name stands for the one column of that name."""
    if actual is None:
        return _unseen(name)
    lines: list[str] = []
    for key, value in expected.items():
        matches = [v for k, v in actual.items() if k == key or k.rpartition(".")[2] == key]
        if len(matches) > 1:
            lines.append(f"  ! {key} could be any of {', '.join(sorted(actual))}")
        elif not matches:
            lines += [f"  - {key}: {_text(value)}", f"  + {key}: none"]
        elif not _is_same([value], matches, [pa.scalar(matches[0]).type]):
            lines += [f"  - {key}: {_text(value)}", f"  + {key}: {_text(matches[0])}"]
    return "\n".join([f"{name}:", *lines]) if lines else None


def _difference(name: str, missing: Sequence[CaseRow], extra: Sequence[_ActualRow]) -> str | None:
    """The rows that differ; where a missing one names its columns, those that came instead do, too."""
    if not missing and not extra:
        return None
    named = any(isinstance(row, Mapping) for row in missing)
    shown = [dict(zip(row.schema.names, row.values, strict=True)) if named else row.values for row in extra]
    lines = [f"  - {_text(row)}" for row in missing] + [f"  + {_text(row)}" for row in shown]
    return "\n".join([f"{name}:", *lines])


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _plain(row: CaseRow) -> list[Any] | dict[str, Any]:
    """A row as people write it."""
    return dict(row) if isinstance(row, Mapping) else list(row)


def compare_reasons(case: Case, lineage: Lineage, sources: Mapping[str, Source]) -> str | None:
    """The differences between the outcomes of rows and what a case says; None: not at all."""
    lines = [line for expected in case.why for line in _differences(case, expected, lineage, sources)]
    return "\n".join(["why:", *lines]) if lines else None


def _differences(case: Case, expected: CaseWhy, lineage: Lineage, sources: Mapping[str, Source]) -> Iterator[str]:
    arrivals = [arrival for arrival in lineage.arrivals if expected.of in (arrival.side, arrival.source)]
    if not arrivals:
        raise refuse("WRONG_CASE", path=case.path, reason=f"`why` names `{expected.of}`, which has no rows")
    meant = [arrival for arrival in arrivals if _is_meant(case, expected, arrival, sources)]
    if not meant:
        yield f"  ! {expected.of} {_plain(expected.row)} did not arrive"
    elif not any(_fits(expected, arrival, lineage) for arrival in meant):
        says = f", saying `{expected.says}`" if expected.says is not None else ""
        yield f"  - {expected.of} {_plain(expected.row)} is {expected.what}{says}"
        for arrival in meant:
            yield from (
                f"  + {arrival.side} {row_in_words(arrival.values)} is {text}"
                for text in _outcome_texts(lineage, arrival)
            )


def _is_meant(case: Case, expected: CaseWhy, arrival: RowArrival, sources: Mapping[str, Source]) -> bool:
    source = sources[arrival.source]
    try:
        cells = cells_of(expected.row, [declared.name for declared in source.fields], f"`{source.name}`")
    except ValueError as error:
        raise refuse("WRONG_CASE", path=case.path, reason=error) from None
    row = python_rows(arrow_table(source.fields, [cells], case.path))[0]
    return freeze(list(row.values())) == freeze([arrival.values[name] for name in row])


def _fits(expected: CaseWhy, arrival: RowArrival, lineage: Lineage) -> bool:
    if all(outcome.what != expected.what for outcome in lineage.of(arrival.number)):
        return False
    return expected.says is None or any(expected.says in text for text in _outcome_texts(lineage, arrival))


def _outcome_texts(lineage: Lineage, arrival: RowArrival) -> list[str]:
    miss = lineage.unmatched_reasons.get(arrival.number)
    why = "" if miss is None else f" {miss.text}"
    return [f"{outcome.what} in batch {outcome.batch}: {outcome.reason}{why}" for outcome in lineage.of(arrival.number)]
