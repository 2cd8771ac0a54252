"""What the board answers to every change: refusals, wrong cells, rows out, what became of each row, and the picture.

The query runs on the kernels in the process; what became of rows is told by the definitions. Both without a JVM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from watersmeet.board.cells import text_of
from watersmeet.board.model import Board, WrongBoardError, case_of, chosen
from watersmeet.board.written import written
from watersmeet.drawing import draw_lives
from watersmeet.drawing.lanes import Lane, groups_of
from watersmeet.drawing.words import fate_words
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.fates.model import Told
from watersmeet.joins.core.operator import StepError
from watersmeet.joins.core.python_values import python_values
from watersmeet.local.rows import FAILURES, NeedsSparkError
from watersmeet.plan.nodes import Script
from watersmeet.queries import analyze, read_readable
from watersmeet.testing.case import Case
from watersmeet.testing.execute import outcomes_of
from watersmeet.testing.outcome import Outcome
from watersmeet.testing.telling import told as told_of

Json = dict[str, Any]

MOST_COMPUTED = 400
"""How many rows a board computes with: the definitions look at every pair of rows, at each change of the board."""


@dataclass(frozen=True)
class View:
    """How much is shown: the picture after so many batches (0: all of them), and how wide it is."""

    step: int = 0
    width: float = 1000.0


def answer(board: Board, view: View) -> Json:
    """All that a page shows of a board. What cannot be computed is absent, with the reason."""
    script, refusals = _read(board)
    one = chosen(script, board.query)
    said: Json = {
        "sources": _sources(script),
        "queries": [query.into or "" for query in script.queries],
        "query": one.queries[0].into or "" if one.queries else "",
        "refusals": [_refused(refusal) for refusal in refusals],
        "wrong": [],
    }
    if refusals:
        return said
    if not one.queries:
        return {**said, "note": "There is no query yet. Write one: SELECT STREAM ... FROM a stream that is declared."}
    return said | _played(board, one, view)


def _played(board: Board, script: Script, view: View) -> Json:
    """What comes of a query that may run, or why nothing does."""
    try:
        case, wrong = case_of(board, script)
        if wrong:
            return {"wrong": [asdict(cell) for cell in wrong]}
        rows = sum(len(rows) for batch in case.batches for rows in batch.rows.values())
        if rows > MOST_COMPUTED:
            return {"note": _too_many(rows)}
        outcomes = outcomes_of(case, "kernel")
        whole = told_of(case)
        shown = _stopped(case, view.step)
        told = whole if shown == case else told_of(shown)
    except WatersmeetError as error:
        return {"refusals": [_refused(refusal) for refusal in error.refusals]}
    except StepError as error:
        join = script.queries[0].into or "this query"
        return {"refusals": [_refused(Refusal(error.condition, {"join": join, **error.parameters}))]}
    except NeedsSparkError as needed:
        note = f"Only Spark can evaluate {needed}: there is none on this board. watersmeet test runs it on Spark."
        return {"note": note}
    except FAILURES as error:
        return {"note": f"The query stops: {error}."}
    return {
        "results": _results(outcomes[: len(shown.batches) + (shown.end is not None)], case),
        "rows": _rows(told),
        "picture": draw_lives(told, width=view.width, whole=whole, style="apart"),
        "axis": whole.axis,
        "unit": whole.unit,
    }


def _too_many(rows: int) -> str:
    """Why nothing is computed."""
    most = f"The board computes with up to {MOST_COMPUTED} rows, and {rows:,} are on it"
    return f"{most}. Take some away, or write them into a case: watersmeet test runs it with all of them."


def saved(board: Board) -> str:
    """The board as the text of a case; refused as long as it cannot run."""
    script, refusals = _read(board)
    if refusals:
        raise WatersmeetError(refusals)
    case, wrong = case_of(board, chosen(script, board.query))
    if wrong:
        raise WrongBoardError(wrong[0].message)
    return written(case, outcomes_of(case, "kernel"))


def _read(board: Board) -> tuple[Script, list[Refusal]]:
    """What can be read of the SQL, and all that is wrong with it."""
    script, unread = read_readable(board.sql, "the board")
    try:
        analyze(script)
    except WatersmeetError as error:
        return script, [*unread.refusals, *(one for one in error.refusals if not unread.explains(one))]
    return script, list(unread.refusals)


def _refused(refusal: Refusal) -> Json:
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


def _stopped(case: Case, step: int) -> Case:
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
                "watermarks": {name: text_of(mark) for name, mark in (outcome.watermarks or {}).items()},
            }
            for number, outcome in enumerate(outcomes)
        ],
    }


def _texts(tables: Iterable[pa.Table]) -> list[list[str]]:
    return [
        ["NULL" if value is None else text_of(value) for value in row]
        for table in tables
        for row in zip(*map(python_values, table.columns), strict=True)
    ]


def _rows(told: Told) -> list[Json]:
    """What became of each row of the board, by its place: batch, source and position; a row may be on several sides."""
    lanes = {lane.arrival.number: lane for group in groups_of(told) for lane in group.lanes}
    places = _places(told)
    found: list[Json] = []
    for number, (batch, source, row) in places.items():
        if number in lanes:
            found.append({"arrival": number, "batch": batch, "source": source, "row": row, **_became(lanes[number])})
    return found


def _places(told: Told) -> Mapping[int, tuple[int, str, int]]:
    """Where each arrival lies on the board: the arrivals of a side in a batch are the rows of its source in order."""
    seen: Counter[tuple[int, str, str]] = Counter()
    places: dict[int, tuple[int, str, int]] = {}
    for arrival in sorted(told.arrivals, key=lambda one: one.number):
        of = (arrival.batch, arrival.side, arrival.source)
        places[arrival.number] = (arrival.batch, arrival.source, seen[of])
        seen[of] += 1
    return places


def _became(lane: Lane) -> Json:
    return {
        "side": lane.arrival.side,
        "what": fate_words(lane),
        "shape": lane.shape,
        "reasons": list(lane.reasons),
        "time": None if lane.start is None else str(lane.start),
    }
