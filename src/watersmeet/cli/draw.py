"""``draw``: the rows of a case on the axis of time, as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from watersmeet.board.model import blank_other_queries
from watersmeet.counts import format_count
from watersmeet.drawing import draw_timeline
from watersmeet.errors import did_you_mean, refuse
from watersmeet.fates import Lineage
from watersmeet.local.rows import FAILURES, NeedsSparkError
from watersmeet.testing import Case, read_case
from watersmeet.testing.script import script_of
from watersmeet.testing.telling import trace_case


def draw_case(path: Path, output: Path | None, query: str | None, batch: int | None) -> None:
    """Draw a case, or its beginning, to a file or to the standard output."""
    case = _select_query(read_case(path), query)
    if batch is not None and batch >= len(case.batches):
        raise typer.BadParameter(f"--batch {batch}: the last one of {path} is {len(case.batches) - 1}")
    whole = _trace_case(case)
    shown = whole if batch is None else _trace_case(replace(case, batches=case.batches[: batch + 1], end=None))
    picture = draw_timeline(shown, case.name, whole=whole)
    if output is None:
        typer.echo(picture, nl=False)
        return
    try:
        output.write_text(picture, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{output} cannot be written: {error.strerror}") from None
    rows = len(shown.arrivals)
    typer.echo(f"{output}: {format_count(rows, 'row')} drawn.")


def _select_query(case: Case, name: str | None) -> Case:
    """The case with the query that is asked for; as it is where none is."""
    if name is None:
        return case
    script = script_of(case)
    matches = [query for query in script.queries if (query.into or "").lower() == name.lower()]
    if len(matches) != 1:
        names = [query.into for query in script.queries if query.into is not None]
        reason = f"its script has {len(matches)} queries into `{name}`, not one: {did_you_mean(name, names)}"
        raise refuse("WRONG_CASE", path=case.path, reason=reason.rstrip("."))
    return replace(case, sql=blank_other_queries(replace(script, queries=tuple(matches))), query=None)


def _trace_case(case: Case) -> Lineage:
    try:
        return trace_case(case)
    except NeedsSparkError as needed:
        reason = f"only Spark can evaluate {needed}, and pictures are drawn without Spark"
        raise refuse("WRONG_CASE", path=case.path, reason=reason) from None
    except FAILURES as error:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its query stops: {error}") from None
