"""Arrays, structs and maps in this process, and functions with a lambda.

A lambda is evaluated once, over a row for each element of all arrays: the columns of the row, repeated, and its
variables. Maps are as Spark builds them: a key is never NULL, and one that comes twice is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.local.casts import (
    BOOLEAN,
    INT,
    INTEGERS,
    Evaluator,
    Values,
    as_argument,
    cast,
    common_type,
    python_list,
)
from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.times import text_of
from watersmeet.logical.expressions import Expr
from watersmeet.operators.core.condition import compare
from watersmeet.operators.core.matching import Ints

Evaluate = Callable[[Expr, pa.Table], pa.Array]
"""Evaluates an expression for every row."""


def field_of(value: pa.Array, name: str) -> pa.Array:
    """A field of structs, whose name has capitals or not."""
    if not pa.types.is_struct(value.type):
        raise NeedsSparkError(f"`{name}` of {value.type}")
    places = [i for i in range(value.type.num_fields) if value.type.field(i).name.lower() == name.lower()]
    if len(places) != 1:
        raise NeedsSparkError(f"`{name}` of {value.type}")
    return pc.struct_field(value, places)


def _array(expr: Expr, values: Values) -> pa.Array:
    if not values:
        raise NeedsSparkError(expr.sql())
    kind = common_type(value.type for value in values)
    if pa.types.is_null(kind):
        raise NeedsSparkError(expr.sql())
    number, size = len(values), len(values[0])
    return pa.ListArray.from_arrays(pa.array(np.arange(size + 1) * number, INT), _interleave(values, kind))


def _interleave(values: Values, kind: pa.DataType) -> pa.Array:
    """The values of several columns row by row, in one type."""
    number, size = len(values), len(values[0])
    each = pa.concat_arrays([cast(value, kind) for value in values])
    places = np.arange(size * number)
    return each.take(pa.array(places % number * size + places // number))


def _array_repeat(expr: Expr, values: Values) -> pa.Array:
    value, numbers = values
    if pa.types.is_null(value.type):
        raise NeedsSparkError(expr.sql())
    counts = np.maximum(as_argument(numbers, INT).fill_null(0).to_numpy(zero_copy_only=False), 0)
    offsets: pa.Array = pa.array(np.append(0, np.cumsum(counts)), INT)
    repeated = value.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return pa.ListArray.from_arrays(offsets, repeated, mask=numbers.is_null())


def _flatten(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if not (pa.types.is_list(value.type) and pa.types.is_list(value.type.value_type)):
        raise NeedsSparkError(expr.sql())
    lists = python_list(value)
    flat = [
        None if outer is None or None in outer else [element for inner in outer for element in inner] for outer in lists
    ]
    return pa.array(flat, value.type.value_type)


def _element(expr: Expr, values: Values) -> pa.Array:
    """``map[key]``, and ``array[index]``, from 0, which fails beyond the array, where ``get(array, index)`` is NULL."""
    value, index = values
    if pa.types.is_map(value.type) and expr.text == "[]":
        return _value_of_key(expr, value, index)
    return _at(expr, value, index, 0, fails=expr.text == "[]")


def _element_at(is_try: bool, expr: Expr, values: Values) -> pa.Array:
    """``element_at(map, key)``; ``element_at(array, index)``, from 1 or from the end, which fails beyond the array."""
    value, index = values
    if pa.types.is_map(value.type):
        return _value_of_key(expr, value, index)
    return _at(expr, value, index, 1, fails=not is_try)


def _at(expr: Expr, value: pa.Array, index: pa.Array, first: int, *, fails: bool) -> pa.Array:
    if not pa.types.is_list(value.type) or index.type not in INTEGERS:
        raise NeedsSparkError(expr.sql())
    if first and index.type == INTEGERS[-1]:
        # Spark takes an INT.
        raise NeedsSparkError(expr.sql())
    places = np.full(len(value), -1)
    offsets = value.offsets.to_numpy()
    for row, (number, is_valid) in enumerate(zip(index.to_pylist(), value.is_valid().to_pylist(), strict=True)):
        if number is None or not is_valid:
            continue
        size = offsets[row + 1] - offsets[row]
        if first and number == 0:
            raise ArithmeticError(f"{expr.sql()}: elements count from 1")
        place = size + number if first and number < 0 else number - first
        if 0 <= place < size:
            places[row] = offsets[row] + place
        elif fails:
            raise ArithmeticError(f"{expr.sql()}: the array has no element {number}")
    return value.values.take(pa.array(places, mask=places < 0))


def _value_of_key(expr: Expr, value: pa.Array, key: pa.Array) -> pa.Array:
    """The values of a key; NULL where a map does not have it."""
    if value.type.key_type != key.type or not _is_plain(key.type):
        raise NeedsSparkError(expr.sql())
    owners = _owners(value)
    is_key = compare("=", _keys(value), key.take(pa.array(owners))).cast(BOOLEAN)
    places = np.full(len(value), -1)
    found = np.flatnonzero(is_key.fill_null(False).to_numpy(zero_copy_only=False))
    places[owners[found]] = found
    return _items(value).take(pa.array(places, mask=places < 0))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether keys of a type are equal where Arrow says so: NaN and -0.0 are left to Spark."""
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind))


def _lengths(value: pa.Array) -> Ints:
    lengths = np.diff(value.offsets.to_numpy())
    return np.where(value.is_valid().to_numpy(zero_copy_only=False), lengths, 0).astype(np.int64)


def _inner_places(value: pa.Array) -> Ints:
    """The positions of the elements of live rows among all elements."""
    starts, lengths = value.offsets.to_numpy()[:-1].astype(np.int64), _lengths(value)
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _owners(value: pa.Array) -> Ints:
    """The row of each element."""
    return np.repeat(np.arange(len(value)), _lengths(value))


def _keys(value: Any) -> pa.Array:
    return value.keys.take(pa.array(_inner_places(value)))


def _items(value: Any) -> pa.Array:
    return value.items.take(pa.array(_inner_places(value)))


def _offsets(lengths: Ints) -> pa.Array:
    return pa.array(np.append(0, np.cumsum(lengths)), INT)


def _list(lengths: Ints, elements: pa.Array, like: pa.Array) -> pa.Array:
    """Arrays of these lengths; NULL where other values are."""
    return pa.ListArray.from_arrays(_offsets(lengths), elements, mask=like.is_null())


def _map(expr: Expr, values: Values) -> pa.Array:
    if not values or len(values) % 2:
        raise NeedsSparkError(expr.sql())
    keys, items = values[::2], values[1::2]
    return _make_map(
        expr, np.full(len(values[0]), len(keys)), _interleave(keys, common_type(k.type for k in keys)),
        _interleave(items, common_type(i.type for i in items)),
    )  # fmt: skip


def _make_map(expr: Expr, lengths: Ints, keys: pa.Array, items: pa.Array) -> pa.Array:
    if not _is_plain(keys.type) or pa.types.is_null(items.type):
        raise NeedsSparkError(expr.sql())
    owners, places = np.repeat(np.arange(len(lengths)), lengths), keys.dictionary_encode()
    if keys.null_count:
        raise ArithmeticError(f"{expr.sql()}: a key is NULL")
    pairs = np.stack([owners, np.asarray(places.indices)]) if len(keys) else np.zeros((2, 0))
    if np.unique(pairs, axis=1).shape[1] < len(keys):
        raise ArithmeticError(f"{expr.sql()}: a key comes twice")
    return pa.MapArray.from_arrays(_offsets(lengths), keys, items)


def _map_from_arrays(expr: Expr, values: Values) -> pa.Array:
    keys, items = values
    is_list = pa.types.is_list(keys.type) and pa.types.is_list(items.type)
    if not is_list or keys.null_count or items.null_count:
        raise NeedsSparkError(expr.sql())
    lengths = _lengths(keys)
    if (lengths != _lengths(items)).any():
        raise ArithmeticError(f"{expr.sql()}: there are more keys or more values")
    return _make_map(expr, lengths, _elements(keys), _elements(items))


def _elements(value: Any) -> pa.Array:
    return value.values.take(pa.array(_inner_places(value)))


def _parts_of_map(part: Callable[[Any], pa.Array], expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if not pa.types.is_map(value.type):
        raise NeedsSparkError(expr.sql())
    return _list(_lengths(value), part(value), value)


def _map_contains_key(expr: Expr, values: Values) -> pa.Array:
    value, key = values
    if not pa.types.is_map(value.type) or value.type.key_type != key.type or not _is_plain(key.type):
        raise NeedsSparkError(expr.sql())
    is_key = compare("=", _keys(value), key.take(pa.array(_owners(value)))).cast(BOOLEAN).fill_null(False)
    found = np.zeros(len(value), np.bool_)
    found[_owners(value)[is_key.to_numpy(zero_copy_only=False)]] = True
    return pa.array(found, mask=pc.or_(value.is_null(), key.is_null()).to_numpy(zero_copy_only=False))


def _array_contains(expr: Expr, values: Values) -> pa.Array:
    value, element = values
    if not pa.types.is_list(value.type) or value.type.value_type != element.type or pa.types.is_nested(element.type):
        raise NeedsSparkError(expr.sql())
    owners, elements = _owners(value), _elements(value)
    is_equal = compare("=", elements, element.take(pa.array(owners))).cast(BOOLEAN)
    known = _any_of(owners, is_equal, len(value))
    return pc.if_else(pc.or_(value.is_null(), element.is_null()), None, known)


def _any_of(owners: Ints, tests: pa.Array, rows: int) -> pa.Array:
    """Whether a test of a row is true; NULL if none is, but one is NULL."""
    found, unknown = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    found[owners[tests.fill_null(False).to_numpy(zero_copy_only=False)]] = True
    unknown[owners[tests.is_null().to_numpy(zero_copy_only=False)]] = True
    return pa.array(found, mask=~found & unknown)


def _size(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if not (pa.types.is_list(value.type) or pa.types.is_map(value.type)):
        raise NeedsSparkError(expr.sql())
    return pa.array(_lengths(value), INT, mask=value.is_null().to_numpy(zero_copy_only=False))


def _struct(expr: Expr, values: Values) -> pa.Array:
    """``struct(x AS a)`` and ``named_struct('a', x)``."""
    if expr.text.lower() == "named_struct":
        return pa.StructArray.from_arrays(values[1::2], names=[text_of(arg) for arg in expr.args[::2]])
    names = [str(arg.value) if arg.text == "as" else "" for arg in expr.args]
    if "" in names:
        raise NeedsSparkError(expr.sql())
    return pa.StructArray.from_arrays(values, names=names)


COLLECTIONS: Mapping[str, Evaluator] = {
    ".": lambda expr, values: field_of(values[0], str(expr.value)),
    "[]": _element,
    "get": _element,
    "element_at": partial(_element_at, False),
    "try_element_at": partial(_element_at, True),
    "array": _array,
    "array_repeat": _array_repeat,
    "array_contains": _array_contains,
    "flatten": _flatten,
    "size": _size,
    "cardinality": _size,
    "struct": _struct,
    "named_struct": _struct,
    "as": lambda expr, values: values[0],
    "map": _map,
    "map_from_arrays": _map_from_arrays,
    "map_keys": partial(_parts_of_map, _keys),
    "map_values": partial(_parts_of_map, _items),
    "map_contains_key": _map_contains_key,
}
"""Functions of arrays, structs and maps."""


def _names_of(expr: Expr, most: int) -> list[str]:
    """The variables of a lambda; the last argument of a function must be one."""
    if expr.op != "call" or expr.text != "->":
        raise NeedsSparkError(expr.sql())
    names = str(expr.value).split(",")
    if len(names) > most or len({name.lower() for name in names}) < len(names):
        raise NeedsSparkError(expr.sql())
    return names


def _with_variables(rows: pa.Table, places: Ints, names: Sequence[str], values: Values) -> pa.Table:
    """The rows at some places, with variables in place of columns of their names."""
    taken = rows.take(pa.array(places)) if rows.num_columns else rows
    hidden = {name.lower() for name in names}
    names_of_rows = [name for name in taken.column_names if name.lower() not in hidden]
    columns = {name: taken.column(name) for name in names_of_rows} | dict(zip(names, values, strict=True))
    return pa.table(columns)


def _body(call: Expr, rows: pa.Table, evaluate: Evaluate, variables: int = 2) -> tuple[pa.Array, pa.Array]:
    """The arrays that a function goes through, and the values of its lambda for their elements and their indices."""
    if len(call.args) != 2:
        raise NeedsSparkError(call.sql())
    lists = evaluate(call.args[0], rows)
    names = _names_of(call.args[1], variables)
    if not pa.types.is_list(lists.type):
        raise NeedsSparkError(call.sql())
    owners, lengths = _owners(lists), _lengths(lists)
    before = np.cumsum(lengths) - lengths
    variables_of_row = [_elements(lists), pa.array(np.arange(owners.size) - np.repeat(before, lengths), INT)]
    table = _with_variables(rows, owners, names, variables_of_row[: len(names)])
    return lists, evaluate(call.args[1].args[0], table)


def _transform(evaluate: Evaluate, call: Expr, rows: pa.Table) -> pa.Array:
    lists, values = _body(call, rows, evaluate)
    if pa.types.is_null(values.type):
        raise NeedsSparkError(call.sql())
    return _list(_lengths(lists), values, lists)


def _tests(call: Expr, lists: pa.Array, values: pa.Array) -> pa.Array:
    if not (pa.types.is_boolean(values.type) or pa.types.is_null(values.type)):
        raise NeedsSparkError(call.sql())
    return values.cast(BOOLEAN)


def _filter(evaluate: Evaluate, call: Expr, rows: pa.Table) -> pa.Array:
    lists, values = _body(call, rows, evaluate)
    passed = _tests(call, lists, values).fill_null(False).to_numpy(zero_copy_only=False)
    lengths = np.bincount(_owners(lists)[passed], minlength=len(lists))
    return _list(lengths, _elements(lists).filter(pa.array(passed)), lists)


def _body_of_some(call: Expr, rows: pa.Table, evaluate: Evaluate) -> tuple[pa.Array, pa.Array]:
    """The same where Spark stops at an element that decides, so that others may fail."""
    try:
        return _body(call, rows, evaluate, 1)
    except (ArithmeticError, pa.ArrowInvalid) as error:
        raise NeedsSparkError(call.sql()) from error


def _exists(evaluate: Evaluate, call: Expr, rows: pa.Table) -> pa.Array:
    lists, values = _body_of_some(call, rows, evaluate)
    found = _any_of(_owners(lists), _tests(call, lists, values), len(lists))
    return pc.if_else(lists.is_null(), None, found)


def _forall(evaluate: Evaluate, call: Expr, rows: pa.Table) -> pa.Array:
    lists, values = _body_of_some(call, rows, evaluate)
    other = _any_of(_owners(lists), pc.invert(_tests(call, lists, values)), len(lists))
    return pc.if_else(lists.is_null(), None, pc.invert(other))


def _aggregate(evaluate: Evaluate, call: Expr, rows: pa.Table) -> pa.Array:
    """A fold over each array: a round for each element of the longest one."""
    if len(call.args) not in (3, 4):
        raise NeedsSparkError(call.sql())
    lists, state = (evaluate(arg, rows) for arg in call.args[:2])
    names = _names_of(call.args[2], 2)
    if not pa.types.is_list(lists.type) or len(names) != 2 or pa.types.is_null(state.type):
        raise NeedsSparkError(call.sql())
    lengths, elements = _lengths(lists), _elements(lists)
    starts = np.cumsum(lengths) - lengths
    for number in range(int(lengths.max(initial=0))):
        open_ = np.flatnonzero(lengths > number)
        table = _with_variables(
            rows, open_, names, [state.take(pa.array(open_)), elements.take(pa.array(starts[open_] + number))]
        )
        state = _put(call, state, open_, evaluate(call.args[2].args[0], table))
    if not lengths.size or not lengths.max(initial=0):
        # The type of the fold must be that of its beginning.
        nothing = np.zeros(0, np.int64)
        table = _with_variables(rows, nothing, names, [state.slice(0, 0), elements.slice(0, 0)])
        state = _put(call, state, nothing, evaluate(call.args[2].args[0], table))
    if len(call.args) == 4:
        valid = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
        names = _names_of(call.args[3], 1)
        finished = evaluate(call.args[3].args[0], _with_variables(rows, valid, names, [state.take(pa.array(valid))]))
        places = np.zeros(len(lists), np.int64)
        places[valid] = np.arange(valid.size)
        return finished.take(pa.array(places, mask=lists.is_null().to_numpy(zero_copy_only=False)))
    return state.take(pa.array(np.arange(len(lists)), mask=lists.is_null().to_numpy(zero_copy_only=False)))


def _put(call: Expr, state: pa.Array, places: Ints, values: pa.Array) -> pa.Array:
    """The state with other values in some places; of another type Spark says what it becomes."""
    if values.type != state.type:
        raise NeedsSparkError(call.sql())
    positions: npt.NDArray[np.int64] = np.arange(len(state))
    positions[places] = len(state) + np.arange(len(values))
    return pa.concat_arrays([state, values]).take(pa.array(positions))


def lambda_functions(evaluate: Evaluate) -> Mapping[str, Callable[[Expr, pa.Table], pa.Array]]:
    """The functions with a lambda by name, over what evaluates an expression."""
    functions = {
        "transform": _transform, "filter": _filter, "exists": _exists, "forall": _forall, "aggregate": _aggregate,
        "reduce": _aggregate,
    }  # fmt: skip
    return {name: partial(function, evaluate) for name, function in functions.items()}
