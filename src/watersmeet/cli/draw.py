"""``draw``: the rows of a case on the axis of time, as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from watersmeet.board.model import only
from watersmeet.counts import counted
from watersmeet.drawing import draw_lives
from watersmeet.errors import did_you_mean, refuse
from watersmeet.fates import Told
from watersmeet.local.rows import FAILURES, NeedsSparkError
from watersmeet.testing import Case, read_case
from watersmeet.testing.script import script_of
from watersmeet.testing.telling import told


def draw_case(path: Path, output: Path | None, query: str | None, batch: int | None) -> None:
    """Draw a case, or its beginning, to a file or to the standard output."""
    case = _of_query(read_case(path), query)
    if batch is not None and batch >= len(case.batches):
        raise typer.BadParameter(f"--batch {batch}: the last one of {path} is {len(case.batches) - 1}")
    whole = _told(case)
    shown = whole if batch is None else _told(replace(case, batches=case.batches[: batch + 1], end=None))
    picture = draw_lives(shown, case.name, whole=whole)
    if output is None:
        typer.echo(picture, nl=False)
        return
    try:
        output.write_text(picture, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{output} cannot be written: {error.strerror}") from None
    rows = len(shown.arrivals)
    typer.echo(f"{output}: {counted(rows, 'row')} drawn.")


def _of_query(case: Case, name: str | None) -> Case:
    """The case with the query that is asked for; as it is where none is."""
    if name is None:
        return case
    script = script_of(case)
    found = [one for one in script.queries if (one.into or "").lower() == name.lower()]
    if len(found) != 1:
        known = [one.into for one in script.queries if one.into is not None]
        reason = f"its script has {len(found)} queries into `{name}`, not one: {did_you_mean(name, known)}"
        raise refuse("WRONG_CASE", path=case.path, reason=reason.rstrip("."))
    return replace(case, sql=only(replace(script, queries=tuple(found))), query=None)


def _told(case: Case) -> Told:
    try:
        return told(case)
    except NeedsSparkError as needed:
        reason = f"only Spark can evaluate {needed}, and pictures are made without it"
        raise refuse("WRONG_CASE", path=case.path, reason=reason) from None
    except FAILURES as error:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its query stops: {error}") from None
