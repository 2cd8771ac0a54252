"""Every case file can be read, and the expectations of the interval cases hold on the definition and on the kernel.

The joins are written out here by hand, beside the SQL of the cases, so that an error in compiling SQL cannot hide one
in an expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from watersmeet.catalog import Field
from watersmeet.errors import WatersmeetError
from watersmeet.joins.condition import Apply, Column, Condition
from watersmeet.joins.interval import Bound, IntervalJoin, Kind, Side
from watersmeet.testing import Case, CaseBatch, Executable, Input, Outcome, compare, parse_case, read_case, run_join

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.glob("*.yaml"))
SECOND = 1_000_000

Own = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class Source:
    name: str
    fields: str
    time: str
    keys: tuple[str, ...] = ()
    own: Own | None = None
    lag: int = 1_000_000

    def side(self) -> Side:
        columns = [f"{self.name}.{f.name}" for f in self.columns()]
        return Side(
            columns=tuple(columns),
            times=(f"{self.name}.{self.time}",),
            keys=tuple(f"{self.name}.{key}" for key in self.keys),
            code="code" if self.keys else None,
            dead="dead" if self.own else None,
        )

    def columns(self) -> tuple[Field, ...]:
        return tuple(Field(*part.split()) for part in self.fields.split(", "))

    def input(self) -> Input:
        return Input(self.name, self.columns(), self.prepare, {f"{self.name}.{self.time}": self.lag})

    def prepare(self, table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        # Few codes, so that unequal keys share one and must be told apart.
        codes = [sum(len(str(row[key])) for key in self.keys) for row in rows]
        dead = [self.own is not None and not self.own(row) for row in rows]
        named = table.rename_columns([f"{self.name}.{name}" for name in table.column_names])
        return named.append_column("code", pa.array(codes, pa.int64())).append_column(
            "dead", pa.array(dead, pa.bool_())
        )


@dataclass(frozen=True)
class Query:
    kind: Kind
    left: Source
    right: Source
    lower: int
    upper: int
    select: tuple[str, ...]
    condition: Condition | None = None

    def executable(self) -> Executable:
        left, right = f"{self.left.name}.{self.left.time}", f"{self.right.name}.{self.right.time}"
        bounds = (Bound(left, right, self.upper), Bound(right, left, -self.lower))
        sides = (self.left.side(), self.right.side())
        join = IntervalJoin(self.kind, *sides, left, right, self.lower, self.upper, bounds, self.condition)
        return Executable(join, (self.left.input(), self.right.input()), lambda t: t.select(list(self.select)))


def pair(time: str = "t", extra: str = "", lag: int = 1_000_000, type_: str = "BIGINT") -> tuple[Source, Source]:
    fields = f"id BIGINT, {time} {type_}{extra}"
    return (Source("l", fields, time, ("id",), lag=lag), Source("r", fields, time, ("id",), lag=lag))


def hz(left: str, right: str, /, **own: Own) -> tuple[Source, Source]:
    times = (left.split()[0], right.split()[0])
    return (
        Source("lhs", left, times[0], own=own.get("left")),
        Source("rhs", right, times[1], own=own.get("right")),
    )


IDS = ("l.id", "l.t", "r.t")
BOTH = ("l.id", "l.t", "r.id", "r.t")
COMPOSITE = (Source("l", "a BIGINT, b STRING, t BIGINT", "t", ("a", "b")),
             Source("r", "a BIGINT, b STRING, t BIGINT", "t", ("a", "b")))  # fmt: skip
NOT_GREATER = Apply("not", (Apply(">", (Column("l.v"), Column("r.v"))),))
ORDERS = hz(
    "order_time BIGINT, order_id BIGINT, item BIGINT",
    "delivery_time BIGINT, delivery_id BIGINT, d_order_id BIGINT, address STRING",
)
ALL_OF_ORDERS = tuple(f"{s.name}.{f.name}" for s in ORDERS for f in s.columns())

QUERIES = {
    "hz-v1": Query("inner", *ORDERS, 0, 60, ALL_OF_ORDERS),
    "hz-v2": Query("inner", *hz("i1 BIGINT", "i2 BIGINT"), -1, 4, ("lhs.i1", "rhs.i2")),
    "hz-v4": Query("inner", *hz("l BIGINT", "r BIGINT"), 0, 0, ("lhs.l", "rhs.r")),
    "hz-v6a": Query("left", *hz("l BIGINT, lname STRING", "r BIGINT, rname STRING"), 0, 0,
                    ("lhs.l", "lhs.lname", "rhs.r", "rhs.rname")),
    "hz-v22": Query("left", *hz("l BIGINT, field BIGINT", "r BIGINT", left=lambda row: row["field"] > 10), -1, 1,
                    ("lhs.l", "lhs.field", "rhs.r")),
    "hz-v23": Query("left", *hz("l BIGINT", "r BIGINT, field BIGINT", right=lambda row: row["field"] > 10), -1, 1,
                    ("lhs.l", "rhs.r", "rhs.field")),
    "hz-v26": Query("full", *hz("l BIGINT", "r BIGINT"), -1, 1, ("lhs.l", "rhs.r")),
    "left-null-keys": Query("left", *pair(), -1, 1, IDS),
    "composite-keys": Query("inner", *COMPOSITE, -2, 2, ("l.a", "l.b", "l.t", "r.t")),
    "full-both-sides-expire": Query("full", *pair(), 0, 5, BOTH),
    "out-of-bounds": Query("left", *pair(), 0, 2, IDS),
    "padded-with-its-watermark": Query("left", *pair(lag=0), -2, 2, IDS),
    "late-rows": Query("left", *pair(), -2, 2, IDS),
    "restart-keeps-matched": Query("left", *pair(), -1, 1, IDS),
    "end": Query("full", *pair(), -1, 1, BOTH),
    "residual-unknown": Query("left", *pair(extra=", v BIGINT"), -1, 1, ("l.id", "l.t", "l.v", "r.v"), NOT_GREATER),
    "timestamps-with-lag": Query("left", *pair("ts", lag=10 * SECOND, type_="TIMESTAMP"), 0, 60 * SECOND,
                                 ("l.id", "l.ts", "r.ts")),
    "strict-bound": Query("left", *pair(), 1, 2, IDS),
}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case_can_be_read(path: Path) -> None:
    case = read_case(path)
    assert (case.fails is None) == bool(case.batches)
    assert case.fails is not None or path.stem in QUERIES, "write its join out in QUERIES"


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("stem", sorted(QUERIES))
def test_case_holds(stem: str, on: Literal["reference", "kernel"]) -> None:
    assert run_join(read_case(CASES / f"{stem}.yaml"), QUERIES[stem].executable(), on) == []


def test_a_wrong_expectation_is_shown() -> None:
    case = read_case(CASES / "end.yaml")
    wrong = Case(case.path, case.name, case.sql, case.batches, end=((2, 7, None, None), (9, 9, None, None)))
    assert run_join(wrong, QUERIES["end"].executable(), "kernel") == [
        "batch end, out:\n  - [9, 9, null, null]\n  + [null, null, 3, 9]"
    ]


def test_rows_compare_as_a_multiset_or_in_order() -> None:
    outcome = Outcome((pa.table({"a": [1, 2, 2]}),))
    assert compare(CaseBatch(out=((2,), (1,), (2,))), outcome) is None
    assert compare(CaseBatch(out=((2,), (1,))), outcome) == "out:\n  + [2]"
    assert compare(CaseBatch(out=((2,), (1,), (2,))), outcome, ordered=True) is not None
    assert compare(CaseBatch(out=((1,), (2,), (2,))), outcome, ordered=True) is None


def test_what_nobody_reported_is_not_passed() -> None:
    assert compare(CaseBatch(state={"l": 0}), Outcome()) is not None
    assert compare(CaseBatch(late=()), Outcome()) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{name: a, sql: b, batches: [], colour: red}", "there is no field `colour`"),
        ("{name: a, sql: b, batches: [{inn: {}}]}", "there is no field `batches.1.inn`"),
        ("{name: a, batches: []}", "the field `sql` is missing"),
        ("{name: a, sql: b}", "it needs either `batches` or `fails`"),
        ("{name: a, sql: b, fails: NO_SUCH_THING}", "`fails` names no condition: `NO_SUCH_THING`"),
        ("{name: a, sql: b, batches: [{in: {l: 3}}]}", "the field `batches.1.in.l` is wrong"),
        ("[1, 2]", "it is not a mapping of fields"),
        ("{name: ", "it is not YAML"),
    ],
)
def test_a_wrong_case_names_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(WatersmeetError) as caught:
        parse_case(text, "some.yaml")
    assert caught.value.getCondition() == "WRONG_CASE"
    assert reason in str(caught.value)


def test_a_case_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WatersmeetError) as caught:
        read_case(tmp_path / "none.yaml")
    assert caught.value.getCondition() == "FILE_NOT_FOUND"


@pytest.mark.parametrize(
    "batch", ["{in: {x: [[1, 1]]}}", "{in: {l: [[1]]}}", "{in: {l: [[a, 1]]}}", "{marks: {x: 1}}", "{marks: {l: soon}}"]
)
def test_cells_that_do_not_fit_are_refused(batch: str) -> None:
    case = parse_case(f"{{name: a, sql: b, batches: [{batch}]}}")
    with pytest.raises(WatersmeetError) as caught:
        run_join(case, QUERIES["end"].executable(), "kernel")
    assert caught.value.getCondition() == "WRONG_CASE"
