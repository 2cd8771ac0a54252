"""A store in memory: the state of one shard without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4


class MemoryStore:
    """Values by name in a dictionary, for running a join's steps in the process.

    >>> store = MemoryStore()
    >>> store.put("a", b"1")
    >>> store.get("a"), store.get("b")
    (b'1', None)
    """

    def __init__(self, values: Mapping[str, bytes] | None = None, owner: str | None = None) -> None:
        self._values = dict(values or {})
        self.owner = uuid4().hex if owner is None else owner

    @property
    def values(self) -> Mapping[str, bytes]:
        """All values by name, as they are now."""
        return dict(self._values)

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name; a copy, so that nothing outside can change it later."""
        self._values[name] = bytes(value)

    def remove(self, name: str) -> None:
        """Forget the value of that name, if there is one."""
        self._values.pop(name, None)

    def restart(self) -> MemoryStore:
        """What a restart finds: the same values, and nothing else that was held in memory."""
        return MemoryStore({name: bytes(bytearray(value)) for name, value in self._values.items()}, self.owner)
