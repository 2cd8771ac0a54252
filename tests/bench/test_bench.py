"""The benchmark and the soak at a tiny size: every section starts, its contenders agree, and what it shows is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.compare import compare_trees, table
from bench.contender import Run, measure, serve
from bench.data import Workload
from bench.floor import Floor
from bench.growth import largest, points
from bench.peers import __main__ as peers
from bench.report import Report
from bench.running import TREE, Bench, Measured, check, data_of
from bench.sections import MEMORY, ROCKSDB, SECTIONS
from rich.console import Console

from bench import __main__ as bench
from bench import latency, soak
from watersmeet.tools.testing import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TINY = Workload(rows=400, keys=40, batches=2)
SIZE = ("--rows", "400", "--keys", "40", "--batches", "2", "--rocksdb", "spark-rocksdb-2")
AT_ONCE = 3


def kind(run: Run) -> tuple[object, ...]:
    """What makes a query another one. Runs that differ in their rows alone are measured once, and so are starts of
    Spark's own join on one store, and its outer joins, beside which ours has as many rows; a cluster has its own tests.
    """
    is_start = run.starts > 0 or run.cold
    contender = MEMORY if is_start and not run.is_ours else run.contender
    how = run.how if run.is_ours or run.how == "inner" else "outer"
    return contender, how, run.starts > 0, run.cold, run.workload.shape == "hot"


@pytest.mark.spark
def test_all_sections_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[object, Run] = {}
    for run in (run for section in SECTIONS.values() for run in section(TINY)):
        run = replace(run, contender="spark-rocksdb-2") if run.contender == ROCKSDB else run
        runs.setdefault(kind(run), run)
    for run in (run for section in SECTIONS.values() for run in section(TINY)):
        assert data_of(run.workload).is_dir()
    folders = [data_of(run.workload) for run in runs.values()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        measured = dict(
            zip(runs, pool.map(lambda run, folder: measure(run, folder, spark), runs.values(), folders), strict=True)
        )
    bench.main([*SIZE, "--sections", ",".join(SECTIONS)], lambda run: measured[kind(run)], tmp_path, tmp_path / "a.png")
    shown = capsys.readouterr().out
    assert shown.count("┏") >= len(SECTIONS), "a table each"
    assert all(len(line) <= 80 for line in shown.splitlines() if line[:1] in "┏┃┡│└"), "readable at 80 columns"
    assert "…" not in shown
    [written] = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert written["measured"].keys() == SECTIONS.keys()
    assert all(m["median"] > 0 for section in written["measured"].values() for m in section)
    inner = [m for m in written["measured"]["throughput"] if m["contender"] != "floor"]
    assert {m["results"] for m in inner} == {inner[0]["results"]} and inner[0]["results"] > 0
    assert (tmp_path / "a.png").exists()
    bench.main(["--draw", *map(str, tmp_path.glob("*.json"))], results=tmp_path, chart=tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "a.png").read_bytes()


@pytest.mark.spark
def test_runs_share_a_process(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [run for run in points(TINY) if run.axis == "state" and run.is_ours][:1]
    serve([json.dumps([asdict(run), str(data_of(run.workload))]) for run in asked], spark)
    [told] = [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]
    assert told["rows"] == asked[0].workload.rows and told["median"] > 0


def test_growth_has_every_point_that_was_requested() -> None:
    found = {(run.axis, run.contender): set[int]() for run in points(Workload())}
    for run in (*points(Workload()), *largest(Workload())):
        found[run.axis, run.contender].add(run.value)
        assert run.axis != "batch" or 2 * run.workload.sizes[-1] == run.value
    ours = {axis: sorted(values) for (axis, contender), values in found.items() if contender == "watersmeet"}
    assert (ours["shards"][0], ours["shards"][-1]) == (1, 64)
    assert [min(ours["state"]), max(ours["state"])] == [10**4, 10**8]
    assert [min(ours["keys"]), max(ours["keys"])] == [1, 10**7]
    assert [min(ours["batch"]), max(ours["batch"])] == [10**3, 10**7]
    assert all(len(found[axis, MEMORY]) >= 3 for axis in ours)


def test_some_runs_of_a_section() -> None:
    seen: list[str] = []

    def measure(run: Run) -> Measured:
        seen.append(run.label)
        return {"results": 1}

    Bench(TINY, measure, lambda _: None, only="keys").section("growth")
    assert seen and all("keys" in label for label in seen)
    seen.clear()
    Bench(TINY, measure, lambda _: None, without="rocksdb").section("throughput")
    assert seen == ["floor", "watersmeet", "watersmeet-frames", "watersmeet-frames-wide", MEMORY]


@pytest.mark.spark
def test_the_soak_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The memory of the workers is that of all tests here.
    monkeypatch.setattr(soak, "GROWTH", 10)
    soak.main(["--minutes", "4", "--rows", "20", "--within", "30"], spark)
    assert "Soak" in capsys.readouterr().out


@pytest.mark.parametrize("main", [bench.main, soak.main])
def test_help_names_what_there_is(main: Callable[[list[str]], object], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert (ended.value.code, "--rows" in shown) == (0, True)
    assert main is soak.main or all(name in shown for name in SECTIONS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--sections", "throughput,speed"], "no section: speed"), (["--beside", "/nowhere"], "has no src/watersmeet")],
)
def test_missing_sections_are_refused(arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (latency.main, ["--contenders", "watersmet"]),
        (peers.main, ["--peers", "watersmet"]),
        (peers.main, ["--queries", "watersmet"]),
        (bench.main, ["--rocksdb", "watersmet"]),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(
    main: Callable[[list[str]], object], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert (refused.value.code, "watersmet" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("width", [80, 200])
def test_reports_fit_the_screen(width: int) -> None:
    headings = ("contender", *(f"number {n} of the run" for n in range(9)))
    rows = [["watersmeet-frames-wide, bound 2400 s", *(f"{10**n:,}" for n in range(9))]]
    console = Console(width=width)
    with console.capture() as shown:
        console.print(Report("All numbers", headings, rows))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    assert all(any(f" {10**n:,} " in line for line in lines) for n in range(9))
    assert sum("watersmeet-frames-wide, bound 2400 s" in line for line in lines) == (1 if width == 200 else 3)


def test_the_floor_is_an_operator() -> None:
    assert Floor().step(MemoryStore(), {}, {}).report.rows == (0, 0)


def test_the_best_format_on_rocksdb_is_taken() -> None:
    def measure(run: Run) -> Measured:
        return {"rows_per_second": 5 if run.contender == "spark-rocksdb-3" else 2, "results": 1}

    found = Bench(TINY, measure, lambda _: None).section("throughput")
    assert found[-1]["label"] == "spark-rocksdb-3"


@pytest.mark.parametrize(
    ("how", "ours", "theirs", "agree"),
    [("inner", 5, 5, True), ("inner", 5, 4, False), ("left", 5, 4, True), ("left", 4, 5, False)],
)
def test_contenders_must_agree(how: str, ours: int, theirs: int, agree: bool) -> None:
    counts = {"watersmeet": ours, "spark-memory": theirs}
    found = [{"contender": c, "label": c, "how": how, "agrees": "all", "results": n} for c, n in counts.items()]
    if agree:
        check(found)
    else:
        with pytest.raises(RuntimeError, match="disagree"):
            check(found)


def test_two_trees_are_measured_in_turn() -> None:
    other, seen = Path("/other"), list[Path]()

    def measure(run: Run, tree: Path) -> Measured:
        seen.append(tree)
        # The first repetition here is disturbed.
        return {"median": (0.5 if len(seen) % 4 == 1 else 0.1) if tree == TREE else 0.2, "results": 7}

    found = list(compare_trees(other, ["throughput"], TINY, 2, measure))
    assert [m.run.contender for m in found] == ["watersmeet", "watersmeet-frames", "watersmeet-frames-wide"]
    assert seen == [TREE, other, other, TREE] * 3
    assert [round(m.ratio, 2) for m in found] == [1.5] * 3
    assert [round(m.ratio_of_shortest, 2) for m in found] == [0.5] * 3
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(found))
    assert "0.50 to 2.50" in shown.get()
    (chosen,) = compare_trees(other, ["throughput"], TINY, 1, measure, only="frames", without="frames-wide")
    assert chosen.run.contender == "watersmeet-frames"


def test_two_trees_must_give_the_same_rows() -> None:
    with pytest.raises(RuntimeError, match="disagree"):
        list(
            compare_trees(
                Path("/other"), ["windows"], TINY, 1, lambda _, tree: {"median": 1, "results": len(str(tree))}
            )
        )
