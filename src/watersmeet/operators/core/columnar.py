"""Steps over whole columns: what workers do to rows on their way to an exchange.

`watersmeet.physical.columnar` plans the steps, and `watersmeet.spark.exchange.columns` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.operators.core.condition import Condition


@dataclass(frozen=True)
class Windows:
    """As many windows as ``number`` at most, counted from the beginning of the one of length ``base`` around a time.

    The window with number n, from 0 on, goes from ``start * n`` to ``first_end + end * n`` behind it; a time lies in
    those of them that end behind it. All lengths are in microseconds.
    """

    base: int
    number: int
    start: int
    first_end: int
    end: int

    @property
    def longest(self) -> int:
        """How long the longest of them is.

        >>> windows_of("CUMULATE", (10, 60)).longest, windows_of("HOP", (10, 25)).longest
        (60, 25)
        """
        return self.first_end + (self.end - self.start) * (self.number - 1)


def windows_of(function: str, lengths: tuple[int, ...]) -> Windows:
    """The windows of a function: TUMBLE has a size, HOP a slide and a size, CUMULATE a step and a size.

    >>> windows_of("CUMULATE", (10, 60))
    Windows(base=60, number=6, start=0, first_end=10, end=10)
    >>> windows_of("HOP", (10, 25))
    Windows(base=10, number=3, start=-10, first_end=25, end=-10)
    """
    step, size = lengths[0], lengths[-1]
    if function == "CUMULATE":
        return Windows(size, size // step, 0, step, step)
    return Windows(step, -(-size // step), -step, size, -step)


@dataclass(frozen=True)
class Filter:
    """Rows for which a condition is not true go no further than their event times.

    ``beats``: what a row does to its table instead, where it is to go on as the delete of its key.
    """

    condition: Condition
    beats: str | None = None


@dataclass(frozen=True)
class DeriveChange:
    """The change that a row makes to its table: the ``column`` that carries it, and the one it may be derived from."""

    column: str
    origin: str


@dataclass(frozen=True)
class AssignWindows:
    """Each row once for every window that its time is in, which becomes a column: its start and its end.

    ``is_outer``: a row without a time is not in the result, but still carries its other event times.
    """

    time: str
    windows: Windows
    name: str
    is_outer: bool


@dataclass(frozen=True)
class FieldAccess:
    """A field of a column of structs."""

    column: str
    name: str


@dataclass(frozen=True)
class Projection:
    """The columns of a view, each with what it shows.

    ``watermarks``: what watermarks are called inside and outside of the view.
    """

    columns: tuple[tuple[str, Condition | FieldAccess], ...]
    watermarks: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Compute:
    """A column more; ``is_dead``: it tells whether the condition is not true."""

    name: str
    condition: Condition
    is_dead: bool = False


Step = Filter | DeriveChange | AssignWindows | Projection | Compute
