"""The aggregate functions of a grouping, a row each: all that is known of them without Arrow, as in Spark.

A new one is a row here and, if none of the folds serves it, a fold (`watersmeet.operators.group.fold`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from watersmeet.operators.core.order import SortColumn

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_NUMBERS = frozenset({*_INTEGERS, *_FLOATS, "DECIMAL"})
_ORDERED = frozenset(
    {*_INTEGERS, *_FLOATS, "BOOLEAN", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL", "INTERVAL"}
)
_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "CHAR": "STRING",
    "VARCHAR": "STRING",
}
_NAME = re.compile(r"\s*(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(.*)", re.DOTALL)
_DAY_TIME = re.compile(r"(DAY|HOUR|MINUTE|SECOND)(\s+TO\s+(HOUR|MINUTE|SECOND))?", re.IGNORECASE)

FoldKind = Literal[
    "count", "sum", "moments", "bits", "least", "greatest", "first", "last", "distinct", "list", "set", "percentile"
]
"""The accumulator of a group: a count, sums, sums of powers, bits, one of the rows, or the values of all rows."""

DISTINCT = " distinct"
"""The suffix for the name of a function that counts equal arguments once."""

LIST = " list"
"""The suffix for the name of a function that gives an array, a value for each of its constants."""


@dataclass(frozen=True)
class Function:
    """An aggregate function.

    - ``fold``: what is kept for it; ``takes``: the types of its last argument, None: any
    - ``gives``: its type; "first": that of its first argument; "total": that of a sum or an average; "list": an array
    - ``retractable``: a row can be taken back without knowing the others; ``nullable``: its value can be NULL
    - ``aliases``: its other names; ``args``: how many it takes, of which ``count`` takes any number
    - ``has_constants``: constants may follow its arguments, which are no columns of rows

    A function that is ``filtered`` has the condition of FILTER as its last argument; for others the condition makes
    NULLs of the rows that it denies.
    """

    name: str
    fold: FoldKind
    takes: frozenset[str] | None
    gives: str
    retractable: bool = False
    nullable: bool = True
    aliases: tuple[str, ...] = ()
    args: int = 1
    has_constants: bool = False

    @property
    def base_name(self) -> str:
        """Its name without DISTINCT."""
        return self.name.removesuffix(DISTINCT)

    @property
    def is_ordered(self) -> bool:
        """Whether its value depends on the order of rows, so that ORDER BY may stand inside."""
        return self.fold in ("first", "last", "list") or self.base_name == "listagg"

    @property
    def is_distinct(self) -> bool:
        """Whether equal arguments count once, where that makes a difference."""
        return self.name.endswith(DISTINCT) and self.fold in ("sum", "moments")


_BOOLEAN = frozenset({"BOOLEAN"})
_STRING = frozenset({"STRING"})
_SUMMABLE = _NUMBERS | {"INTERVAL"}

_PLAIN = (
    Function("count", "count", None, "BIGINT", retractable=True, nullable=False),
    Function("count_if", "count", _BOOLEAN, "BIGINT", retractable=True, nullable=False),
    Function("sum", "sum", _SUMMABLE, "total", retractable=True),
    Function("avg", "sum", _SUMMABLE, "total", retractable=True, aliases=("mean",)),
    Function("stddev_samp", "moments", _NUMBERS, "DOUBLE", retractable=True, aliases=("std", "stddev")),
    Function("stddev_pop", "moments", _NUMBERS, "DOUBLE", retractable=True),
    Function("var_samp", "moments", _NUMBERS, "DOUBLE", retractable=True, aliases=("variance",)),
    Function("var_pop", "moments", _NUMBERS, "DOUBLE", retractable=True),
    Function("min", "least", _ORDERED, "first"),
    Function("max", "greatest", _ORDERED, "first"),
    Function("min_by", "least", _ORDERED, "first", args=2),
    Function("max_by", "greatest", _ORDERED, "first", args=2),
    Function("bool_and", "least", _BOOLEAN, "BOOLEAN", aliases=("every",)),
    Function("bool_or", "greatest", _BOOLEAN, "BOOLEAN", aliases=("some", "any")),
    Function("first", "first", None, "first", aliases=("any_value", "first_value")),
    Function("last", "last", None, "first", aliases=("last_value",)),
    Function(
        "first filtered", "first", _BOOLEAN, "first", aliases=("any_value filtered", "first_value filtered"), args=2
    ),
    Function("last filtered", "last", _BOOLEAN, "first", aliases=("last_value filtered",), args=2),
    Function("bit_and", "bits", _INTEGERS, "first"),
    Function("bit_or", "bits", _INTEGERS, "first"),
    Function("bit_xor", "bits", _INTEGERS, "first"),
    Function(f"count{DISTINCT}", "distinct", None, "BIGINT", nullable=False),
    Function("collect_list", "list", None, "list", nullable=False, aliases=("array_agg",)),
    Function("collect_set", "set", _ORDERED, "list", nullable=False),
    Function(f"min{DISTINCT}", "least", _ORDERED, "first"),
    Function(f"max{DISTINCT}", "greatest", _ORDERED, "first"),
    Function(f"collect_list{DISTINCT}", "set", _ORDERED, "list", nullable=False, aliases=(f"array_agg{DISTINCT}",)),
    Function("listagg", "list", _STRING, "first", aliases=("string_agg",), has_constants=True),
    Function(
        f"listagg{DISTINCT}", "set", _STRING, "first", aliases=(f"string_agg{DISTINCT}",), has_constants=True
    ),
    Function(
        "percentile", "percentile", _SUMMABLE, "percentile", aliases=("median", "percentile_cont"), has_constants=True
    ),
    Function("percentile_disc", "percentile", _SUMMABLE, "percentile", has_constants=True),
    Function(
        f"percentile{LIST}", "percentile", _SUMMABLE, "percentile", aliases=(f"percentile_cont{LIST}",),
        has_constants=True,
    ),
    Function(f"percentile_disc{LIST}", "percentile", _SUMMABLE, "percentile", has_constants=True),
)  # fmt: skip

FUNCTIONS = (
    *_PLAIN,
    *(
        replace(one, name=f"{one.name}{DISTINCT}", aliases=tuple(f"{name}{DISTINCT}" for name in one.aliases))
        for one in (replace(one, retractable=False) for one in _PLAIN if one.fold in ("sum", "moments"))
    ),
)

_BY_NAME = {name: function for function in FUNCTIONS for name in (function.name, *function.aliases)}

NAMES = frozenset(_BY_NAME)
"""The names of the functions, in small letters."""


def function_of(name: str) -> Function:
    """The function of that name.

    >>> function_of("STD").name, function_of("any_value").name
    ('stddev_samp', 'first')
    """
    return _BY_NAME[name.lower()]


def needs_all_rows(name: str, *, changes: bool) -> bool:
    """Whether an aggregate must see all rows of a group to know its value; ``changes``: rows may be taken back.

    >>> needs_all_rows("max", changes=False), needs_all_rows("max", changes=True), needs_all_rows("sum", changes=True)
    (False, True, False)
    """
    function = function_of(name)
    is_holistic = function.fold in ("distinct", "list", "set", "percentile") or function.is_distinct
    return is_holistic or (changes and not function.retractable)


def canonical_name(name: str) -> str:
    """The first name of a function among its names."""
    return function_of(name).name


def is_aggregate(name: str) -> bool:
    """Whether a grouping knows a function of that name.

    >>> is_aggregate("every"), is_aggregate("collect_list")
    (True, True)
    """
    return name.lower() in NAMES


def result_type(name: str, types: tuple[str, ...]) -> str | None:
    """The type of an aggregate over arguments of these types, both as Spark's DDL; None: it does not take them.

    >>> result_type("sum", ("INT",)), result_type("avg", ("DECIMAL(10,2)",)), result_type("max_by", ("STRING", "DATE"))
    ('BIGINT', 'DECIMAL(14,6)', 'STRING')
    >>> print(result_type("sum", ("STRING",)))
    None
    """
    function = _BY_NAME.get(name.lower())
    if function is None or (not function.name.startswith("count") and len(types) != function.args):
        return None
    if not types:
        return function.gives
    kind, numbers = _parse_type(types[-1])
    if function.takes is not None and kind not in function.takes:
        return None
    if function.gives == "total":
        return _total_type(function.base_name, kind, numbers, types[0])
    if function.gives == "list":
        return f"ARRAY<{types[0]}>"
    if function.gives == "percentile":
        type_ = "INTERVAL DAY TO SECOND" if kind == "INTERVAL" else "DOUBLE"
        return f"ARRAY<{type_}>" if function.name.endswith(LIST) else type_
    return types[0] if function.gives == "first" else function.gives


def sum_precision(precision: int, scale: int) -> tuple[int, int]:
    """Precision and scale of a sum of decimals."""
    return min(38, precision + 10), scale


def average_precision(precision: int, scale: int) -> tuple[int, int]:
    """Precision and scale of an average of decimals.

    >>> average_precision(36, 36)
    (38, 38)
    """
    return min(38, precision + 4), min(38, scale + 4)


def _total_type(name: str, kind: str | None, numbers: tuple[int, int], input_type: str) -> str | None:
    if kind == "DECIMAL":
        precision, scale = (sum_precision if name == "sum" else average_precision)(*numbers)
        return f"DECIMAL({precision},{scale})"
    if kind == "INTERVAL":
        return input_type if name == "sum" else "INTERVAL DAY TO SECOND"
    if kind in _INTEGERS:
        return "BIGINT" if name == "sum" else "DOUBLE"
    return "DOUBLE" if kind in _FLOATS else None


def _parse_type(text: str) -> tuple[str | None, tuple[int, int]]:
    """The name of a type, and precision and scale; None for a type that has no order here, or none that is plain."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None, (0, 0)
    word, rest = match[1].upper(), match[4].strip()
    name = _ALIASES.get(word, word)
    # Other collations than this one do not order texts by their bytes.
    is_plain = not rest or rest.upper().split() == ["COLLATE", "UTF8_BINARY"]
    if name == "INTERVAL":
        is_plain = _DAY_TIME.fullmatch(rest) is not None
    return name if is_plain else None, (int(match[2] or 10), int(match[3] or 0))


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of a group: the function by its SQL name, the columns it is applied to, and the result's name.

    ``count`` of no columns is ``count(*)``. ``min_by`` and ``max_by`` take two columns: the value, then the sort key.
    ``order``: what the rows of a group are ordered by, before their arrival, where the function depends on it; a
    percentile counts from the other end where it is descending. ``constants``: the fractions of percentiles, or the
    separator of texts.
    """

    function: str
    columns: tuple[str, ...]
    output: str
    order: tuple[SortColumn, ...] = ()
    constants: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        if not is_aggregate(self.function):
            raise ValueError(f"{self.function} is not an aggregate of a grouping")

    @property
    def kind(self) -> str:
        """The function's name among its synonyms."""
        return canonical_name(self.function)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads: its arguments, and what it orders rows by."""
        return (*self.columns, *(by.column for by in self.order))

    def describe(self, names: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
        """The function, its columns, order and constants as texts, with other names for the columns."""
        order = zip(names([by.column for by in self.order]), self.order, strict=True)
        keys = [f"ORDER BY {name}{' DESC' * by.descending}{' NULLS LAST' * by.nulls_last}" for name, by in order]
        return [self.kind, *names(self.columns), *keys, *map(repr, self.constants)]


# The types that the aggregate functions of a grouping give, in Arrow.


def arrow_result(function: str, types: tuple[pa.DataType, ...]) -> pa.DataType:
    """The same for Arrow types, which the function takes.

    >>> arrow_result("sum", (pa.decimal128(38, 2),)), arrow_result("avg", (pa.int8(),))
    (Decimal128Type(decimal128(38, 2)), DataType(double))
    """
    aggregate = function_of(function)
    if aggregate.gives == "BIGINT":
        return pa.int64()
    if aggregate.gives == "BOOLEAN" or aggregate.gives == "first":
        return types[0]
    if aggregate.gives == "list":
        return pa.list_(types[0])
    if aggregate.gives == "percentile":
        kind = types[0] if pa.types.is_duration(types[0]) else pa.float64()
        return pa.list_(kind) if aggregate.name.endswith(LIST) else kind
    if aggregate.gives == "total":
        if pa.types.is_decimal(types[0]):
            precision_of = sum_precision if aggregate.base_name == "sum" else average_precision
            return pa.decimal128(*precision_of(types[0].precision, types[0].scale))
        if pa.types.is_duration(types[0]):
            return types[0]
        if aggregate.base_name == "sum" and pa.types.is_integer(types[0]):
            return pa.int64()
    return pa.float64()
