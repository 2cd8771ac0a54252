"""Where rows on their way to an exchange need not become rows of Spark's: workers go it over whole columns.

Rows come from files that workers read themselves, or from the records of the join before, which are columns already.
What a plan asks for on that way is then a few steps over columns (`watersmeet.physical.steps`). Whatever is not sure
to give the values that Spark gives is left to Spark: functions, casts, and comparisons in which it would cast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from watersmeet.duration import parse_duration
from watersmeet.formats import source_format
from watersmeet.formats.feed import CHANGE
from watersmeet.joins.core.changes import OP, WEIGHT
from watersmeet.joins.core.codes import LONGEST_DECIMAL
from watersmeet.joins.core.condition import Apply, Column, Condition
from watersmeet.physical.condition import plain_condition
from watersmeet.physical.nodes import (
    JoinPlan,
    LateralPlan,
    PortPlan,
    RelationPlan,
    ScanPlan,
    ViewPlan,
    join_plans,
    scan_plans,
)
from watersmeet.physical.steps import Change, Compute, Field, Keep, Show, Step, Unfold
from watersmeet.plan.expressions import COMPARISONS, LISTED, Expr, windows_in
from watersmeet.plan.windows import windows_of
from watersmeet.type_names import INTEGERS, normalised

TypeOf = Callable[[str], str | None]
"""The type of a column, as normalised DDL; None where nobody can tell."""

LONGEST_LIST = 32
"""Of longer lists, each member a comparison of all rows, Spark makes a set."""
_COMPARED = frozenset({"STRING", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"})
"""Types besides integers whose values compare alike in Spark and in Arrow."""
_FIELD = re.compile(r"\.(\w+)")
_WINDOW = re.compile(r", '(\d+ \w+)'(?:, '(\d+ \w+)')?\)(?:\.(start|end))?")


@dataclass(frozen=True)
class Passage:
    """The way of rows from a leaf, a source or a join, up to the exchange, over columns."""

    leaf: ScanPlan | JoinPlan
    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step) -> Passage:
        """The same with further steps."""
        return replace(self, steps=(*self.steps, *steps))


def is_columnar(port: PortPlan) -> bool:
    """Whether workers may read the files of a side themselves, as far as its declaration tells."""
    type_of = _declared(port.input)
    passage = passage_of(port, type_of)
    if passage is None or not isinstance(passage.leaf, ScanPlan) or not is_file_of_columns(passage.leaf):
        return False
    hashed = (*port.hashed, *port.shard_by, *(port.columns if port.route == "spread" else ()))
    return not any(_is_unhashed(type_of(_origin(passage, name)) or "") for name in hashed)


def sources_of_columns(relation: RelationPlan) -> frozenset[str]:
    """The sources that workers may read in all places of a query: read in two ways, one would be two to Spark.

    A table that rows wait for is left to Spark: the rows that it reads tell whether the table is there.
    """
    joins = join_plans(relation)
    ports = [port for join in joins for port in join.ports]
    read = Counter(scan.source.name for port in ports if is_columnar(port) for scan in scan_plans(port.input))
    asked = Counter(scan.source.name for scan in scan_plans(relation))
    first = [join.ports[number] for join in joins for number in join.operator.loaded_first]
    awaited = {scan.source.name for port in first for scan in scan_plans(port.input)}
    return frozenset(name for name, times in asked.items() if read[name] == times and name not in awaited)


def is_file_of_columns(scan: ScanPlan) -> bool:
    """Whether workers may read the columns of a source from its files, as far as its declaration tells."""
    types = {field.name: field.type for field in scan.source.fields}
    return bool(scan.columns) and source_format(scan.source).may_be_columns(types[column] for column in scan.columns)


def passage_of(port: PortPlan, type_of: TypeOf) -> Passage | None:
    """The way of a side up to the exchange, if it can be gone over columns; ``type_of`` those of its leaf."""
    passage = _passage(port.input, type_of)
    for computed in port.computed:
        made = _condition(computed.expr, type_of) if computed.template == "{}" else None
        passage = None if passage is None or made is None else passage.then(Compute(computed.name, made))
    if port.dead is not None:
        alive = _all(port.predicates, type_of)
        passage = None if passage is None or alive is None else passage.then(Compute(port.dead, alive, is_dead=True))
    return passage


def _is_unhashed(type_: str) -> bool:
    """Whether only Spark computes the hash of a type: that of floats, and of decimals that are no number of 64 bits."""
    digits = re.match(r"DECIMAL\((\d+)", type_)
    return type_ in ("FLOAT", "DOUBLE") or (digits is not None and int(digits[1]) > LONGEST_DECIMAL)


def _origin(passage: Passage, name: str) -> str:
    """What a column is called in the leaf, if it is one of its columns."""
    for step in reversed(passage.steps):
        shown = dict(step.columns).get(name) if isinstance(step, Show) else None
        name = shown.name if isinstance(shown, Column) else name
    return name


def _declared(relation: RelationPlan) -> TypeOf:
    """The types that a leaf declares."""
    while isinstance(relation, ViewPlan | LateralPlan):
        relation = relation.input
    if not isinstance(relation, ScanPlan):
        return lambda column: None
    types = {f"{relation.alias}.{field.name}": normalised(field.type) for field in relation.source.fields}
    return types.get


def _passage(relation: RelationPlan, type_of: TypeOf) -> Passage | None:
    match relation:
        case ScanPlan():
            return _of_scan(relation, type_of)
        case JoinPlan() if not relation.after and not relation.derived and not relation.pads:
            return Passage(relation)
        case ViewPlan():
            below = _passage(relation.input, type_of)
            return None if below is None else _of_view(relation, below, type_of)
        case LateralPlan() if relation.array.op == "windows" and not relation.filters:
            below = _passage(relation.input, type_of)
            time = _plain(relation.array.args[0])
            if below is None or time is None or not isinstance(below.leaf, ScanPlan):
                return None
            name = f"{relation.alias}.{relation.alias}"
            return below.then(Unfold(time, windows_in(relation.array), name, is_outer=True))
        case _:
            return None


def _of_scan(scan: ScanPlan, type_of: TypeOf) -> Passage | None:
    filters = _all(scan.filters, type_of)
    if scan.parts or filters is None:
        return None
    passage = Passage(scan)
    if scan.changes is not None:
        passage = passage.then(Change(WEIGHT if scan.changes == "weights" else OP, CHANGE))
    if scan.changes != "upserts":
        return passage.then(Keep(filters)) if scan.filters else passage
    has_key = _both([Apply("not", (Apply("is_null", (Column(name),)),)) for name in scan.keys])
    return passage.then(*([Keep(filters, beats=OP)] if scan.filters else []), Keep(has_key))


def _of_view(view: ViewPlan, below: Passage, type_of: TypeOf) -> Passage | None:
    """The steps of a view. What it computes can only be shown: of that, only Spark knows the type."""
    if view.where:
        kept = _all(view.where, type_of)
        if kept is None:
            return None
        below = below.then(Keep(kept))
    columns: list[tuple[str, Condition | Field]] = []
    for output, name in zip(view.outputs, view.columns, strict=True):
        found = _window(output.expr)
        if found is not None:
            unfold, field = found
            if unfold not in below.steps:
                if not isinstance(below.leaf, ScanPlan) or any(isinstance(step, Unfold) for step in below.steps):
                    return None
                below = below.then(unfold)
            columns.append((name, Column(unfold.name) if field is None else Field(unfold.name, field)))
            continue
        shown = _shown(output.expr, type_of)
        if shown is None:
            return None
        columns.append((name, shown))
    return None if view.filters else below.then(Show(tuple(columns), view.marks))


def _window(expr: Expr) -> tuple[Unfold, str | None] | None:
    """The windows that ``window(time, size, slide)`` unfolds rows into, and which bound of them is asked for."""
    if expr.op != "other" or len(expr.refs) != 1 or expr.refs[0].path:
        return None
    (time,) = expr.refs
    found = _WINDOW.fullmatch(expr.text[time.end :])
    if expr.text[: time.start] != "window(" or found is None:
        return None
    try:
        lengths = (parse_duration(found[2] or found[1]), parse_duration(found[1]))
    except ValueError:
        return None
    return Unfold(time.column, windows_of("HOP", lengths), f"#window of {time.column}", is_outer=False), found[3]


def _shown(expr: Expr, type_of: TypeOf) -> Condition | Field | None:
    """What an output of a view shows: a column, a field of one, or what is plain enough to be computed."""
    if expr.op == "column" and len(expr.refs[0].path) == 1:
        return Field(expr.refs[0].column, expr.refs[0].path[0])
    if expr.op == "other" and len(expr.refs) == 1 and not expr.refs[0].path:
        (of,) = expr.refs
        field = _FIELD.fullmatch(expr.text[of.end :])
        return Field(of.column, field[1]) if of.start == 0 and field is not None else None
    return _condition(expr, type_of)


def _all(parts: Sequence[Expr], type_of: TypeOf) -> Condition | None:
    """All of some conditions as one; None if one of them needs Spark."""
    found = [_condition(part, type_of) if _kind(part, type_of) == "BOOLEAN" else None for part in parts]
    known = [one for one in found if one is not None]
    return _both(known) if len(known) == len(found) else None


def _both(parts: Sequence[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else Apply("and", tuple(parts))


def _condition(expr: Expr, type_of: TypeOf) -> Condition | None:
    """An expression over columns, if Spark and Arrow are sure to give the same values for it."""
    name = _plain(expr)
    if name is not None:
        return Column(name)
    return plain_condition(expr) if _kind(expr, type_of) is not None else None


def _kind(expr: Expr, type_of: TypeOf) -> str | None:
    """What the values of an expression are, all integers being one kind; None if it is beyond columns."""
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
