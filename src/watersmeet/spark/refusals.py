"""What only Spark can refuse: formats that it does not know, options and paths, in the shape of our own refusals."""

from __future__ import annotations

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Place, WatersmeetError, did_you_mean, refuse
from watersmeet.formats import known_formats


def first_line(error: Exception) -> str:
    """What Spark says, without the plan and the SQLSTATE that follow."""
    return str(error).split("\n", 1)[0].split(" SQLSTATE", 1)[0]


def is_unknown_format(error: Exception) -> bool:
    """Whether Spark does not know a format; it says so in errors of several classes, one of them plain Java."""
    return "DATA_SOURCE_NOT_FOUND" in str(error) or "Failed to find" in str(error)


def unread(source: Source, place: Place | None, error: Exception) -> WatersmeetError:
    """The refusal of a source that Spark cannot read."""
    format_ = str(source.format)
    if is_unknown_format(error):
        meant = did_you_mean(format_, known_formats())
        hint = f"{meant} A format of another package needs `--packages group:name:version`."
        return refuse("UNKNOWN_FORMAT", place, format=format_, hint=hint)
    if "PATH_NOT_FOUND" in str(error):
        return refuse("PATH_NOT_FOUND", place, source=source.name, path=source.options.get("path", ""))
    hint = "correct the options; they are Spark's own for this format."
    return refuse("WRONG_OPTION", place, format=format_, option=f"USING {format_}", reason=first_line(error), hint=hint)


def unwritten(sink: Sink, place: Place | None, error: Exception) -> WatersmeetError:
    """The refusal of a sink that Spark cannot write to."""
    if is_unknown_format(error):
        return refuse("UNKNOWN_FORMAT", place, format=sink.format, hint=did_you_mean(sink.format, known_formats()))
    hint = f"correct the options of the sink `{sink.name}`; they are Spark's own for this format."
    option, reason = f"USING {sink.format}", first_line(error)
    return refuse("WRONG_OPTION", place, format=sink.format, option=option, reason=reason, hint=hint)
