"""The board's answer to every change: refusals, wrong cells, output rows, the outcome of each row, and the picture.

The query runs on the kernels in the process; the definitions give the outcomes of rows. Both run without a JVM.

Also here: a row that is moved along the time axis, and the board written as a case file.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, cast

import pyarrow as pa
import yaml

from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.local.cells import FAILURES, NeedsSparkError
from watersmeet.logical.nodes import Script
from watersmeet.operators.core.operator import StepError
from watersmeet.operators.core.python_values import python_values
from watersmeet.operators.outcomes import Lineage
from watersmeet.queries import analyze, read_readable
from watersmeet.schema import arrow_type
from watersmeet.tools.studio.board.model import (
    Board,
    WrongBoardError,
    board_json,
    case_from_board,
    cell_text,
    parse_board,
    plain_value,
    select_query,
)
from watersmeet.tools.studio.drawing import draw_timeline
from watersmeet.tools.studio.lanes import RowLane, as_datetime, groups_of, outcome_words
from watersmeet.tools.testing.case import Case, CaseBatch, Outcome
from watersmeet.tools.testing.execute import outcomes_of
from watersmeet.tools.testing.execute import trace_case as trace_rows


def move_row(board: Board, batch: int, source: str, row: int, to: int) -> Board:
    """The board with that moment in the first watermarked column of that row; refused if the source has no such column.

    >>> from watersmeet.tools.studio.board.model import BoardBatch
    >>> batch = BoardBatch({"a": (("1", "5"),)})
    >>> board = Board(sql="CREATE STREAM a (id INT, t INT, WATERMARK FOR t AS t - 0)", batches=(batch,))
    >>> move_row(board, 0, "a", 0, 9).batches[0].rows
    {'a': (('1', '9'),)}
    """
    declared = next((candidate for candidate in read_readable(board.sql)[0].sources if candidate.name == source), None)
    if declared is None or not declared.watermarks or not 0 <= batch < len(board.batches):
        raise WrongBoardError(f"{source} has no event time")
    rows = board.batches[batch].rows.get(source, ())
    if not 0 <= row < len(rows):
        raise WrongBoardError("there is no such row")
    time = declared.watermarks[0].column.lower()
    place = next(number for number, field in enumerate(declared.fields) if field.name.lower() == time)
    column = place + (declared.kind == "table")
    cells = [*rows[row], *[""] * len(declared.fields)][: max(len(rows[row]), column + 1)]
    cells[column] = _moment(to, arrow_type(declared.fields[place].type))
    changed = {**board.batches[batch].rows, source: (*rows[:row], tuple(cells), *rows[row + 1 :])}
    batches = list(board.batches)
    batches[batch] = replace(batches[batch], rows=changed)
    return replace(board, batches=tuple(batches))


def _moment(to: int, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return as_datetime(to).date().isoformat()
    return cell_text(as_datetime(to)).removesuffix(":00") if pa.types.is_timestamp(kind) else str(to)


class _Flow(list[Any]):
    """A list on one line."""


class _FlowMap(dict[str, Any]):
    """A mapping on one line."""


class _Block(str):
    """A text with its line breaks."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """YAML as people write cases: rows on one line, SQL as a block."""


_Dumper.add_representer(_Flow, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True))
_Dumper.add_representer(_FlowMap, lambda d, v: d.represent_mapping("tag:yaml.org,2002:map", v, flow_style=True))
_Dumper.add_representer(_Block, lambda d, v: cast("Any", d).represent_scalar("tag:yaml.org,2002:str", v, style="|"))


def dump_case(case: Case, outcomes: Sequence[Outcome]) -> str:
    """The text of a case that expects what came of it: rows out, and rows that were late where there were some.

    >>> case = Case("", "a pair", "SELECT 1;", batches=(CaseBatch({"l": ((1, "a"),)}),))
    >>> print(dump_case(case, [Outcome((pa.table({"id": [1]}),))]))
    name: a pair
    sql: |
      SELECT 1;
    batches:
    - in: {l: [[1, a]]}
      out: [[1]]
    <BLANKLINE>
    """
    sql = "\n".join(line.rstrip() for line in case.sql.strip().expandtabs(4).splitlines()) + "\n"
    content: dict[str, Any] = {"name": case.name, "sql": _Block(sql)}
    if case.ordered:
        content["ordered"] = True
    content["batches"] = [_batch(batch, outcome) for batch, outcome in zip(case.batches, outcomes, strict=False)]
    if case.end is not None:
        content["end"] = _format_rows(outcomes[-1].out)
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _batch(batch: CaseBatch, outcome: Outcome) -> dict[str, Any]:
    content: dict[str, Any] = {"restart": True} if batch.restart else {}
    if batch.rows:
        content["in"] = _FlowMap({name: [plain_value(row) for row in rows] for name, rows in batch.rows.items()})
    if batch.input_watermarks:
        watermarks = {name: plain_value(watermark) for name, watermark in batch.input_watermarks.items()}
        content["input_watermarks"] = _FlowMap(watermarks)
    if batch.now is not None:
        content["now"] = batch.now
    content["out"] = _format_rows(outcome.out)
    late = _format_rows(outcome.late or ())
    return {**content, "late": late} if late else content


def _format_rows(tables: Sequence[pa.Table]) -> _Flow:
    """The rows of tables by position, as a case lists them."""
    return _Flow(plain_value(row) for table in tables for row in zip(*map(python_values, table.columns), strict=True))


Json = dict[str, Any]

MOST_RESULTS = 5_000
"""The number of rows of a result that are shown: each is drawn, and traced to the rows that it comes from."""
MOST_COMPUTED = 400
"""The rows that a board computes with: the definitions look at every pair of rows, at each change of the board."""


@dataclass(frozen=True)
class BoardView:
    """The part that is shown: the picture after so many batches (0: all of them), and how wide it is."""

    step: int = 0
    width: float = 1000.0


def evaluate_board(board: Board, view: BoardView, note: str = "") -> Json:
    """All that a page shows of a board. What cannot be computed is absent, with the reason.

    ``note``: why the query is not to be computed; empty: it is.
    """
    script, refusals = _read(board)
    selected = select_query(script, board.query)
    payload: Json = {
        "sources": _sources(script),
        "queries": [query.into or "" for query in script.queries],
        "query": selected.queries[0].into or "" if selected.queries else "",
        "refusals": [_refusal_json(refusal) for refusal in refusals],
        "wrong": [],
    }
    if refusals:
        return payload
    if not selected.queries:
        return {
            **payload,
            "note": "There is no query yet. Write one: SELECT STREAM ... FROM a declared stream.",
        }
    return payload | ({"note": note} if note else _run_board(board, selected, view))


def _run_board(board: Board, script: Script, view: BoardView) -> Json:
    """The output of a query that may run, or the reason why it cannot run."""
    try:
        case, wrong = case_from_board(board, script)
        if wrong:
            return {"wrong": [asdict(cell) for cell in wrong]}
        rows = sum(len(rows) for batch in case.batches for rows in batch.rows.values())
        if rows > MOST_COMPUTED:
            return {"note": _too_many(rows)}
        outcomes = outcomes_of(case, "kernel")
        results = sum(table.num_rows for outcome in outcomes for table in outcome.out)
        if results > MOST_RESULTS:
            return {
                "note": f"The board shows up to {MOST_RESULTS:,} result rows, and there are {results:,}. {TOO_MUCH}"
            }
        whole = trace_rows(case)
        shown = _truncate_case(case, view.step)
        trace = whole if shown == case else trace_rows(shown)
    except WatersmeetError as error:
        return {"refusals": [_refusal_json(refusal) for refusal in error.refusals]}
    except StepError as error:
        join = script.queries[0].into or "this query"
        return {"refusals": [_refusal_json(Refusal(error.condition, {"join": join, **error.parameters}))]}
    except NeedsSparkError as needed:
        note = f"Only Spark can evaluate {needed}, and the board runs without Spark. Use watersmeet test."
        return {"note": note}
    except FAILURES as error:
        return {"note": f"The query stops: {error}."}
    return {
        "results": _results(outcomes[: len(shown.batches) + (shown.end is not None)], case),
        "rows": _rows(trace),
        "picture": draw_timeline(trace, width=view.width, whole=whole, style="apart"),
        "axis": whole.axis,
        "unit": whole.unit,
    }


TOO_MUCH = "Remove some rows, or save a case: watersmeet test runs it with all rows."
"""The hint for a board that is too large to compute."""


def _too_many(rows: int) -> str:
    """The reason why nothing is computed."""
    return f"The board computes with up to {MOST_COMPUTED} rows, and {rows:,} are on it. {TOO_MUCH}"


def export_case(board: Board) -> str:
    """The board as the text of a case; refused as long as it cannot run."""
    script, refusals = _read(board)
    if refusals:
        raise WatersmeetError(refusals)
    case, wrong = case_from_board(board, select_query(script, board.query))
    if wrong:
        raise WrongBoardError(wrong[0].message)
    return dump_case(case, outcomes_of(case, "kernel"))


def _read(board: Board) -> tuple[Script, list[Refusal]]:
    """The readable part of the SQL, and all its refusals."""
    script, unread = read_readable(board.sql, "the board")
    try:
        analyze(script)
    except WatersmeetError as error:
        return script, [*unread.refusals, *(refusal for refusal in error.refusals if not unread.explains(refusal))]
    return script, list(unread.refusals)


def _refusal_json(refusal: Refusal) -> Json:
    place = refusal.place
    return refusal.as_json() | {"span": place and [place.start, place.end]}


def _sources(script: Script) -> list[Json]:
    return [
        {
            "name": source.name,
            "kind": source.kind,
            "columns": [
                {"name": f.name, "type": f.type, "isTime": source.watermark(f.name) is not None} for f in source.fields
            ],
        }
        for source in script.sources
    ]


def _truncate_case(case: Case, step: int) -> Case:
    """The case after so many of its batches; its end counts as one more."""
    if not 0 < step <= len(case.batches):
        return case
    return replace(case, batches=case.batches[:step], end=None)


def _results(outcomes: Sequence[Outcome], case: Case) -> Json:
    columns: list[str] = outcomes[0].out[0].column_names if outcomes and outcomes[0].out else []
    return {
        "columns": columns,
        "batches": [
            {
                "label": "the end" if number >= len(case.batches) else f"batch {number}",
                "rows": _texts(outcome.out),
                "late": sum(table.num_rows for table in outcome.late or ()),
                "state": dict(outcome.state or {}),
                "watermarks": {name: cell_text(watermark) for name, watermark in (outcome.watermarks or {}).items()},
            }
            for number, outcome in enumerate(outcomes)
        ],
    }


def _texts(tables: Iterable[pa.Table]) -> list[list[str]]:
    return [
        ["NULL" if value is None else cell_text(value) for value in row]
        for table in tables
        for row in zip(*map(python_values, table.columns), strict=True)
    ]


def _rows(trace: Lineage) -> list[Json]:
    """The outcome of each row of the board by its place: batch, source and position; a row may be on several sides."""
    lanes = {lane.arrival.number: lane for group in groups_of(trace) for lane in group.lanes}
    places = _places(trace)
    rows: list[Json] = []
    for number, (batch, source, row) in places.items():
        if number in lanes:
            rows.append(
                {"arrival": number, "batch": batch, "source": source, "row": row, **_outcome_json(lanes[number])}
            )
    return rows


def _places(trace: Lineage) -> Mapping[int, tuple[int, str, int]]:
    """The place of each arrival on the board: the arrivals of a side in a batch are the rows of its source in order."""
    positions: Counter[tuple[int, str, str]] = Counter()
    places: dict[int, tuple[int, str, int]] = {}
    for arrival in sorted(trace.arrivals, key=lambda item: item.number):
        place = (arrival.batch, arrival.side, arrival.source)
        places[arrival.number] = (arrival.batch, arrival.source, positions[place])
        positions[place] += 1
    return places


def _outcome_json(lane: RowLane) -> Json:
    return {
        "side": lane.arrival.side_name,
        "what": outcome_words(lane),
        "shape": lane.shape,
        "reasons": list(lane.reasons),
        "time": None if lane.start is None else str(lane.start),
    }


NOT_A_BOARD = (WrongBoardError, ValueError, KeyError, TypeError, RecursionError)
"""The errors that `parse_board` raises."""


def respond(task: str, data: Any) -> tuple[int, Any]:
    """The HTTP status and the content of the answer to a request with a board.

    >>> respond("answer", {"board": {"rows": 1}})
    (400, {'message': 'This is not a board: Unexpected keyword argument'})
    """
    try:
        board = parse_board(data["board"])
    except NOT_A_BOARD as error:
        return 400, {"message": f"This is not a board: {error}"}
    try:
        return 200, TASKS[task](board, data)
    except MemoryError:
        return 422, {"message": f"The board needs more memory than it may have. {TOO_MUCH}"}
    except (WrongBoardError, WatersmeetError, NeedsSparkError, OSError, *FAILURES) as error:
        return 422, {"message": str(error)}
    except RecursionError:
        return 400, {"message": "A value or an expression is nested too deeply."}
    except Exception as error:
        return 500, {"message": f"This is a bug in Watersmeet: {type(error).__name__}: {error}"}


def _evaluate(board: Board, params: Mapping[str, Any]) -> Json:
    return evaluate_board(board, _view(params), str(params.get("note", "")))


def _move(board: Board, params: Mapping[str, Any]) -> Json:
    """The board with a row at another time, and the answer to it."""
    moved_board = move_row(board, int(params["batch"]), str(params["source"]), int(params["row"]), int(params["to"]))
    return {"board": board_json(moved_board), "answer": evaluate_board(moved_board, _view(params))}


def _view(params: Mapping[str, Any]) -> BoardView:
    return BoardView(int(params.get("step", 0)), min(4000.0, float(params.get("width", 1000))))


def _export(board: Board, _: Mapping[str, Any]) -> Json:
    return {"text": export_case(board)}


TASKS: Mapping[str, Callable[[Board, Mapping[str, Any]], Json]] = {
    "answer": _evaluate, "move": _move, "save": _export,
}  # fmt: skip
"""The tasks that a page can request for a board."""

MOST_BYTES = 4 << 30
"""The memory that the process that computes may take."""
_HEAD = struct.Struct(">HQ")


def read_message(pipe: IO[bytes]) -> tuple[int, bytes]:
    """The number and the content of the next message; raises `EOFError` at the end of input."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    number, size = _HEAD.unpack(head)
    content = pipe.read(size)
    if len(content) < size:
        raise EOFError
    return number, content


def write_message(pipe: IO[bytes], number: int, content: bytes) -> None:
    """Write a message as `read_message` reads it."""
    pipe.write(_HEAD.pack(number, len(content)) + content)
    pipe.flush()


def answer_requests(seconds: float) -> None:
    """Answer requests from the standard input until it ends; ``seconds``: how long the server waits for an answer."""
    with os.fdopen(os.dup(1), "wb") as answers:
        # What any library prints is not part of an answer.
        os.dup2(2, 1)
        _limit_memory()
        while True:
            write_message(answers, 0, b"")  # ready
            try:
                _, request = read_message(sys.stdin.buffer)
            except EOFError:
                return
            # Only this alarm ends the process if the server is killed meanwhile.
            _set_alarm(2 * seconds)
            status, content = respond(*json.loads(request))
            _set_alarm(0)
            write_message(answers, status, json.dumps(content).encode())


def _limit_memory() -> None:
    # Not on every system.
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))


def _set_alarm(seconds: float) -> None:
    """End this process after so many seconds; 0: do not."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
