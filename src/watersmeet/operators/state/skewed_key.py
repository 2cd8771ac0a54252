"""Many rows of one code, some at a time.

Where one code has more rows than are held in memory at once, they are parted into classes: rows that may be equal are
in one class, so that what must meet does, and each class is merged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from watersmeet.operators.core.matching import Ints
from watersmeet.operators.state.layout import KeyedRows

Hash = Callable[[KeyedRows], Ints]
"""A number per row that is equal where rows are."""


def split_to_fit(parts: Sequence[KeyedRows], high: int, size: int, hash_of: Hash | None) -> Iterator[list[KeyedRows]]:
    """Parts with codes up to ``high``, which alone may have many rows: all at once, or those of ``high`` in classes.

    What comes at once is to be merged by itself; lower codes come first.
    """
    if hash_of is None or sum(map(len, parts)) <= 2 * size:
        yield list(parts)
        return
    split = [(part, int(np.searchsorted(part.codes, high, "left"))) for part in parts]
    yield [part.slice(0, edge) for part, edge in split]
    yield from split_by_hash([part.slice(edge, len(part)) for part, edge in split], size, hash_of)


def split_by_hash(parts: Sequence[KeyedRows], size: int, hash_of: Hash) -> Iterator[list[KeyedRows]]:
    """Parts of one code in classes of about ``size`` rows; equal rows are in one class."""
    parts = [part for part in parts if len(part)]
    classes = -(-sum(map(len, parts)) // size)
    numbers = [_class_numbers(hash_of(part), classes) for part in parts]
    for number in range(classes):
        yield [part.where(of == number) for part, of in zip(parts, numbers, strict=True)]


def _class_numbers(hashes: Ints, classes: int) -> Ints:
    """The class of each row, in few bytes: this alone is held for all rows of the code."""
    return (hashes.view(np.uint64) % np.uint64(classes)).astype(np.min_scalar_type(classes))
