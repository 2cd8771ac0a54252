"""Sinks that keep nothing and only show what comes, changes too."""

from __future__ import annotations

from typing import ClassVar

from watersmeet.catalog import Sink
from watersmeet.formats.sink import SinkFormat

CONSOLE, NOTHING = Sink("console", "console", {"truncate": "false"}), Sink("nothing", "noop")
"""Where the rows of a query go that names no sink; and where those do that nobody asked for."""


class DisplaySink(SinkFormat):
    """What is seen and gone."""

    names: ClassVar = ("console", "noop")
    is_display: ClassVar = True


class MemorySink(DisplaySink):
    """A table of the session, which Spark cannot read as a stream and so does not find by name."""

    names: ClassVar = ("memory",)
    is_spark_format: ClassVar = False
