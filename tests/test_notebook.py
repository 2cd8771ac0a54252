"""The notebook among the examples: its cells run from top to bottom, and it is kept without what they show."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


def run_cell(code: str, names: dict[str, Any]) -> Any:
    """What a cell shows: the value of its last expression."""
    tree = ast.parse(code)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)


@pytest.mark.spark
def test_the_notebook_runs_from_top_to_bottom(spark: SparkSession) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    names: dict[str, Any] = {}
    found = [run_cell("".join(cell["source"]), names) for cell in cells]
    assert names["spark"] is spark
    whole, plan, streamed, progress = (one for one in found if one is not None)
    alone = [(2, "lamp", None), (3, "rug", None)]
    assert [tuple(row) for row in whole.values.tolist()] == [(1, "coffee", "north"), *alone]
    assert plan._repr_html_().startswith("<img ")
    # The second order waits no longer: the latest delivery is an hour and more behind it.
    assert [tuple(row) for row in streamed.values.tolist()] == [(1, "coffee", "north"), *alone]
    assert (progress.rows_in, progress.rows_out) == (5, 3)
