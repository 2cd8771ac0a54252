"""The contents of the board: SQL and rows as text, cells as values, from a case and back, or from files.

An empty cell and ``null`` are NULL. Text needs no quotes, unless it is empty or the word null; other values are written
as YAML: ``5``, ``true``, ``[1, 2]``, ``{a: 1}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import pyarrow as pa
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from watersmeet.catalog import Source, Span
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.local.cells import cell
from watersmeet.logical.nodes import Script
from watersmeet.project import Project, absolute_path
from watersmeet.queries import read_readable
from watersmeet.schema import arrow_type
from watersmeet.tools.testing.case import Case, CaseBatch, CaseRow, script_of
from watersmeet.tools.testing.execute import source_cells


def cell_text(value: Any) -> str:
    """A value of a case as its cell shows it.

    >>> [cell_text(value) for value in (None, 1, "a", "", "null", True, [1, None])]
    ['', '1', 'a', '""', '"null"', 'true', '[1, null]']
    """
    match value:
        case None:
            return ""
        case str():
            return f'"{value}"' if value.strip().lower() in ("", "null") or value.startswith('"') else value
        case bytes():
            return _bytes_text(value)
        case datetime():
            return value.replace(tzinfo=None).isoformat(" ")
        case timedelta():
            return f"{value.total_seconds():g}"
        case date() | Decimal():
            return str(value)
        case _:
            return _flow_yaml(plain_value(value))


def parse_cell(text: str, kind: pa.DataType | None) -> Any:
    """The value of a cell for a column of that type, as in a case; None as a type: unknown.

    >>> parse_cell("5", pa.int64())
    5
    >>> [parse_cell(text, pa.string()) for text in ("5", " ", '""')]
    ['5', None, '']
    """
    stripped = text.strip()
    if stripped.lower() in ("", "null"):
        return None
    if stripped.startswith(('"', "!!binary")) or not (kind is None or _is_text(kind)):
        try:
            return yaml.safe_load(stripped)
        except (yaml.YAMLError, ValueError):
            return text
    return text if kind is not None and pa.types.is_string(kind) else stripped


def plain_value(value: Any) -> Any:
    """A value as YAML and JSON have it, in the form that a case is read from.

    >>> plain_value(Decimal("1.50")), plain_value(datetime(2026, 3, 2, 8)), plain_value([("a", 1)])
    ('1.50', '2026-03-02 08:00:00', [['a', 1]])
    """
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case datetime() | date() | Decimal() | timedelta():
            return cell_text(value) if not isinstance(value, timedelta) else value.total_seconds()
        case Mapping():
            return {str(name): plain_value(part) for name, part in cast("Mapping[Any, Any]", value).items()}
        case _:
            return [plain_value(part) for part in value]


def _is_text(kind: pa.DataType) -> bool:
    """Whether the typed text is the value itself, not YAML."""
    type_checks = (pa.types.is_string, pa.types.is_timestamp, pa.types.is_date, pa.types.is_decimal, pa.types.is_binary)
    return any(is_type(kind) for is_type in type_checks)


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _flow_yaml(value)


def _flow_yaml(value: Any) -> str:
    """YAML on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return " ".join(dumped.removesuffix("\n").removesuffix("...").split("\n")).strip()


MOST_TEXT, MOST_BATCHES, MOST_ROWS = 200_000, 200, 2_000
"""The limits of a board: more would not be readable, nor computed quickly enough while typing."""

_CLOSED = ConfigDict(extra="forbid")
_Text = Annotated[str, Field(max_length=MOST_TEXT)]
_Rows = tuple[tuple[_Text, ...], ...]


@dataclass(frozen=True)
class BoardBatch:
    """The rows of a batch by source, each cell as typed; watermarks, the clock and a restart as in a case.

    A row of a table has ``+`` or ``-`` in front.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    rows: Mapping[str, _Rows] = field(default_factory=dict[str, _Rows])
    marks: Mapping[str, _Text] = field(default_factory=dict[str, str])
    now: _Text = ""
    restart: bool = False


@dataclass(frozen=True)
class Board:
    """A script, the query that is played (by its target; empty: the first), and its batches.

    ``ends``: the input ends after the last batch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    name: _Text = ""
    sql: _Text = ""
    query: _Text = ""
    batches: Annotated[tuple[BoardBatch, ...], Field(max_length=MOST_BATCHES)] = ()
    ends: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class WrongCell:
    """A cell that is not a value of its column, or an invalid watermark or clock: ``source`` is then empty."""

    batch: int
    source: str
    row: int
    column: int
    message: str


class WrongBoardError(Exception):
    """Raised for a request that is not a board."""


def parse_board(data: object) -> Board:
    """The board that a page sends; raises `WrongBoardError` for anything else.

    >>> parse_board({"sql": "SELECT 1", "batches": [{"rows": {"a": [["1"]]}}]}).batches[0].rows
    {'a': (('1',),)}
    """
    try:
        board = TypeAdapter(Board).validate_python(data)
    except ValidationError as error:
        raise WrongBoardError(error.errors()[0]["msg"]) from None
    if sum(len(rows) for batch in board.batches for rows in batch.rows.values()) > MOST_ROWS:
        raise WrongBoardError(f"There is room for {MOST_ROWS:,} rows.")
    return board


def board_json(board: Board) -> dict[str, Any]:
    """The board as a page has it."""
    batches = [
        {
            "rows": {name: [list(row) for row in rows] for name, rows in batch.rows.items()},
            "marks": dict(batch.marks),
            "now": batch.now,
            "restart": batch.restart,
        }
        for batch in board.batches
    ]
    return {"name": board.name, "sql": board.sql, "query": board.query, "batches": batches} | {
        "ends": board.ends,
        "ordered": board.ordered,
    }


def board_from_case(case: Case) -> Board:
    """A case on the board. One that names a query of a project brings the whole script of it."""
    sql, query = case.sql, ""
    try:
        script = script_of(case)
    except WatersmeetError:
        # The board shows its refusals after it is opened.
        script = read_readable(case.sql)[0]
    if case.query is not None:
        sql, query = script.text, script.queries[0].into or "" if script.queries else ""
    sources = {source.name: source for source in script.sources}
    try:
        batches = tuple(_board_batch(batch, sources) for batch in case.batches) or (BoardBatch(),)
    except ValueError as error:
        raise refuse("WRONG_CASE", path=case.path, reason=error) from None
    return Board(case.name, sql, query, batches, case.ends, case.ordered)


def _board_batch(batch: CaseBatch, sources: Mapping[str, Source]) -> BoardBatch:
    rows = {
        name: tuple(tuple(map(cell_text, _board_row(sources.get(name), row))) for row in rows)
        for name, rows in batch.rows.items()
    }
    watermarks = {name: cell_text(watermark) for name, watermark in batch.input_watermarks.items()}
    return BoardBatch(rows, watermarks, batch.now or "", batch.restart)


def _board_row(source: Source | None, row: CaseRow) -> Sequence[Any]:
    """The cells of a row by position; of a table with the change in front."""
    if source is None:
        # The script cannot be read, which the board shows.
        return list(row.values()) if isinstance(row, Mapping) else row
    cells = source_cells(source, row)
    return cells if source.kind == "stream" or cells[:1] in (("+",), ("-",), ["+"], ["-"]) else ("+", *cells)


def select_query(script: Script, name: str) -> Script:
    """The script with one of its queries: the one that inserts into that name, or the first."""
    matches = [query for query in script.queries if (query.into or "").lower() == name.lower()]
    return replace(script, queries=(matches or list(script.queries))[:1])


def blank_other_queries(script: Script) -> str:
    """The text of a script without the queries that it does not have any more; all else stays in its place.

    >>> script = read_readable("CREATE STREAM a (t INT); SELECT t FROM a; SELECT STREAM t FROM a")[0]
    >>> blank_other_queries(replace(script, queries=script.queries[1:]))
    'CREATE STREAM a (t INT);                  SELECT STREAM t FROM a'
    """
    text, retained_spans = script.text, {query.span for query in script.queries}
    for query in read_readable(script.text, script.name)[0].queries:
        if query.span not in retained_spans:
            text = _blank(text, query.span)
    return text


def _blank(text: str, span: Span) -> str:
    end = span.end + 1 if text[span.end : span.end + 1] == ";" else span.end
    return text[: span.start] + "".join("\n" if c == "\n" else " " for c in text[span.start : end]) + text[end:]


def case_from_board(board: Board, script: Script) -> tuple[Case, list[WrongCell]]:
    """The board as a case of that script, and the invalid cells; rows with such cells are left out."""
    wrong: list[WrongCell] = []
    sources = {source.name: source for source in script.sources}
    batches: list[CaseBatch] = []
    for number, batch in enumerate(board.batches):
        rows = {
            name: _rows_of(sources[name], typed_rows, number, wrong)
            for name, typed_rows in batch.rows.items()
            if typed_rows and name in sources
        }
        marks = {
            name: parse_cell(watermark, pa.int64()) for name, watermark in batch.marks.items() if watermark.strip()
        }
        batches.append(CaseBatch(rows, marks, batch.now.strip() or None, batch.restart))
    case = Case("board", board.name or "a board", blank_other_queries(script), None, tuple(batches), board.ordered)
    return replace(case, end=() if board.ends else None), wrong


def _rows_of(
    source: Source, rows: Sequence[Sequence[str]], batch: int, wrong: list[WrongCell]
) -> tuple[tuple[Any, ...], ...]:
    parsed_rows: list[tuple[Any, ...]] = []
    signs = 1 if source.kind == "table" else 0
    for number, row in enumerate(rows):
        # A column that was added to the declaration has no cells yet, and one that was taken away has some left.
        typed = [*row[signs:], *[""] * len(source.fields)][: len(source.fields)]
        values = [
            parse_cell(text, arrow_type(declared_field.type))
            for text, declared_field in zip(typed, source.fields, strict=True)
        ]
        bad = [
            WrongCell(batch, source.name, number, column, f"{typed[column]} is not a value of type {declared.type}.")
            for column, (value, declared) in enumerate(zip(values, source.fields, strict=True))
            if not _fits(value, declared.type)
        ]
        wrong += bad
        sign = ("-" if row[:1] == ("-",) or row[:1] == ["-"] else "+",) if signs else ()
        parsed_rows += [] if bad else [(*sign, *values)]
    return tuple(parsed_rows)


def _fits(value: Any, kind: str) -> bool:
    try:
        cell(value, arrow_type(kind))
    except ValueError:
        return False
    return True


MOST = 12
"""The number of rows of a source that are shown: moving more by hand is not practical."""


def rows_of_files(project: Project) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The first rows of each source that reads JSON files of this machine, as cells; nothing of any other."""
    script = read_readable(project.text, project.script_name)[0]
    rows_by_source = {
        source.name: tuple(_rows(source, project.root)) for source in script.sources if source.format == "json"
    }
    return {name: rows for name, rows in rows_by_source.items() if rows}


def _rows(source: Source, root: Path) -> Iterator[tuple[str, ...]]:
    path = Path(absolute_path(source.lowercase_options.get("path", ""), root))
    sign = ("+",) if source.kind == "table" else ()
    rows = (row for file in (sorted(path.glob("*.json")) if path.is_dir() else ()) for row in _objects(file))
    for _, row in zip(range(MOST), rows, strict=False):
        values = {name.lower(): value for name, value in row.items()}
        yield (*sign, *(cell_text(values.get(field.name.lower())) for field in source.fields))


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield cast("dict[str, Any]", row)
