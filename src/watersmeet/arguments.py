"""Arguments of the Python calls: each is looked at before anything is done with it, and refused in one line."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

from watersmeet.catalog import Amount
from watersmeet.duration import DAY, SECOND, parse_duration
from watersmeet.errors import Refusal, WatersmeetError, refuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Duration = str | int | timedelta
"""A length of time: ``"5 minutes"``, a timedelta, also of pandas or numpy; or a number, where times are integers."""

_SHOWN = 80


def wrong(argument: str, value: Any, reason: str, hint: str) -> WatersmeetError:
    """The refusal of an argument."""
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return refuse("WRONG_ARGUMENT", argument=argument, value=shown, reason=reason, hint=hint)


@contextmanager
def hints_in_python() -> Generator[None]:
    """Rewrite the hints of refusals inside the block from SQL to Python arguments."""
    try:
        yield
    except WatersmeetError as error:
        raise WatersmeetError([_in_python(refusal) for refusal in error.refusals]) from error


def _in_python(refusal: Refusal) -> Refusal:
    hint = refusal.parameters.get("hint", "")
    if refusal.condition == "WITHIN_NEEDS_ONE_TIME":
        details = refusal.parameters
        reason = f"its side has the watermarked columns {details['columns']}, but `within` compares only one"
        return wrong(f"{details['side']}_time", None, reason, f'write {details["side"]}_time="name".').refusals[0]
    # The text of a condition is SQL; the bound is not part of it.
    if hint and (refusal.condition == "UNBOUNDED_STATE" or refusal.place is None):
        details = _LENGTH.sub(lambda match: f'within="{match[1]} {match[2].lower()}"', hint)
        return replace(refusal, parameters={**refusal.parameters, "hint": details})
    return refusal


_LENGTH = re.compile(r"`(?:WITHIN|INTERVAL) (\d+) (\w+)`")
"""A length of time in SQL."""


def check_frame(argument: str, value: Any) -> None:
    """Refuse a value that is not a Spark DataFrame."""
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        return
    if type(value).__module__.partition(".")[0] in ("pandas", "pyarrow", "polars"):
        call = f"spark.createDataFrame({argument}{'.to_pandas()' if hasattr(value, 'to_pandas') else ''})"
        shown = f"a {type(value).__name__} of {type(value).__module__.partition('.')[0]}"
        hint = f"write `{call}`."
        raise refuse("WRONG_ARGUMENT", argument=argument, value=shown, reason="expected a Spark DataFrame", hint=hint)
    raise wrong(argument, value, "expected a Spark DataFrame", "pass a DataFrame, such as `spark.readStream...load()`.")


def check_frames(frames: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse named arguments that are not DataFrames; ``known`` are the other names that the call takes."""
    for name, value in frames.items():
        if isinstance(value, str | int | float | timedelta | None):
            hint = f"its other arguments are {', '.join(f'`{other}`' for other in known)}."
            raise wrong(name, value, "no argument has that name, and it is not a DataFrame", hint)
        check_frame(name, value)


def check_watermarks(watermarks: Any) -> None:
    """Refuse what cannot move watermarks."""
    if watermarks is None:
        return
    check_frame("watermarks", watermarks)
    columns = [(field.name.lower(), field.dataType.simpleString()) for field in cast("DataFrame", watermarks).schema]
    if columns != [("column", "string"), ("value", "bigint")]:
        shown = ", ".join(f"{name} {type_.upper()}" for name, type_ in columns)
        hint = "select `column STRING, value BIGINT`, in this order."
        reason = "its rows need a column and a value"
        raise refuse("WRONG_ARGUMENT", argument="watermarks", value=f"({shown})", reason=reason, hint=hint)


def check_options(call: str, options: Mapping[str, Any], declared: type) -> None:
    """Refuse a keyword argument that a call does not declare, as Python does."""
    for name in options:
        if name not in declared.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument '{name}'")


def check_text(argument: str, value: Any, example: str) -> None:
    """Refuse a value that is not a string."""
    if not isinstance(value, str):
        raise wrong(argument, value, "expected a string", f"write {argument}={example}.")


def check_column(argument: str, value: Any) -> None:
    """Refuse a value that is not a column name or None."""
    if value is not None and not isinstance(value, str):
        raise wrong(argument, value, "expected the name of a column", f'write {argument}="ts".')


def check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        hint = "use " + " or ".join(f'"{choice}"' for choice in choices) + "."
        raise wrong(argument, value, "it is not one of the choices", hint)


def check_session(argument: str, value: Any) -> None:
    """Refuse a value that is not a Spark session or None."""
    # The session of Spark Connect is a class of its own, of the same name.
    if value is not None and type(value).__name__ != "SparkSession":
        raise wrong(argument, value, "expected a SparkSession", "leave it out, or pass a SparkSession.")


def condition(value: Any) -> tuple[str, ...]:
    """Parse ``on``: one condition as text, or several column names."""
    if isinstance(value, str):
        return (value,)
    parts = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    for part in parts:
        if not isinstance(part, str):
            reason = "expected a string"
            if type(part).__name__ == "Column":
                reason = "a Column does not say which side it belongs to"
            hint = 'write the condition as a string, on="left.id = right.order_id", or shared columns, on="id".'
            raise wrong("on", value, reason, hint)
    return tuple(cast("list[str]", parts))


def values(argument: str, value: Any) -> Mapping[str, Any]:
    """Values by the names of columns."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[Any, Any]", value)):
        raise wrong(argument, value, "expected values by column", f'write {argument}={{"price": 0}}.')
    return cast("Mapping[str, Any]", value)


def pair(argument: str, value: Any) -> tuple[str | None, str | None]:
    """A column of each side: one name for both, or two."""
    if value is None or isinstance(value, str):
        return (value, value)
    if isinstance(value, list | tuple):
        parts = tuple(cast("list[Any]", value))
        if len(parts) == 2 and all(part is None or isinstance(part, str) for part in parts):
            return parts[0], parts[1]
    raise wrong(
        argument, value, "expected a column of each side", f'write {argument}="seq" or {argument}=("seq", "n").'
    )


def amount(argument: str, value: Any) -> Amount:
    """A length of time, or a number.

    >>> amount("within", timedelta(minutes=5)) == amount("within", "5 minutes")
    True
    """
    example = f'write {argument}="5 minutes".'
    if type(value).__name__ == "timedelta64":
        value = _of_numpy(argument, value)
    if _is_whole(value):
        return Amount(int(value), is_interval=False)
    if isinstance(value, str):
        try:
            return Amount(parse_duration(value), is_interval=True)
        except ValueError as error:
            raise wrong(argument, value, str(error), example) from error
    if not isinstance(value, timedelta):
        raise wrong(argument, value, "expected a duration", example)
    # Those of pandas are finer.
    if getattr(value, "nanoseconds", 0):
        raise wrong(argument, value, "it is finer than a microsecond, the smallest step of time", example)
    return Amount(value.days * DAY + value.seconds * SECOND + value.microseconds, is_interval=True)


def before_and_after(argument: str, value: Any) -> tuple[Amount, Amount]:
    """The largest distance of a row before and after another: one length of time for both, or a pair."""
    if not isinstance(value, list | tuple):
        both = amount(argument, value)
        return both, both
    parts = tuple(cast("list[Any]", value))
    if len(parts) != 2:
        hint = f'write {argument}=("0s", "30 minutes").'
        raise wrong(argument, value, "a pair gives how far before and how far after", hint)
    before, after = (amount(argument, part) for part in parts)
    if before.is_interval != after.is_interval:
        hint = f'write {argument}=("0s", "30 minutes"), or two numbers.'
        raise wrong(argument, value, "one is a duration and the other a number", hint)
    return before, after


def idle(argument: str, value: Any) -> int | None:
    """After how many microseconds a side is idle, if ever."""
    if value is None:
        return None
    length = amount(argument, value)
    if not length.is_interval or length.value <= 0:
        raise wrong(argument, value, "expected a positive duration", f'write {argument}="30 seconds".')
    return length.value


def lag(argument: str, value: Any) -> Amount | None:
    """The lag of rows, if one is given."""
    length = None if value is None else amount(argument, value)
    if length is not None and length.value < 0:
        raise wrong(argument, value, "a lag cannot be negative", f'write {argument}="5 minutes".')
    return length


def positive(argument: str, value: Any) -> int | None:
    """A number of at least one, or nothing."""
    if value is None:
        return None
    if not _is_whole(value) or value < 1:
        raise wrong(argument, value, "expected at least 1", "leave it out, or pass a whole number from 1.")
    return int(value)


def share(argument: str, value: Any) -> float:
    """A share of at least a half."""
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0.5 <= value <= 1:
        raise wrong(argument, value, "expected a share from 0.5 to 1", f"write {argument}=0.999.")
    return float(value)


def check_plan(value: Any) -> None:
    """Refuse a value that is not a Substrait plan."""
    if not isinstance(value, bytes | str):
        raise wrong("plan", value, "expected a Substrait plan", "pass the bytes of a file, or JSON as a string.")


def _is_whole(value: Any) -> bool:
    # A length of time of numpy's counts as a number, too.
    return isinstance(value, Integral) and type(value).__name__ not in ("bool", "timedelta64")


def _of_numpy(argument: str, value: Any) -> timedelta:
    """A length of time of numpy's, if it is one of ours."""
    exact = value.astype("timedelta64[us]")
    if exact != value or exact.item() is None:
        raise wrong(argument, value, "it is not a duration in whole microseconds", f'write {argument}="5 minutes".')
    return exact.item()
