"""`dev`: servers for a project, which are real ones, and the rows of a case in them; `init --template`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from typer.testing import CliRunner, Result

from watersmeet.cli import servers
from watersmeet.cli.app import app
from watersmeet.cli.dev import FOLDER, STATE, read_state, requirements_of
from watersmeet.cli.init import Template
from watersmeet.cli.registry import SchemaRegistry, load_registry, serve_registry
from watersmeet.errors import WatersmeetError
from watersmeet.formats.registry import NotRegisteredError, Registry, RegistryError
from watersmeet.queries import read_script

BIN = Path(sys.executable).parent
ORDERS = "CREATE STREAM orders (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 MINUTES) "
INTO_POSTGRES = "INSERT INTO out SELECT STREAM id FROM orders;"


def run(*arguments: object) -> Result:
    return CliRunner(env={"NO_COLOR": "1"}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands add to the environment goes with the test."""
    for name in ("KAFKA", "POSTGRES"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project whose servers end with the test."""
    folder = tmp_path / "shop"
    yield folder
    if folder.is_dir():
        run("dev", "stop", folder, "--remove")


def write_project(folder: Path, sql: str) -> None:
    (folder / "sql").mkdir(parents=True)
    (folder / "watersmeet.yml").write_text("name: shop\n")
    (folder / "sql" / "a.sql").write_text(sql)


def test_requirements_come_from_references_and_ports_of_localhost() -> None:
    script = read_script(
        ORDERS + "USING kafka OPTIONS (kafka.bootstrap.servers '${env:KAFKA}', subscribe 'a, b', value.format 'avro',"
        " schema.registry.url 'http://localhost:8081');"
        "CREATE SINK one USING kafka OPTIONS (kafka.bootstrap.servers 'far:9092', topic 'c', partitions '5');"
        "CREATE SINK out USING postgres OPTIONS (host '${env:DB_HOST}', password '${env:DB_PASSWORD}', table 't');"
        "CREATE SINK old USING jdbc OPTIONS (url '${env:JDBC}', dbtable 't');"
        "INSERT INTO one SELECT STREAM id FROM orders;"
    )
    needed = requirements_of(script)
    assert needed.variables == {
        "KAFKA": ("kafka", "url"), "DB_HOST": ("postgres", "host"), "DB_PASSWORD": ("postgres", "password"),
        "JDBC": ("postgres", "jdbc"),
    }  # fmt: skip
    assert needed.ports == {"registry": 8081}
    assert needed.topics == {"a": 3, "b": 3, "c": 5}
    assert needed.kinds == ["kafka", "registry", "postgres"]
    assert needed.notes == ["one names far:9092: no Kafka broker is started for it."]


def test_a_variable_that_is_set_starts_nothing(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setenv("KAFKA", "mine:9092")
    write_project(project, f"{ORDERS} USING kafka OPTIONS (kafka.bootstrap.servers '${{env:KAFKA}}', subscribe 'a');")
    shown = run("dev", "up", project)
    assert shown.exit_code == 0
    assert "KAFKA is set already: no Kafka broker is started for it." in shown.stdout
    assert "needs no server" in shown.stdout
    assert not (project / FOLDER).exists()


@pytest.mark.skipif(servers.find_postgres() is None, reason="there is no Postgres")
def test_postgres_stays_until_it_is_stopped_and_keeps_its_data(project: Path) -> None:
    sink = "CREATE SINK out USING postgres OPTIONS (url '${env:POSTGRES}', table 'out');"
    write_project(project, f"{ORDERS} USING json OPTIONS (path 'data');\n{sink}\n{INTO_POSTGRES}")
    assert "[MISSING_REFERENCE]" in run("check", project).stderr

    started = run("dev", "up", project, "--detach")
    assert started.exit_code == 0, started.output
    assert "POSTGRES: set for commands on this project" in started.stdout
    assert f"Stop with `watersmeet dev stop {project}`." in started.stdout
    state = read_state(project / FOLDER)
    assert state is not None
    with psycopg.connect(state.variables["POSTGRES"]) as connection:
        connection.execute("CREATE TABLE note (text text)")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(
            state.variables["POSTGRES"].replace(":postgres:", ":x:").replace("//postgres:", "//postgres:no")
        )
    assert (project / FOLDER / STATE).stat().st_mode & 0o077 == 0, "the password is in it"

    # Commands on the project see it, and a second start is refused with what to type.
    checked = run("check", project)
    assert checked.exit_code == 0, checked.output
    assert "Using the servers of `watersmeet dev` for POSTGRES." in checked.stderr
    assert run("dev", "env", project).stdout == f"export POSTGRES={state.variables['POSTGRES']}\n"
    again = run("dev", "up", project)
    assert (again.exit_code, "[SERVERS_RUNNING]" in again.stderr) == (1, True)
    assert f"watersmeet dev stop {project}" in again.stderr

    os.environ.pop("POSTGRES")
    assert run("dev", "stop", project).stdout == "Stopped the servers.\n"
    assert "[NO_SERVERS]" in run("dev", "env", project).stderr
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(state.variables["POSTGRES"], connect_timeout=2)
    assert run("dev", "up", project, "--detach").exit_code == 0
    later = read_state(project / FOLDER)
    assert later is not None and later.variables == state.variables, "on the port of the last time"
    with psycopg.connect(later.variables["POSTGRES"]) as connection:
        assert connection.execute("SELECT count(*) FROM note").fetchone() == (0,)
    removed = run("dev", "stop", project, "--remove")
    assert removed.exit_code == 0 and not (project / FOLDER).exists()


def test_a_missing_postgres_is_named_with_what_to_install(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_postgres", lambda: None)
    sink = "CREATE SINK out USING postgres OPTIONS (url '${env:POSTGRES}', table 'out');"
    write_project(project, f"{ORDERS} USING json OPTIONS (path 'data');\n{sink}\n{INTO_POSTGRES}")
    shown = run("dev", "up", project)
    assert shown.exit_code == 4
    assert "[SERVER_NOT_STARTED] Postgres is not running: its programs were not found." in shown.stderr
    assert "pip install 'watersmeet[servers]'" in shown.stderr


def test_a_port_that_is_taken_is_refused(project: Path) -> None:
    with serve_registry(SchemaRegistry()) as address:
        write_project(
            project,
            f"{ORDERS} USING kafka OPTIONS (kafka.bootstrap.servers 'far:9092', subscribe 'a', value.format 'avro',"
            f" schema.registry.url '{address}');",
        )
        shown = run("dev", "up", project)
    assert "[SERVER_NOT_STARTED] Schema registry is not running: port" in shown.stderr


# --- the registry ----------------------------------------------------------------------------------------------------


def record(*fields: str) -> str:
    return f'{{"type": "record", "name": "r", "fields": [{", ".join(fields)}]}}'


ID, LONG_ID = '{"name": "id", "type": "int"}', '{"name": "id", "type": "long"}'
NEW, NEW_WITH_DEFAULT = '{"name": "n", "type": "int"}', '{"name": "n", "type": ["null", "int"], "default": null}'


def test_the_registry_takes_what_can_read_the_schema_before(tmp_path: Path) -> None:
    kept = tmp_path / "schemas.json"
    with serve_registry(load_registry(kept)) as address:
        client = Registry((address,))
        first = client.register("s", record(ID))
        assert client.register("s", record(ID)) == first
        assert client.register("s", record(LONG_ID, NEW_WITH_DEFAULT)) == first + 1
        with pytest.raises(RegistryError, match=r"409.*the field `m` is new and has no default"):
            client.register("s", record(LONG_ID, NEW.replace('"n"', '"m"')))
        with pytest.raises(RegistryError, match=r"409.*the field `id` was long and is int"):
            client.register("s", record(ID))
        with pytest.raises(RegistryError, match=r"422.*Invalid Avro schema"):
            client.register("s", '{"type": "record"}')
        with pytest.raises(NotRegisteredError):
            client.latest("other")
    with serve_registry(load_registry(kept)) as address:
        assert Registry((address,)).latest("s").id == first + 1, "it is there after a restart"


# --- feeding ---------------------------------------------------------------------------------------------------------


def test_rows_of_a_case_are_written_to_files(tmp_path: Path) -> None:
    assert run("init", tmp_path / "shop").exit_code == 0
    shutil.rmtree(tmp_path / "shop/data")
    fed = run("dev", "feed", tmp_path / "shop/cases/joined.yaml", tmp_path / "shop")
    assert (fed.exit_code, fed.stdout) == (0, "Wrote 3 rows to orders.\nWrote 2 rows to deliveries.\n")
    lines = (tmp_path / "shop/data/orders/joined-0001.json").read_text().splitlines()
    assert json.loads(lines[0]) == {"order_id": 1, "item": "coffee", "order_time": "2026-03-02T08:00:00Z"}
    assert [path.name for path in (tmp_path / "shop/data/deliveries").iterdir()] == [
        "joined-0001.json", "joined-0002.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("using", "reason"),
    [
        ("csv OPTIONS (path 'data')", "it reads csv, and rows can be fed to topics, json and parquet"),
        ("kafka OPTIONS (kafka.bootstrap.servers 'h:1', subscribe 'a, b', value.format 'json')", "exactly one topic"),
        ("kafka OPTIONS (kafka.bootstrap.servers 'h:1', subscribe 'a', value.format 'csv')", "json and avro"),
    ],
)
def test_rows_that_no_source_takes_are_refused(project: Path, using: str, reason: str) -> None:
    write_project(project, f"{ORDERS} USING {using};\nINSERT INTO x SELECT STREAM id FROM orders;\n")
    (project / "sql/a.sql").write_text(
        f"{ORDERS} USING {using};\nCREATE SINK x USING noop;\nINSERT INTO x SELECT STREAM id FROM orders;\n"
    )
    (project / "case.yaml").write_text("{name: a, query: sql/a.sql, batches: [{in: {orders: [[1, 2026-01-01]]}}]}")
    shown = run("dev", "feed", project / "case.yaml", project)
    assert shown.exit_code == 1
    assert "[CANNOT_FEED] The rows of `orders` cannot be written to it:" in shown.stderr
    assert reason in shown.stderr


# --- templates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [Template.files, Template.kafka, Template.cdc])
def test_the_ci_of_a_template_passes(template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of its workflow but those that install something or start Spark."""
    folder = tmp_path / "shop"
    assert run("init", folder, "--template", template).exit_code == 0
    workflow = yaml.safe_load((folder / ".github/workflows/watersmeet.yml").read_text())
    job = workflow["jobs"]["queries"]
    monkeypatch.chdir(folder)
    for name, value in job.get("env", {}).items():
        monkeypatch.setenv(name, value)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[0] == "pip install -r requirements.txt"
    assert commands[-1] == "watersmeet test cases"
    for command in commands[1:-1]:
        ran = run(*command.split()[1:])
        assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize("template", list(Template))
def test_the_files_around_a_template_fit_their_tools(template: Template, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert run("init", folder, "--template", template).exit_code == 0
    linted = subprocess.run([BIN / "hadolint", folder / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert linted.returncode == 0, linted.stdout
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    services = compose["services"]
    used = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", ())}
    assert {volume for volume in used if "/" not in volume} == set(compose["volumes"])
    assert all(needed in services for service in services.values() for needed in service.get("depends_on", ()))
    assert "__NAME__" not in "".join(p.read_text() for p in folder.rglob("*") if p.is_file())
    ignored = (folder / ".gitignore").read_text().splitlines()
    assert {FOLDER + "/", "storage/", "output/"} <= set(ignored)


def test_the_program_of_the_template_is_formatted_and_typed_well(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert run("init", folder, "--template", "python").exit_code == 0
    for arguments in (["format", "--check"], ["check", "--select", "E,F,I,UP,B"]):
        checked = subprocess.run(
            [BIN / "ruff", *arguments, "--isolated", "--line-length", "120", folder], capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stdout


@pytest.mark.spark
@pytest.mark.timeout(280)
@pytest.mark.skipif(os.environ.get("WATERSMEET_CASES") != "all", reason="`make cases` runs it: a Spark of its own")
def test_the_template_of_python_passes_its_tests(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert run("init", folder, "--template", "python").exit_code == 0
    ran = subprocess.run([BIN / "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.spark
@pytest.mark.timeout(280)
@pytest.mark.skipif(servers.find_postgres() is None, reason="there is no Postgres")
def test_the_template_of_cdc_runs_with_the_servers_of_dev(project: Path, spark: object) -> None:
    """What `init` prints, typed: broker, topics, rows of the case, the query into Postgres."""
    pytest.importorskip("confluent_kafka")
    shown = run("init", project, "--template", "cdc")
    commands = [line.split()[1:] for line in shown.stdout.splitlines() if line.startswith("  watersmeet")]
    assert [command[0] for command in commands] == ["dev", "run", "dev"]
    try:
        started = run(*commands[0])
    except WatersmeetError as error:  # pragma: no cover - where no jars can be fetched
        pytest.skip(str(error))
    if "JARS_NOT_FETCHED" in started.output:
        pytest.skip("the jars of a broker cannot be fetched")
    assert started.exit_code == 0, started.output
    assert "Topics: orders, shop.public.customers." in started.stdout
    assert "Wrote 4 rows to customers." in started.stdout
    ran = run(*commands[1])
    assert ran.exit_code == 0, ran.output
    state = read_state(project / FOLDER)
    assert state is not None
    with psycopg.connect(state.variables["POSTGRES"]) as connection:
        rows = connection.execute("SELECT order_id, name, discount::text FROM priced ORDER BY order_id").fetchall()
    # All rows of the case at once: the table has its last state.
    assert rows == [(10, "Ada", "0.10"), (11, None, None), (12, "Ada", "0.10"), (13, None, None)]
    assert run(*commands[2]).stdout == "Stopped the servers.\n"
