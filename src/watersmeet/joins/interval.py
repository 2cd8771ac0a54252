"""The interval join: two rows meet when their event times lie within constant bounds of each other.

Definition. A left row l and a right row r are a pair of the result when their keys are equal (NULL never is), the time
bounds hold, the rest of the condition is true, and neither was late. See `reference` for the same in slow and obvious steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from watersmeet.joins.condition import Condition

Kind = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Side:
    """How one side's rows arrive: the names of their Arrow columns.

    - ``columns``: what the result shows of a row, in order
    - ``times``: the watermarked columns (TIMESTAMP, DATE or integers), which are also the names of their marks
    - ``keys``: the key columns; a NULL in one of them never matches. Empty: every row has the same key
    - ``code``: an int64 column that is equal wherever the keys are equal; None without keys
    - ``exact``: equal codes imply equal keys, so that candidates need no second look
    - ``dead``: a boolean column, true where the row can never match (NULL key or time, own predicate not true); None: all may
    """

    columns: tuple[str, ...]
    times: tuple[str, ...]
    keys: tuple[str, ...] = ()
    code: str | None = None
    exact: bool = False
    dead: str | None = None


@dataclass(frozen=True)
class Bound:
    """``column >= other - constant``: rows of ``column``'s side live until the mark of ``other`` minus ``constant`` passes them."""

    column: str
    other: str
    constant: int


@dataclass(frozen=True)
class IntervalJoin:
    """An interval join, ready to run.

    ``left_time`` and ``right_time`` are the pair of columns that the range matcher works on:
    ``lower <= right_time - left_time <= upper``. ``bounds`` says how long rows live; ``condition`` is whatever else must hold.
    """

    kind: Kind
    left: Side
    right: Side
    left_time: str
    right_time: str
    lower: int
    upper: int
    bounds: tuple[Bound, ...]
    condition: Condition | None = None
