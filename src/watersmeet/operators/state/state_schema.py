"""What a family keeps, told by the identity of a state alone: whose rows a spine has, and until when they live.

Whoever looks into a state has no operator at hand, only what the state says of itself. So a family answers from its
identity, in canonical names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Ints

if TYPE_CHECKING:
    from watersmeet.operators.state.inspect import ShardInspector

ExpiryTimes = Mapping[str, Ints]
"""By mark: a value for each row, beyond which the mark ends the row's life. The first to get there does."""

LivenessRule = Literal["each", "weights", "newest"]
"""Which of the stored rows are there. ``each``: all that have not expired. ``weights``: equal rows are put together,
and those are there that come oftener than they go. ``newest``: of several rows of one key the one that came last, if it
stands for anything."""


def _no_expiry(rows: pa.RecordBatch) -> ExpiryTimes:
    return {}


@dataclass(frozen=True)
class SpineSchema:
    """The rows of a spine: the port they came in through, what ends their lives in words, and until when they live.

    ``keys``: what tells rows apart where the newest counts. ``expiry`` is nothing where no mark ends them.
    """

    port: int
    expiry_text: str
    rule: LivenessRule = "each"
    expiry: Callable[[pa.RecordBatch], ExpiryTimes] = _no_expiry
    keys: tuple[str, ...] = ()

    @property
    def has_expiry(self) -> bool:
        """Whether a mark ends its rows."""
        return self.expiry is not _no_expiry


Reach = Callable[[Identity, int], list[tuple[str, str, int]]]
"""How long rows of a port live: a column of theirs, the mark that ends them, and how far it may go beyond the column.
The first such mark to get there ends a life; nothing: no mark does."""


def _no_reach(identity: Identity, port: int) -> list[tuple[str, str, int]]:
    return []


class UnevenError(Exception):
    """Raised for shards that cannot be put together, or taken apart, as they are."""


Numbers = Callable[[Identity, Sequence[Mapping[str, Any]], "ShardInspector"], Mapping[str, Any]]
"""What a shard keeps besides rows and marks, of what those kept from which its rows have come, and of these rows."""


def same_numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """What all of them have."""
    if any(part != parts[0] for part in parts) or "before" in parts[0]:
        raise UnevenError("not all of its shards have run since it was changed")
    return parts[0]


@dataclass(frozen=True)
class StateSchema:
    """What a family, by its ``names`` in identities, keeps: the answer for a spine of a state of that identity.

    ``reach`` says of which rows a state may depend at all: a row is forgotten without a trace once one of these marks
    has passed it. Without it a state may depend on every row that ever came.

    ``numbers`` and ``arrival`` say what becomes of a state in another number of shards: what is kept besides rows, and
    the column, if there is one, by which rows of a shard are in the order of arrival.
    """

    names: tuple[str, ...]
    spine: Callable[[Identity, str], SpineSchema]
    reach: Reach = _no_reach
    numbers: Numbers = same_numbers
    arrival: str | None = None


UNTIL_FINAL = "until they are final, replaced or deleted"
"""What ends the life of a row behind windows."""
UNTIL_REPLACED = "until they are replaced or deleted"
"""What ends the life of a row of a table."""
