"""Settings: which there are, and which values they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watersmeet.analyze.draft import listed
from watersmeet.duration import parse_duration


@dataclass(frozen=True)
class Known:
    """A setting there is: which values it takes, and how to say so."""

    accepts: Callable[[str], bool]
    reason: str
    hint: str


def choice(name: str, choices: tuple[str, ...], example: str) -> Known:
    """A setting that is one of several words, in any case."""
    return Known(lambda value: value.lower() in choices, f"it is {listed(choices, 'or')}", _written(name, example))


def number(name: str, example: int) -> Known:
    """A setting that counts something."""
    return Known(is_positive, "it is a whole number above 0", _written(name, example))


def duration(name: str, example: str) -> Known:
    """A setting that is a length of time."""
    return Known(
        lambda value: (duration_set(value) or 0) > 0, "it is a length of time above 0", _written(name, example)
    )


def is_positive(value: str) -> bool:
    """Whether a value is a whole number above 0."""
    return value.isascii() and value.isdigit() and int(value) > 0


def duration_set(value: str) -> int | None:
    """The microseconds that the value of a setting stands for; None if it is no length of time above 0.

    >>> duration_set("1 hour"), duration_set("soon")
    (3600000000, None)
    """
    try:
        return parse_duration(value) or None
    except ValueError:
        return None


def _written(name: str, example: object) -> str:
    return f"write `SET {name} = {example}`."
