"""A row moved by hand along the axis of time: the cell of its event time is written anew."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from watersmeet.board.cells import cell_text
from watersmeet.board.model import Board, WrongBoardError
from watersmeet.drawing.scale import as_datetime
from watersmeet.queries import read_readable
from watersmeet.schema import arrow_type


def move_row(board: Board, batch: int, source: str, row: int, to: int) -> Board:
    """The board with that moment in the first watermarked column of that row; refused where there is none.

    >>> from watersmeet.board.model import BoardBatch
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
