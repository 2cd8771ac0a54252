"""What a command waits for: a line on a terminal that moves until there is something better to show.

It needs nothing but rich, so that it is there before all else is loaded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

REFRESHED = 4
"""How often in a second what moves is shown anew."""


class WaitIndicator:
    """What is waited for, and since when; shown with the seconds that have gone by."""

    def __init__(self, what: str) -> None:
        self.wait_for(what)

    def wait_for(self, what: str) -> None:
        """Say what is waited for from now on."""
        self._what, self._began = what, time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self._what}, {time.monotonic() - self._began:.0f} s")


@contextmanager
def show_wait(what: str) -> Generator[WaitIndicator]:
    """Show on the terminal of the standard error what is waited for meanwhile; elsewhere nothing.

    The line is gone afterwards. The standard output is left alone.
    """
    indicator = WaitIndicator(what)
    if not sys.stderr.isatty():
        yield indicator
        return
    # By a way of its own: while Spark starts, what goes to the standard error goes to its log.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        console = Console(file=terminal)
        with Live(indicator, console=console, refresh_per_second=REFRESHED, transient=True, redirect_stdout=False):
            yield indicator
