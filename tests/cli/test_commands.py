"""What the command prints and how it exits, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from watersmeet.cli import check
from watersmeet.cli.app import app
from watersmeet.errors import catalogue
from watersmeet.version import __version__

HELP = Path(__file__).parent / "help"


def names_of(commands: Typer | None) -> list[str]:
    """The names of commands as they are typed."""
    return [str(c.name or getattr(c.callback, "__name__")) for c in (commands.registered_commands if commands else ())]  # noqa: B009


COMMANDS = ("", *names_of(app))
GROUPS = {str(group.name): names_of(group.typer_instance) for group in app.registered_groups}
IN_GROUPS = [f"{group} {command}" for group, commands in GROUPS.items() for command in commands]


def watersmeet(*arguments: object) -> Result:
    environ = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    return CliRunner(env=environ).invoke(app, [str(argument) for argument in arguments], prog_name="watersmeet")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    assert watersmeet("init", tmp_path / "shop").exit_code == 0
    return tmp_path / "shop"


def remove_bound(shop: Path) -> Path:
    sql = shop / "sql" / "joined.sql"
    text = sql.read_text()
    start = text.index("  AND d.delivery_time")
    sql.write_text(text[:start].rstrip() + ";\n")
    return sql


@pytest.mark.parametrize("command", (*COMMANDS, *IN_GROUPS))
def test_help(command: str) -> None:
    """Rewrite the golden files with WRITE_GOLDEN=1 in the environment, and read the difference."""
    shown = watersmeet(*command.split(), "--help")
    golden = HELP / f"{command.replace(' ', '-') or 'watersmeet'}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(shown.stdout)
    assert shown.exit_code == 0
    assert shown.stdout == golden.read_text()
    assert command == "" or f"watersmeet {command}" in shown.stdout.split("Example:")[1]


def test_version() -> None:
    assert watersmeet("--version").stdout == f"watersmeet {__version__}\n"


def test_init_writes_a_project_that_may_run(shop: Path) -> None:
    checked = watersmeet("check", shop)
    said = f"{shop}/sql/joined.sql: 1 query can run.\njoined: state bounded by time.\n"
    assert (checked.exit_code, checked.stdout) == (0, said)


def test_init_leaves_a_folder_with_something_in_it_alone(shop: Path) -> None:
    sql = shop / "sql" / "joined.sql"
    sql.write_text("mine")
    again = watersmeet("init", shop)
    assert (again.exit_code, sql.read_text()) == (2, "mine")
    assert "[FOLDER_NOT_EMPTY]" in again.stderr


def test_the_current_folder_is_the_default(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    assert watersmeet("check").stdout.startswith("sql/joined.sql: 1 query can run.\n")


def test_check_notes_the_old_name_of_a_setting(shop: Path) -> None:
    sql = shop / "sql" / "joined.sql"
    sql.write_text(f"SET watersmeet.together = off;\n{sql.read_text()}")
    checked = watersmeet("check", shop)
    assert checked.exit_code == 0
    assert "`watersmeet.together` is deprecated: use `watersmeet.operator_chaining`." in checked.stdout


def test_check_for_machines(shop: Path) -> None:
    state = [{"query": "joined", "sinks": ["joined"], "bounded_by": [{"by": "time", "what": "time"}]}]
    found = json.loads(watersmeet("check", shop, "--format", "json").stdout)
    assert found == {"queries": 1, "warnings": [], "state": state, "columns": {}}


def test_check_names_a_folder_that_does_not_exist(shop: Path) -> None:
    sql = shop / "sql" / "joined.sql"
    sql.write_text(sql.read_text().replace("data/orders", "data/order"))
    found = watersmeet("check", shop)
    assert found.exit_code == 0
    assert f"{sql}:1:1: note: orders reads data/order, which does not exist.\n" in found.stdout


def test_check_refuses_what_is_most_likely_a_mistake(shop: Path) -> None:
    sql = shop / "sql" / "joined.sql"
    sql.write_text(sql.read_text().replace("o.item,", "uper(o.item) AS item,").replace("(path", "(pth"))
    refused = watersmeet("check", shop)
    assert refused.exit_code == 1
    assert "[UNKNOWN_FUNCTION]" in refused.stderr
    assert refused.stderr.count("did you mean `path`?") == 3
    assert watersmeet("explain", shop).exit_code == 0
    (shop / "watersmeet.yml").write_text("name: shop\nconfiguration: {spark.sql.extensions: org.example.Own}\n")
    sql.write_text(sql.read_text().replace("(pth", "(path"))
    noted = watersmeet("check", shop)
    assert noted.exit_code == 0
    assert "note: Spark has no function named `uper`. Unless you register it: did you mean `upper`?" in noted.stdout


def test_options_that_spark_would_ignore_are_refused_before_the_start(shop: Path) -> None:
    sql = shop / "sql" / "joined.sql"
    sql.write_text(sql.read_text().replace("(path", "(maxFilePerTrigger 1, path", 1))
    refused = watersmeet("check", shop, "--deep")
    assert refused.exit_code == 1
    assert "did you mean `maxFilesPerTrigger`?" in refused.stderr


def test_check_asks_spark_only_with_its_option(shop: Path) -> None:
    refused = watersmeet("check", shop, "--master", "local[1]")
    assert refused.exit_code == 2
    assert "--deep" in refused.stderr


def test_check_names_the_keys_that_bound_a_state(tmp_path: Path) -> None:
    sql = tmp_path / "totals.sql"
    sql.write_text(
        "CREATE STREAM orders (customer_id INT, v INT); CREATE SINK totals USING console;"
        "INSERT INTO totals SELECT TABLE customer_id, count(*) AS n FROM orders GROUP BY customer_id;"
    )
    said = "totals: state bounded by the number of keys: one row per orders.customer_id.\n"
    assert watersmeet("check", sql).stdout.endswith(said)
    [state] = json.loads(watersmeet("check", sql, "--format", "json").stdout)["state"]
    assert state["bounded_by"] == [{"by": "keys", "what": "one row per orders.customer_id"}]


def test_explain_names_keys_bounds_operator_and_why(shop: Path) -> None:
    shown = watersmeet("explain", shop).stdout
    for part in (
        "o.order_id = d.order_id",
        "d.delivery_time <= o.order_time + 1 h",
        "interval join",
        "why",
        "are kept until",
    ):
        assert part in shown


def test_explain_for_machines(shop: Path) -> None:
    [query] = json.loads(watersmeet("explain", shop, "--format", "json").stdout)
    assert query["into"] == "joined"


@pytest.mark.parametrize("command", ["check", "explain", "run"])
def test_a_refusal_is_text_with_its_place_and_no_trace(shop: Path, command: str) -> None:
    sql = remove_bound(shop)
    refused = watersmeet(command, shop)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("[UNBOUNDED_STATE]")
    assert f"  --> {sql}:" in refused.stderr
    assert "\nHint: " in refused.stderr
    assert "Traceback" not in refused.output


def test_a_refusal_for_machines(shop: Path) -> None:
    sql = remove_bound(shop)
    refused = watersmeet("check", shop, "--format", "json")
    [refusal] = json.loads(refused.stdout)["refusals"]
    assert (refused.exit_code, refusal["condition"], refusal["place"]["file"]) == (1, "UNBOUNDED_STATE", str(sql))


def test_refusals_of_two_files_have_their_places_there(shop: Path) -> None:
    (shop / "sql" / "another.sql").write_text("-- another query\nSELECT STREAM o.nothing FROM orders o;\n")
    remove_bound(shop)
    places = [r["place"] for r in json.loads(watersmeet("check", shop, "--format", "json").stdout)["refusals"]]
    assert [(Path(place["file"]).name, place["line"]) for place in places] == [("another.sql", 2), ("joined.sql", 20)]


def test_a_script_without_a_query(tmp_path: Path) -> None:
    (tmp_path / "empty.sql").write_text("-- nothing yet\n")
    refused = watersmeet("check", tmp_path / "empty.sql")
    assert (refused.exit_code, "[NO_QUERY]" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--once", "--end"],
        ["run", "--conf", "spark.driver.memory"],
        ["run", "--master", "local", "--remote", "sc://host"],
        ["check", "--format", "xml"],
        ["unknown"],
    ],
)
def test_wrong_usage_exits_with_2(shop: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(shop)
    refused = watersmeet(*arguments)
    assert refused.exit_code == 2
    assert "Usage: watersmeet" in refused.stderr
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("command", ["check", "explain", "run", "test"])
def test_a_missing_path_exits_with_2(tmp_path: Path, command: str) -> None:
    refused = watersmeet(command, tmp_path / "nowhere")
    assert (refused.exit_code, refused.stderr.split(" ")[0]) == (2, "[FILE_NOT_FOUND]")


def fail(*given: object) -> None:
    raise RuntimeError("a wheel came off\nand rolled away, password=hunter2")


def test_the_unexpected_is_one_line_and_a_way_to_see_more(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "check_project", fail)
    failed = watersmeet("check", shop)
    assert failed.exit_code == 3
    assert failed.stderr.splitlines()[0] == "watersmeet: RuntimeError: a wheel came off"
    assert "--debug" in failed.stderr
    shown = watersmeet("--debug", "check", shop)
    assert shown.exit_code == failed.exit_code
    assert "Traceback" in shown.stderr and "RuntimeError" in shown.stderr
    assert "hunter2" not in shown.stderr + failed.stderr


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("watersmeet")
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"watersmeet {__version__}\n"


def test_every_condition_of_the_command_is_in_the_catalogue() -> None:
    from watersmeet.cli.console import UNREADABLE

    assert catalogue().keys() >= UNREADABLE


@pytest.mark.parametrize(
    "command",
    ["check", "explain", "advise", "run", "page", "state show", "state export", "why --summary", "why orders id=1"],
)
def test_a_command_without_a_path_means_the_project_here(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = watersmeet(*command.split())
    assert "[WRONG_PROJECT]" in ended.stderr and "watersmeet.yml" in ended.stderr


def test_fmt_and_test_without_a_path_mean_the_folder_here(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    for name in (".venv/lib", "late"):
        Path(name).mkdir(parents=True)
        Path(name, "other.sql").write_text("select 1 from\n" if name == "late" else "SELECT a FORM b")
    assert "[SYNTAX_ERROR]" in watersmeet("fmt").stderr
    Path("late/other.sql").write_text("select a from b\n")
    assert watersmeet("fmt", "--check").stdout.startswith("late/other.sql: would change.\n")
    ran = watersmeet("test", "--on", "kernel")
    assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (0, "1 passed")


TWICE = """
CREATE SINK paid USING json OPTIONS (path 'output/paid');
INSERT INTO paid SELECT STREAM x.order_id, y.courier FROM orders x LEFT JOIN deliveries y
  ON y.delivery_time BETWEEN x.order_time AND x.order_time + INTERVAL 60 MINUTES AND x.order_id = y.order_id
  WHERE x.item <> 'tea';
"""


def test_check_notes_a_join_that_two_queries_compute(shop: Path) -> None:
    assert "compute the same join" not in watersmeet("check", shop).stdout
    script = shop / "sql" / "joined.sql"
    before = script.read_text()
    script.write_text(before + TWICE)
    note = "note: joined and paid compute the same join of orders and deliveries: each query reads, joins and keeps"
    ended = watersmeet("check", shop)
    assert ended.exit_code == 0 and note in ended.stdout, ended.output
    # Another bound is another join, and so are the same groups of one side with others of the other side.
    groups = "CREATE VIEW per AS SELECT TABLE order_id, count(*) AS n FROM orders GROUP BY order_id;"
    views = (
        "SELECT TABLE DISTINCT order_id FROM deliveries",
        "SELECT TABLE order_id, max(courier) AS c FROM deliveries GROUP BY order_id",
        "SELECT TABLE order_id, count(*) AS n FROM deliveries WHERE courier = 'a' GROUP BY order_id",
    )
    tables = "".join(
        f"CREATE VIEW v{n} AS {view}; CREATE SINK t{n} USING json OPTIONS (path 'output/t{n}', changes 'log');"
        f"INSERT INTO t{n} SELECT TABLE p.n FROM per p JOIN v{n} v ON p.order_id = v.order_id;"
        for n, view in enumerate((*views, views[0]))
    )
    script.write_text(before + groups + tables)
    ended = watersmeet("check", shop)
    assert ended.exit_code == 0, ended.output
    assert [line.split(": ")[2] for line in ended.stdout.splitlines() if "the same join" in line] == [
        "t0 and t3 compute the same join of orders and deliveries"
    ]
    script.write_text(before + TWICE.replace("60 MINUTES", "61 MINUTES"))
    assert "compute the same join" not in watersmeet("check", shop).stdout
