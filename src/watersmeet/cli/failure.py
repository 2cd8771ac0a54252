"""How a command fails: with the text of the refusal and an exit code, never with a stack trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum

import typer

from watersmeet.errors import WatersmeetError
from watersmeet.references import masked

UNREADABLE = frozenset({"FILE_NOT_FOUND", "WRONG_PROJECT", "WRONG_CASE", "FOLDER_NOT_EMPTY"})
"""What is wrong before there is a query: exit code 2, as for a wrong option."""


class Format(StrEnum):
    """``text`` is for people, ``json`` for machines."""

    text = "text"
    json = "json"


@contextmanager
def reported(context: typer.Context, format: Format = Format.text) -> Generator[None]:
    """Turn what is raised inside into a message and an exit code."""
    is_debug = bool(context.find_root().obj)
    try:
        yield
    except WatersmeetError as error:
        if is_debug:
            raise
        report(error, format)
        raise typer.Exit(exit_code(error)) from None
    except Exception as error:
        # typer's own exceptions are its way to end a command.
        if is_debug or type(error).__module__.startswith(("typer", "click")):
            raise
        sys.stderr.write(
            f"watersmeet: {_one_line(error)}\nThis is not expected. Run again with --debug to see where.\n"
        )
        raise typer.Exit(3) from None


def report(error: WatersmeetError, format: Format) -> None:
    """Print all refusals: as text to the standard error, as JSON to the standard output."""
    if format is Format.json:
        typer.echo(json.dumps({"refusals": [refusal.as_json() for refusal in error.refusals]}))
    else:
        typer.echo(str(error), err=True)


def exit_code(error: WatersmeetError) -> int:
    """2 if a file or folder could not be read as what it should be, else 1."""
    return 2 if any(refusal.condition in UNREADABLE for refusal in error.refusals) else 1


def _one_line(error: Exception) -> str:
    lines = masked(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
