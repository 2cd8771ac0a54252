"""What `make faults` does, in short: a run that is killed while it works and before its end, and its rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import duckdb
import pytest
from examples.cluster.standalone import Standalone
from faults import cluster
from faults.__main__ import main
from faults.harms import Plan, run_disturbed
from faults.outcomes import make_table
from faults.scenarios import POISON, SCENARIOS
from faults.servers import Servers
from tests.conftest import QUICK

from watersmeet.project import open_project
from watersmeet.queries import analyze, read_script


def test_faults_say_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "make faults" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    with pytest.raises(SystemExit):
        main(["--hindrances", "nothing"])


def test_kills_say_what_they_do_and_write_projects_that_can_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        cluster.main(["--help"])
    assert "make kills" in capsys.readouterr().out
    [group] = [group for group in cluster.GROUPS if group.name == "s3"]
    files = replace(group, scenarios=tuple(one for one in group.scenarios if one.sink == "files"))
    cluster.make_project(files, tmp_path / "calm", 2, Servers(None, None), "storage", {"spark.ui.enabled": "false"})
    script = read_script(open_project(tmp_path / "calm").text)
    assert [query.into for query in analyze(script)] == ["result_0", "result_1"]


def test_kills_leave_the_files_that_a_query_may_have_read(tmp_path: Path) -> None:
    [group] = [group for group in cluster.GROUPS if group.name == "s3"]
    group = replace(group, scenarios=tuple(one for one in group.scenarios if one.sink == "files"))
    killer = cluster.Killer(Standalone(tmp_path, 1, "1g", {}), None, Random(1))
    trial = cluster.Trial(group, tmp_path, Servers(None, None), killer)
    for project in (trial.calm, trial.disturbed):
        cluster.make_project(group, project, 60, Servers(None, None), "storage", {})
    trial.starts = 2
    trial.outcome.batches["result_0"] = 5
    trial.trim()
    for project in (trial.calm, trial.disturbed):
        counts = [len([*(project / f"made-{n}" / "data" / "orders").iterdir()]) for n in range(2)]
        assert counts == [5 + 2 + cluster.AHEAD + 1, -1 + 2 + cluster.AHEAD + 1]


def test_kills_do_not_copy_the_jars_of_s3_to_executors() -> None:
    settings = cluster.on_class_path({"spark.jars": "/a.jar,/b.jar", "spark.hadoop.fs.s3a.endpoint": "http://here"})
    assert settings == {
        "spark.hadoop.fs.s3a.endpoint": "http://here",
        "spark.driver.extraClassPath": "/a.jar:/b.jar",
        "spark.executor.extraClassPath": "/a.jar:/b.jar",
    }


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_query_that_is_killed_and_reads_poison_has_the_rows_of_the_join(tmp_path: Path) -> None:
    [scenario] = [one for one in SCENARIOS if one.name == "poisoned interval into files"]
    files, plan = 4, Plan(kills=1, kinds=("jvm",), hindrances=(), seed=3)
    project = tmp_path / "project"
    scenario.make(tmp_path / "clean", files, "", "", is_calm=True)
    scenario.make(project, files, "", "", is_calm=False)
    conf = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in QUICK.items())
    (project / "watersmeet.yml").write_text(f"name: faults\nconfiguration:\n{conf}")
    outcome = run_disturbed(scenario, project, "", Servers(None, None), plan)
    assert sum(outcome.done.values()) == plan.kills, make_table([outcome])
    assert outcome.starts >= 2
    assert not outcome.problems
    orders, deliveries = (f"'{tmp_path}/clean/data/{name}/*.json'" for name in ("orders", "deliveries"))
    joined = f"""SELECT o.id, o.n, d.n FROM {orders} o LEFT JOIN {deliveries} d
        ON o.id = d.order_id AND d.t BETWEEN o.t AND o.t + 90"""
    assert scenario.rows(project, "", "") == Counter(duckdb.execute(joined).fetchall())
    poison = scenario.poison(project)
    assert poison == scenario.input_poison(project)
    assert poison.total() == 2 * files * len(POISON)
