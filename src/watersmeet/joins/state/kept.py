"""What a family keeps, told by the identity of a state alone: whose rows a spine has, and until when they live.

Whoever looks into a state has no operator at hand, only what the state says of itself. So a family answers from its
identity, in canonical names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.matching import Ints

Until = Mapping[str, Ints]
"""By mark: a value for each row, beyond which the mark ends the row's life. The first to get there does."""

Rule = Literal["each", "weights", "newest"]
"""Which of the stored rows are there. ``each``: all that have not expired. ``weights``: equal rows are put together,
and those are there that come oftener than they go. ``newest``: of several rows of one key the one that came last, if it
stands for anything."""


def _nothing(rows: pa.RecordBatch) -> Until:
    return {}


@dataclass(frozen=True)
class Kept:
    """The rows of a spine: the port they came in through, what ends their lives in words, and until when they live.

    ``keys``: what tells rows apart where the newest counts. ``until`` is nothing where no mark ends them.
    """

    port: int
    ends: str
    rule: Rule = "each"
    until: Callable[[pa.RecordBatch], Until] = _nothing
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Keeping:
    """What a family, by its ``names`` in identities, keeps: the answer for a spine of a state of that identity."""

    names: tuple[str, ...]
    spine: Callable[[Identity, str], Kept]


REPLACED = "until it is replaced or deleted"
"""What ends the life of a row of a table."""
