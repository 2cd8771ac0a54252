"""A checkpoint that takes the place of another: made beside it, and put there in the end.

Two names change, one after the other. Whoever is killed between them leaves the old one under another name, from where
the next start takes it back; before, the old one has not been touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def beside(checkpoint: Path) -> Path:
    """Where the new one is made; nothing is there yet."""
    made = checkpoint.with_name(f".new-{checkpoint.name}")
    shutil.rmtree(made, ignore_errors=True)
    return made


def swap(made: Path, checkpoint: Path) -> None:
    """Put the new one in the place of the old one, which is deleted."""
    before = _before(checkpoint)
    shutil.rmtree(before, ignore_errors=True)
    checkpoint.rename(before)
    made.rename(checkpoint)
    shutil.rmtree(before, ignore_errors=True)


def settle(checkpoint: Path) -> None:
    """Take back what somebody left who was killed between the two names."""
    before = _before(checkpoint)
    if before.exists() and not checkpoint.exists():
        before.rename(checkpoint)


def _before(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".before-{checkpoint.name}")
