"""The board as a case file: what lies on it, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import yaml

from watersmeet.board.cells import plain_value
from watersmeet.operators.core.python_values import python_values
from watersmeet.testing.case import Case, CaseBatch
from watersmeet.testing.outcome import Outcome


class _Flow(list[Any]):
    """A list on one line."""


class _FlowMap(dict[str, Any]):
    """A mapping on one line."""


class _Block(str):
    """A text with its line breaks."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """YAML as people write cases: rows on one line, SQL as a block."""


_Dumper.add_representer(_Flow, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True))
_Dumper.add_representer(_FlowMap, lambda d, v: d.represent_mapping("tag:yaml.org,2002:map", v, flow_style=True))
_Dumper.add_representer(_Block, lambda d, v: cast("Any", d).represent_scalar("tag:yaml.org,2002:str", v, style="|"))


def dump_case(case: Case, outcomes: Sequence[Outcome]) -> str:
    """The text of a case that expects what came of it: rows out, and rows that were late where there were some.

    >>> case = Case("", "a pair", "SELECT 1;", batches=(CaseBatch({"l": ((1, "a"),)}),))
    >>> print(dump_case(case, [Outcome((pa.table({"id": [1]}),))]))
    name: a pair
    sql: |
      SELECT 1;
    batches:
    - in: {l: [[1, a]]}
      out: [[1]]
    <BLANKLINE>
    """
    sql = "\n".join(line.rstrip() for line in case.sql.strip().expandtabs(4).splitlines()) + "\n"
    content: dict[str, Any] = {"name": case.name, "sql": _Block(sql)}
    if case.ordered:
        content["ordered"] = True
    content["batches"] = [_batch(batch, outcome) for batch, outcome in zip(case.batches, outcomes, strict=False)]
    if case.end is not None:
        content["end"] = _rows(outcomes[-1].out)
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _batch(batch: CaseBatch, outcome: Outcome) -> dict[str, Any]:
    content: dict[str, Any] = {"restart": True} if batch.restart else {}
    if batch.rows:
        content["in"] = _FlowMap({name: [plain_value(row) for row in rows] for name, rows in batch.rows.items()})
    if batch.marks:
        content["marks"] = _FlowMap({name: plain_value(watermark) for name, watermark in batch.marks.items()})
    if batch.now is not None:
        content["now"] = batch.now
    content["out"] = _rows(outcome.out)
    late = _rows(outcome.late or ())
    return {**content, "late": late} if late else content


def _rows(tables: Sequence[pa.Table]) -> _Flow:
    """The rows of tables by position, as a case lists them."""
    return _Flow(plain_value(row) for table in tables for row in zip(*map(python_values, table.columns), strict=True))
