"""Whether somebody runs the queries of a storage folder: a lock on a file in it, which ends with the process.

Runs share it; whoever changes or moves a checkpoint must have it alone. It is seen on this machine, and where the file
system has locks; queries that a program of the user's own runs do not take it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from watersmeet.errors import refuse

LOCK = "in-use.lock"

Use = Literal["shared", "alone"]


@contextmanager
def using(storage: Path, use: Use) -> Generator[None]:
    """Use a storage folder while this is entered; refused if that must be alone and is not."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    try:
        storage.mkdir(parents=True, exist_ok=True)
        file = os.open(storage / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        # A folder that cannot be written to is read at most.
        yield
        return
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if use == "shared" else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        if use == "alone":
            raise refuse("CHECKPOINT_IN_USE", storage=storage) from None
        yield
        return
    except OSError:
        # This file system has no locks.
        pass
    try:
        yield
    finally:
        os.close(file)
