"""The vectorised evaluation where it must not ask: a part that decides guards the next one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, evaluate
from watersmeet.operators.core.rowwise import evaluate as evaluate_row

TABLE = pa.table({"x": [4, 4, 2**63 - 1, None], "y": [0, 2, 1, 0]})
RATIO = Apply(">", (Apply("/", (ColumnRef("x"), ColumnRef("y"))), Constant(1)))
SUM = Apply(">", (Apply("+", (ColumnRef("x"), ColumnRef("y"))), Constant(1)))


@pytest.mark.parametrize(
    "condition",
    [
        Apply("or", (Apply("=", (ColumnRef("y"), Constant(0))), RATIO)),
        Apply("and", (Apply("<>", (ColumnRef("y"), Constant(0))), RATIO)),
        Apply("and", (Apply("<", (ColumnRef("x"), Constant(10))), SUM)),
        Apply("or", (Apply(">", (ColumnRef("x"), Constant(10))), Constant(None), SUM)),
    ],
)
def test_decided_conditions_are_not_evaluated_further(condition: Condition) -> None:
    found = evaluate(condition, lambda name: TABLE[name].combine_chunks(), TABLE.num_rows).to_pylist()
    assert found == [evaluate_row(condition, row) for row in TABLE.to_pylist()]


def test_division_by_zero_is_an_error_where_it_is_evaluated() -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate(RATIO, lambda name: TABLE[name].combine_chunks(), TABLE.num_rows)
