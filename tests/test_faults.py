"""What `make faults` does, in short: a run that is killed in every way, and its rows."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from faults.__main__ import KILLS, disturb, main, table
from faults.scenarios import SCENARIOS


def test_it_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "make faults" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_query_that_is_killed_in_parts_has_the_rows_of_one_that_is_not(tmp_path: Path) -> None:
    [scenario] = [one for one in SCENARIOS if one.name == "interval into files"]
    # The whole group is killed in tests/spark/test_recovery.py.
    kinds = [kind for kind in KILLS if kind != "group"]
    options = Namespace(kinds=kinds, kills=len(kinds), files=8, seed=3, hindrances=False)
    outcome = disturb(scenario, tmp_path / "place", None, options)
    assert outcome.is_right, table([outcome])
    assert sum(outcome.done.values()) == len(kinds)
    assert outcome.starts >= 2
