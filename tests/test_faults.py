"""What `make faults` does, in short: a run that is killed in every way, and its rows."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from faults.__main__ import KILLS, disturb, main, table
from faults.scenarios import SCENARIOS
from faults.servers import Servers


def test_it_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "make faults" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_query_that_is_killed_has_the_rows_of_one_that_is_not_and_of_the_join(tmp_path: Path) -> None:
    [scenario] = [one for one in SCENARIOS if one.name == "interval into files"]
    place = tmp_path / "place"
    options = Namespace(kinds=KILLS, kills=len(KILLS), files=8, seed=3, hindrances=False)
    outcome = disturb(scenario, place, Servers(None, None), options)
    assert outcome.is_right, table([outcome])
    assert sum(outcome.done.values()) == len(KILLS)
    assert outcome.starts >= 3
    orders, deliveries = (f"'{place}/disturbed/data/{name}/*.json'" for name in ("orders", "deliveries"))
    joined = f"""SELECT o.id, o.n, d.n FROM {orders} o LEFT JOIN {deliveries} d
        ON o.id = d.order_id AND d.t BETWEEN o.t AND o.t + 90"""
    assert scenario.rows(place / "disturbed", "", "") == Counter(duckdb.sql(joined).fetchall())
