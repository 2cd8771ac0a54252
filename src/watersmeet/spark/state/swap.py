"""A checkpoint that takes the place of another: made beside it, and put there in the end.

Two names change, one after the other. Whoever is killed between them leaves the old one under another name, from where
whoever looks for it next takes it back; before, the old one has not been touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_NEW, _BEFORE = ".new-", ".before-"


def prepare_staging(checkpoint: Path) -> Path:
    """Where the new one is made; nothing is there yet."""
    made = checkpoint.with_name(f"{_NEW}{checkpoint.name}")
    shutil.rmtree(made, ignore_errors=True)
    return made


def swap(made: Path, checkpoint: Path) -> None:
    """Put the new one in the place of the old one, which is deleted."""
    before = _before(checkpoint)
    shutil.rmtree(before, ignore_errors=True)
    checkpoint.rename(before)
    made.rename(checkpoint)
    shutil.rmtree(before, ignore_errors=True)


def recover_swap(checkpoint: Path) -> None:
    """Take back what somebody left who was killed between the two names."""
    before = _before(checkpoint)
    if before.exists() and not checkpoint.exists():
        before.rename(checkpoint)


def recover_swaps(folder: Path) -> None:
    """The same for all checkpoints of a folder."""
    for before in folder.glob(f"{_BEFORE}*"):
        recover_swap(folder / before.name.removeprefix(_BEFORE))


def clear_leftovers(checkpoint: Path) -> None:
    """Take back what was left, and delete what was not finished; nobody else may be at it."""
    recover_swap(checkpoint)
    for leftover in (_before(checkpoint), checkpoint.with_name(f"{_NEW}{checkpoint.name}")):
        shutil.rmtree(leftover, ignore_errors=True)


def _before(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{_BEFORE}{checkpoint.name}")
