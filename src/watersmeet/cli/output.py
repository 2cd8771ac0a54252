"""What commands print of rows and scripts."""

from __future__ import annotations

import typer

from watersmeet.control_characters import escape_controls


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text in which others may have put control characters: in names, in values, in messages of libraries."""
    typer.echo(escape_controls(text), err=err)
