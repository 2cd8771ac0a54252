"""Groups of format 1, in which sums of doubles were doubles, as today's.

- ``sum(x)#1``: the sum; what it has lost by then is lost, and it goes on as the exact value of that double
- ``moments(x)#1``, ``#2``: the mean, and the sum of the squares of what values are off it

A block says by the type of these columns which of both it is: no block is written anew for it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.matching import Bools, Ints
from watersmeet.operators.group.exact_doubles import UNIT, Doubles, add_doubles

_BITS = 28
"""A count of more bits is no weight: it is taken in parts."""


def upgrade_groups(groups: pa.RecordBatch) -> pa.RecordBatch:
    """The groups with exact sums; those that have them are left as they are."""
    columns = dict(zip(groups.schema.names, groups.columns, strict=True))
    for name, column in list(columns.items()):
        if pa.types.is_float64(column.type) and name.endswith(")#1"):
            prefix = name.removesuffix("1")
            if name.startswith("sum("):
                columns |= _upgrade_sum(columns, prefix)
            elif name.startswith("moments("):
                columns |= _upgrade_moments(columns, prefix)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _upgrade_sum(columns: dict[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    total = _to_doubles(columns[f"{prefix}1"])
    places = np.arange(len(total))
    # A sum that had become infinite, or none, stays what it is.
    kinds = (np.isnan(total), np.isposinf(total), np.isneginf(total))
    non_finite = {f"{prefix}{n}": _add_flags(columns[f"{prefix}{n}"], kind) for n, kind in enumerate(kinds, 2)}
    return {f"{prefix}1": add_doubles(pa.nulls(len(total)), places, total, np.ones_like(places)), **non_finite}


def _upgrade_moments(columns: dict[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    mean, squares = _to_doubles(columns[f"{prefix}1"]), _to_doubles(columns[f"{prefix}2"])
    finite = np.isfinite(mean) & np.isfinite(squares)
    mean, squares = np.where(finite, mean, 0.0), np.where(finite, squares, 0.0)
    count = columns[f"{prefix}0"].to_numpy() - columns[f"{prefix}3"].to_numpy()
    places = np.arange(len(mean))
    # The sum of squares is that of what values are off their mean, and the square of the mean for each.
    deviations = add_doubles(pa.nulls(len(mean)), places, squares, np.ones_like(places), up=-UNIT)
    return {
        f"{prefix}1": _add_repeated(pa.nulls(len(mean)), places, mean, count, 1),
        f"{prefix}2": _add_repeated(deviations, places, mean, count, 2),
        f"{prefix}3": _add_flags(columns[f"{prefix}3"], ~finite),
    }


def _add_repeated(old: pa.Array, places: Ints, values: Doubles, counts: Ints, power: Literal[1, 2]) -> pa.Array:
    """Sums, to which values, or their squares, are added so many times."""
    for above in range(0, 63, _BITS):
        part = (counts >> above) & (2**_BITS - 1)
        if part.any():
            old = add_doubles(old, places, values, part, power=power, up=above)
    return old


def _add_flags(count: pa.Array, flags: Bools) -> pa.Array:
    return pa.array(count.to_numpy() + flags)


def _to_doubles(array: pa.Array) -> Doubles:
    return array.to_numpy(zero_copy_only=False)
