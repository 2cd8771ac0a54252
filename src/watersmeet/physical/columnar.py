"""Rows that need not become rows of Spark's on their way to an exchange: workers go it over whole columns.

Rows come from files that workers read themselves, or from the records of the join before, which are columns already.
What a plan asks for on that way is then a few steps over columns (`watersmeet.operators.core.condition`). Whatever is
not sure to give the values that Spark gives is left to Spark: functions, casts, and comparisons in which it would cast.

Each step is a value that workers apply to whole columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from watersmeet.duration import parse_duration
from watersmeet.formats import source_format
from watersmeet.logical.expressions import COMPARISONS, LISTED, Expr, windows_in
from watersmeet.operators.core.changes import CHANGE, OP, WEIGHT
from watersmeet.operators.core.condition import (
    Apply,
    AssignWindows,
    ColumnRef,
    Compute,
    Condition,
    DeriveChange,
    FieldAccess,
    Filter,
    Projection,
    Step,
    windows_of,
)
from watersmeet.operators.core.routing import LONGEST_DECIMAL
from watersmeet.physical.nodes import JoinPlan, LateralPlan, PortPlan, RelationPlan, ScanPlan, ViewPlan, join_plans
from watersmeet.physical.ports import plain_condition
from watersmeet.schema import INTEGERS, normalise_type

TypeOf = Callable[[str], str | None]
"""The type of a column, as normalised DDL; None if it is unknown."""

LONGEST_LIST = 32
"""Of longer lists, each member a comparison of all rows, Spark makes a set."""
_COMPARED = frozenset({"STRING", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"})
"""Types besides integers whose values compare alike in Spark and in Arrow."""
_FIELD = re.compile(r"\.(\w+)")
_WINDOW = re.compile(r", '(\d+ \w+)'(?:, '(\d+ \w+)')?\)(?:\.(start|end))?")


@dataclass(frozen=True)
class ColumnarPath:
    """The way of rows from a leaf, a source or a join, up to the exchange, over columns."""

    leaf: ScanPlan | JoinPlan
    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step) -> ColumnarPath:
        """The same with further steps."""
        return replace(self, steps=(*self.steps, *steps))


def is_columnar(port: PortPlan) -> bool:
    """Whether workers may read the files or decode the records of a side, as far as its declaration tells."""
    type_of = _leaf_types(port.input)
    path = columnar_path(port, type_of)
    if path is None or path.leaf.scan is None or not is_columnar_scan(path.leaf.scan):
        return False
    hashed = (*port.hashed, *port.shard_by, *(port.columns if port.route == "spread" else ()))
    return not any(_is_unhashed(type_of(_origin(path, name)) or "") for name in hashed)


def sources_of_columns(relation: RelationPlan) -> frozenset[str]:
    """The sources that workers may read in all places of a query: read in two ways, one would be two to Spark.

    A table that rows wait for is left to Spark: the rows that it reads tell whether the table is there. So are records
    whose order matters, for those that only Spark decodes come behind the others of their task.
    """
    joins = join_plans(relation)
    read = Counter(
        scan.source.name
        for join in joins
        for number, port in enumerate(join.ports)
        if is_columnar(port)
        for scan in port.input.leaves
        if not (holds_records(scan) and number in join.operator.ports_in_arrival_order)
    )
    scanned = Counter(scan.source.name for scan in relation.leaves)
    first = [join.ports[number] for join in joins for number in join.operator.ports_to_preload]
    awaited = {scan.source.name for port in first for scan in port.input.leaves}
    return frozenset(name for name, times in scanned.items() if read[name] == times and name not in awaited)


def is_columnar_scan(scan: ScanPlan) -> bool:
    """Whether workers may read the columns of a source themselves, as far as its declaration tells."""
    fields = {field.name: field for field in scan.source.fields}
    if scan.source.history is not None:
        return False
    return bool(scan.columns) and source_format(scan.source).can_read_columns(fields[name] for name in scan.columns)


def holds_records(scan: ScanPlan) -> bool:
    """Whether a source has records, which Spark fetches, and no files."""
    return source_format(scan.source).has_partitions


def columnar_path(port: PortPlan, type_of: TypeOf) -> ColumnarPath | None:
    """The way of a side up to the exchange, if it can be gone over columns; ``type_of`` those of its leaf."""
    path = _relation_path(port.input, type_of)
    for computed in port.computed:
        condition = _condition(computed.expr, type_of) if computed.template == "{}" else None
        path = None if path is None or condition is None else path.then(Compute(computed.name, condition))
    if port.dead is not None:
        alive = _all_conditions(port.predicates, type_of)
        path = None if path is None or alive is None else path.then(Compute(port.dead, alive, is_dead=True))
    return path


def _is_unhashed(type_: str) -> bool:
    """Whether only Spark computes the hash of a type: that of floats, and of decimals that do not fit 64 bits."""
    digits = re.match(r"DECIMAL\((\d+)", type_)
    return type_ in ("FLOAT", "DOUBLE") or (digits is not None and int(digits[1]) > LONGEST_DECIMAL)


def _origin(passage: ColumnarPath, name: str) -> str:
    """The name of a column in the leaf, if it is one of its columns."""
    for step in reversed(passage.steps):
        shown = dict(step.columns).get(name) if isinstance(step, Projection) else None
        name = shown.name if isinstance(shown, ColumnRef) else name
    return name


def _leaf_types(relation: RelationPlan) -> TypeOf:
    """The types that a leaf declares."""
    scan = relation.origin.scan
    if scan is None:
        return lambda column: None
    types = {f"{scan.alias}.{field.name}": normalise_type(field.type) for field in scan.source.fields}
    return types.get


def _relation_path(relation: RelationPlan, type_of: TypeOf) -> ColumnarPath | None:
    if relation.scan is not None:
        return _scan_path(relation.scan, type_of)
    match relation:
        case JoinPlan() if not relation.post_filters and not relation.derived and not relation.pads:
            return ColumnarPath(relation)
        case ViewPlan():
            below = _relation_path(relation.input, type_of)
            return None if below is None else _view_path(relation, below, type_of)
        case LateralPlan() if relation.array.op == "windows" and not relation.filters:
            below = _relation_path(relation.input, type_of)
            time = _plain(relation.array.args[0])
            if below is None or time is None or below.leaf.scan is None:
                return None
            name = f"{relation.alias}.{relation.alias}"
            return below.then(AssignWindows(time, windows_in(relation.array), name, is_outer=True))
        case _:
            return None


def _scan_path(scan: ScanPlan, type_of: TypeOf) -> ColumnarPath | None:
    filters = _all_conditions(scan.filters, type_of)
    if scan.parts or filters is None:
        return None
    path = ColumnarPath(scan)
    if scan.changes is not None:
        path = path.then(DeriveChange(WEIGHT if scan.changes == "weights" else OP, CHANGE))
    if scan.changes != "upserts":
        return path.then(Filter(filters)) if scan.filters else path
    has_key = _conjunction([Apply("not", (Apply("is_null", (ColumnRef(name),)),)) for name in scan.keys])
    return path.then(*([Filter(filters, beats=OP)] if scan.filters else []), Filter(has_key))


def _view_path(view: ViewPlan, below: ColumnarPath, type_of: TypeOf) -> ColumnarPath | None:
    """The steps of a view. What it computes can only be shown: of that, only Spark knows the type."""
    if view.where:
        where = _all_conditions(view.where, type_of)
        if where is None:
            return None
        below = below.then(Filter(where))
    columns: list[tuple[str, Condition | FieldAccess]] = []
    for output, name in zip(view.outputs, view.columns, strict=True):
        window = _window(output.expr)
        if window is not None:
            unfold, field = window
            if unfold not in below.steps:
                if below.leaf.scan is None or any(isinstance(step, AssignWindows) for step in below.steps):
                    return None
                below = below.then(unfold)
            columns.append((name, ColumnRef(unfold.name) if field is None else FieldAccess(unfold.name, field)))
            continue
        shown = _view_column(output.expr, type_of)
        if shown is None:
            return None
        columns.append((name, shown))
    columns += ((name, ColumnRef(name)) for name in view.late)
    return None if view.filters else below.then(Projection(tuple(columns), view.watermarks))


def _window(expr: Expr) -> tuple[AssignWindows, str | None] | None:
    """The windows that ``window(time, size, slide)`` unfolds rows into, and which bound of them is asked for."""
    if expr.op != "other" or len(expr.refs) != 1 or expr.refs[0].path:
        return None
    (time,) = expr.refs
    match = _WINDOW.fullmatch(expr.text[time.end :])
    if expr.text[: time.start] != "window(" or match is None:
        return None
    try:
        lengths = (parse_duration(match[2] or match[1]), parse_duration(match[1]))
    except ValueError:
        return None
    return AssignWindows(time.column, windows_of("HOP", lengths), f"#window of {time.column}", is_outer=False), match[3]


def _view_column(expr: Expr, type_of: TypeOf) -> Condition | FieldAccess | None:
    """The output of a view as a column, a field of one, or an expression that workers can compute."""
    if expr.op == "column" and len(expr.refs[0].path) == 1:
        return FieldAccess(expr.refs[0].column, expr.refs[0].path[0])
    if expr.op == "other" and len(expr.refs) == 1 and not expr.refs[0].path:
        (ref,) = expr.refs
        field = _FIELD.fullmatch(expr.text[ref.end :])
        return FieldAccess(ref.column, field[1]) if ref.start == 0 and field is not None else None
    return _condition(expr, type_of)


def _all_conditions(parts: Sequence[Expr], type_of: TypeOf) -> Condition | None:
    """All of some conditions as one; None if one of them needs Spark."""
    conditions = [_condition(part, type_of) if _kind(part, type_of) == "BOOLEAN" else None for part in parts]
    present = [condition for condition in conditions if condition is not None]
    return _conjunction(present) if len(present) == len(conditions) else None


def _conjunction(parts: Sequence[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else Apply("and", tuple(parts))


def _condition(expr: Expr, type_of: TypeOf) -> Condition | None:
    """An expression over columns, if Spark and Arrow are sure to give the same values for it."""
    name = _plain(expr)
    if name is not None:
        return ColumnRef(name)
    return plain_condition(expr) if _kind(expr, type_of) is not None else None


def _kind(expr: Expr, type_of: TypeOf) -> str | None:  # noqa: PLR0911 - one case per kind of expression
    """The kind of an expression's values, one for all integers; None if it cannot be evaluated on columns."""
    match expr.op:
        case "column":
            name = _plain(expr)
            type_ = None if name is None else type_of(name)
            return "BIGINT" if type_ in INTEGERS else type_
        case "literal":
            if isinstance(expr.value, str):
                return "STRING"
            is_number = isinstance(expr.value, int) and not isinstance(expr.value, bool)
            return "BIGINT" if is_number and abs(cast("int", expr.value)) < 2**63 else None
        case "negate":
            return _kind(expr.args[0], type_of) if isinstance(expr.args[0].value, int) else None
        case "or" if expr.value == LISTED and len(expr.args) > LONGEST_LIST:
            return None
        case "and" | "or" | "not":
            kinds = {_kind(arg, type_of) for arg in expr.args}
            return "BOOLEAN" if kinds == {"BOOLEAN"} else None
        case "is_null":
            return "BOOLEAN" if expr.args[0].op == "column" and _kind(expr.args[0], type_of) else None
        case "%":
            value, *by = expr.args
            is_plain = value.op == "column" and len(by) == 1 and by[0].op == "literal"
            kinds = {_kind(arg, type_of) for arg in expr.args}
            return "BIGINT" if is_plain and kinds == {"BIGINT"} and cast("int", by[0].value) > 0 else None
        case op if op in COMPARISONS and op != "<=>":
            kinds = {_kind(arg, type_of) for arg in expr.args}
            is_known = len(kinds) == 1 and any(arg.op == "column" for arg in expr.args)
            return "BOOLEAN" if is_known and kinds <= {"BIGINT", *_COMPARED} else None
        case _:
            return None


def _plain(expr: Expr) -> str | None:
    return expr.refs[0].column if expr.op == "column" and not expr.refs[0].path else None
