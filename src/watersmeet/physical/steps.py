"""Steps that rows take on their way to an exchange, each over whole columns: what workers know of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.operators.core.condition import Condition
from watersmeet.plan.windows import Windows


@dataclass(frozen=True)
class Filter:
    """Rows for which a condition is not true go no further than their event times.

    ``beats``: what a row does to its table instead, where it is to go on as the delete of its key.
    """

    condition: Condition
    beats: str | None = None


@dataclass(frozen=True)
class DeriveChange:
    """What a row does to its table: the ``column`` in which that goes on, and the one that may have told it."""

    column: str
    origin: str


@dataclass(frozen=True)
class AssignWindows:
    """Each row once for every window that its time is in, which becomes a column: its start and its end.

    ``is_outer``: a row without a time is none, but goes as far as its other event times.
    """

    time: str
    windows: Windows
    name: str
    is_outer: bool


@dataclass(frozen=True)
class FieldAccess:
    """What a column of structs has under a name."""

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
