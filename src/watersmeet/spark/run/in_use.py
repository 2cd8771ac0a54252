"""Whether somebody runs the queries of a storage folder: locks on files in it, which end with the process.

Runs share the folder, and each has its queries for itself: of two at once, one would repeat a batch behind the other's
back, and a sink that takes records as they come would end with an old one. Whoever changes or moves a checkpoint must
have the folder alone. It is seen on this machine, and where the file system has locks; queries that a program of the
user's own runs do not take them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from watersmeet.errors import refuse

LOCK = "in-use.lock"

Use = Literal["shared", "alone"]


@contextmanager
def lock_storage(storage: Path, use: Use, queries: Collection[str] = ()) -> Generator[None]:
    """Use a storage folder, and queries of it, while this is entered; refused if others use what must be alone."""
    with ExitStack() as stack:
        if not _try_lock(storage, LOCK, use, stack):
            raise refuse("CHECKPOINT_IN_USE", storage=storage)
        for query in queries:
            if not _try_lock(storage, f"in-use.{query}.lock", "alone", stack):
                raise refuse("QUERY_IN_USE", query=query, storage=storage)
        yield


def _try_lock(storage: Path, name: str, use: Use, stack: ExitStack) -> bool:
    """Whether nobody else has a lock that excludes this one; held until the end, where there are locks."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return True
    try:
        storage.mkdir(parents=True, exist_ok=True)
        file = os.open(storage / name, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        # A folder that cannot be written to is read at most.
        return True
    stack.callback(os.close, file)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if use == "shared" else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # This file system has no locks.
        return True
    return True
