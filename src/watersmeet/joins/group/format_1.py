"""Groups of format 1, in which sums of doubles were doubles, as today's.

- ``sum(x)#1``: the sum; what it has lost by then is lost, and it goes on as the exact value of that double
- ``moments(x)#1``, ``#2``: the mean, and the sum of the squares of what values are off it

A block says by the type of these columns which of both it is: no block is written anew for it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.group.wide import UNIT, Doubles, added

_BITS = 28
"""A count of more bits is no weight: it is taken in parts."""


def exact(groups: pa.RecordBatch) -> pa.RecordBatch:
    """The groups with exact sums; those that have them are left as they are."""
    columns = dict(zip(groups.schema.names, groups.columns, strict=True))
    for name, column in list(columns.items()):
        if pa.types.is_float64(column.type) and name.endswith(")#1"):
            kept = name.removesuffix("1")
            if name.startswith("sum("):
                columns |= _sum(columns, kept)
            elif name.startswith("moments("):
                columns |= _moments(columns, kept)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _sum(columns: dict[str, pa.Array], kept: str) -> dict[str, pa.Array]:
    total = _doubles(columns[f"{kept}1"])
    places = np.arange(len(total))
    # A sum that had become infinite, or none, stays what it is.
    kinds = (np.isnan(total), np.isposinf(total), np.isneginf(total))
    odd = {f"{kept}{n}": _more(columns[f"{kept}{n}"], kind) for n, kind in enumerate(kinds, 2)}
    return {f"{kept}1": added(pa.nulls(len(total)), places, total, np.ones_like(places)), **odd}


def _moments(columns: dict[str, pa.Array], kept: str) -> dict[str, pa.Array]:
    mean, squares = _doubles(columns[f"{kept}1"]), _doubles(columns[f"{kept}2"])
    finite = np.isfinite(mean) & np.isfinite(squares)
    mean, squares = np.where(finite, mean, 0.0), np.where(finite, squares, 0.0)
    count = columns[f"{kept}0"].to_numpy() - columns[f"{kept}3"].to_numpy()
    places = np.arange(len(mean))
    # The sum of squares is that of what values are off their mean, and the square of the mean for each.
    off = added(pa.nulls(len(mean)), places, squares, np.ones_like(places), up=-UNIT)
    return {
        f"{kept}1": _times(pa.nulls(len(mean)), places, mean, count, 1),
        f"{kept}2": _times(off, places, mean, count, 2),
        f"{kept}3": _more(columns[f"{kept}3"], ~finite),
    }


def _times(old: pa.Array, places: Ints, values: Doubles, counts: Ints, power: Literal[1, 2]) -> pa.Array:
    """Sums, to which values, or their squares, are added so many times."""
    for above in range(0, 63, _BITS):
        part = (counts >> above) & (2**_BITS - 1)
        if part.any():
            old = added(old, places, values, part, power=power, up=above)
    return old


def _more(count: pa.Array, some: Bools) -> pa.Array:
    return pa.array(count.to_numpy() + some)


def _doubles(array: pa.Array) -> Doubles:
    return array.to_numpy(zero_copy_only=False)
