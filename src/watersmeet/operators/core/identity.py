"""The identity of a state as data: named fields that JSON can hold, in canonical names.

A state outlives aliases, the names and order of outputs, and wording. So its identity is told in *canonical names*
(`CanonicalNames`), in sorted order wherever order means nothing, and without what may change while a state goes on:
limits, idleness, the output of late rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant

Identity = Mapping[str, Any]
"""Named fields that JSON can hold."""

_ORDERLESS = frozenset({"and", "or", "=", "<>", "<=>"})
_MIRROR = {">": "<", ">=": "<="}


class CanonicalNames:
    """Columns as a step calls them, and the canonical names under which a state keeps them.

    A column that is not listed keeps its name. The watermark of a part (``column#part``), which may have parts itself,
    follows its column.

    >>> names = CanonicalNames([("l.t", "0.t")])
    >>> names.canonical("l.t"), names.canonical("l.t#1"), names.canonical("l.t#1#@a-0"), names.canonical("#now")
    ('0.t', '0.t#1', '0.t#1#@a-0', '#now')
    >>> names.from_canonical({"0.t#1": 5, "x": 7})
    {'l.t#1': 5, 'x': 7}
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = dict(pairs)

    def canonical(self, name: str) -> str:
        """The name under which a column, or its watermark, is kept."""
        return _rename(name, self.pairs)

    def to_canonical(self, values: Mapping[str, int]) -> dict[str, int]:
        """Values by column, as they are kept."""
        return {self.canonical(name): value for name, value in values.items()} if self.pairs else dict(values)

    def from_canonical(self, values: Mapping[str, int]) -> dict[str, int]:
        """Values by column that were kept, as a step calls them."""
        return (
            {_rename(name, self._by_canonical): value for name, value in values.items()} if self.pairs else dict(values)
        )

    @cached_property
    def _by_canonical(self) -> dict[str, str]:
        return {canonical: name for name, canonical in self.pairs.items()}

    def canonical_sorted(self, columns: Iterable[str]) -> list[str]:
        """Columns whose order means nothing."""
        return sorted({self.canonical(name) for name in columns})

    def canonical_list(self, columns: Iterable[str]) -> list[str]:
        """Columns in their order."""
        return [self.canonical(name) for name in columns]

    def canonical_or_none(self, column: str | None) -> str | None:
        """A column that there need not be."""
        return None if column is None else self.canonical(column)

    def unions(self, unions: Sequence[tuple[str, tuple[str, ...]]]) -> list[list[Any]]:
        """The columns that several sources feed, each with the watermarks of its parts."""
        return sorted([self.canonical(column), self.canonical_sorted(parts)] for column, parts in unions)

    def condition(self, condition: Condition | None) -> Any:
        """A condition as data: equal where only the order of words differs, not their sense.

        >>> CanonicalNames([("l.v", "0.v")]).condition(Apply(">", (Constant(3), ColumnRef("l.v"))))
        ['<', {'column': '0.v'}, {'int': 3}]
        """
        if condition is None:
            return None
        if isinstance(condition, ColumnRef):
            return {"column": self.canonical(condition.name)}
        if isinstance(condition, Constant):
            return _constant(condition.value)
        operator = _MIRROR.get(condition.operator, condition.operator)
        args = condition.args if operator == condition.operator else condition.args[::-1]
        parts: list[Any] = []
        for arg in args:
            part = self.condition(arg)
            is_same = operator in ("and", "or") and part[:1] == [operator] if isinstance(arg, Apply) else False
            parts += part[1:] if is_same else [part]
        return [operator, *(sorted(parts, key=json.dumps) if operator in _ORDERLESS else parts)]


def _constant(value: object) -> dict[str, Any]:
    if isinstance(value, timedelta):
        return {"microseconds": value // timedelta(microseconds=1)}
    plain = value if value is None or isinstance(value, bool | int | str) else str(value)
    kind = "decimal" if isinstance(value, Decimal) else type(value).__name__
    return {"null": None} if value is None else {kind: plain}


def _rename(name: str, names: Mapping[str, str]) -> str:
    renamed = names.get(name)
    if renamed is None and "#" in name[1:]:
        column, _, part = name.rpartition("#")
        return f"{_rename(column, names)}#{part}"
    return name if renamed is None else renamed


def canonical_json(data: object) -> str:
    """Data as text: equal texts for equal data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
