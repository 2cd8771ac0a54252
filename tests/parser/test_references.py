"""References to what a text does not hold, and masks over what no one may see."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from tests.registry import registry
from typer.testing import CliRunner

from watersmeet import locations
from watersmeet.cli.app import app
from watersmeet.cli.script import open_script
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.project import with_columns
from watersmeet.queries import read_script

SCRIPT = """
CREATE STREAM a (id INT, t BIGINT, WATERMARK FOR t AS t) USING kafka
  OPTIONS (
    subscribe '${env:TOPIC}', value.format 'json', kafka.bootstrap.servers 'b:9092',
    kafka.sasl.jaas.config '${file:keys/jaas}'
  );
CREATE SINK s USING postgres OPTIONS (table 't', host 'db', password '${env:WM_PASSWORD}');
INSERT INTO s SELECT STREAM a.id FROM a;
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "q.sql").write_text(SCRIPT)
    (tmp_path / "watersmeet.yml").write_text("name: x\nconfiguration:\n  spark.hadoop.fs.s3a.secret.key: ${env:S3}\n")
    return tmp_path


def test_check_names_every_reference_that_leads_nowhere(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CliRunner().invoke(app, ["check", str(project), "--format", "json"])
    assert found.exit_code == 1
    assert "The setting spark.hadoop.fs.s3a.secret.key in watersmeet.yml" in found.stdout
    monkeypatch.setenv("S3", "key")
    found = CliRunner().invoke(app, ["check", str(project), "--format", "json"])
    refusals = json.loads(found.stdout)["refusals"]
    assert {refusal["condition"] for refusal in refusals} == {"MISSING_REFERENCE"}
    reasons = [refusal["parameters"] for refusal in refusals]
    assert [(one["name"], one["reason"]) for one in reasons] == [
        ("The option subscribe of a", "the environment variable TOPIC is not set"),
        ("The option kafka.sasl.jaas.config of a", f"the file {project}/keys/jaas cannot be read (FileNotFoundError)"),
        ("The option password of s", "the environment variable WM_PASSWORD is not set"),
    ]
    # What is explained has the reference alone, and needs nothing of what it stands for.
    assert CliRunner().invoke(app, ["explain", str(project)]).exit_code == 0
    (project / "keys").mkdir()
    (project / "keys" / "jaas").write_text("login secretive;\n")
    monkeypatch.setenv("TOPIC", "orders")
    monkeypatch.setenv("WM_PASSWORD", "hunter2")
    assert CliRunner().invoke(app, ["check", str(project)]).exit_code == 0


def test_a_variable_that_is_missing_is_named_once(tmp_path: Path) -> None:
    options = "USING kafka OPTIONS (kafka.bootstrap.servers '${env:BROKERS_A}', subscribe '${env:TOPIC_A}')"
    script = tmp_path / "q.sql"
    script.write_text(
        f"CREATE STREAM a (value BINARY) {options}; CREATE STREAM b (value BINARY) {options};"
        "SELECT STREAM value FROM a; SELECT STREAM value FROM b;"
    )
    refused = CliRunner().invoke(app, ["check", str(script)])
    assert refused.exit_code == 1 and refused.stderr.count("[MISSING_REFERENCE]") == 2
    assert "The option kafka.bootstrap.servers of a, like 1 other, has no value" in refused.stderr
    assert "`export BROKERS_A=value`" in refused.stderr and "`export TOPIC_A=value`" in refused.stderr


def test_a_script_is_resolved_late_and_its_secrets_are_masked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "orders")
    monkeypatch.setenv("WM_PASSWORD", "hunter2-env")
    (project / "jaas").write_text("login secretive;\n")
    script = read_script(SCRIPT.replace("keys/jaas", str(project / "jaas")))
    opened = script.resolve_options()
    assert opened.sources[0].lowercase_options["subscribe"] == "orders"
    assert opened.sources[0].lowercase_options["kafka.sasl.jaas.config"] == "login secretive;"
    assert opened.sinks[0].lowercase_options["password"] == "hunter2-env"
    told = Refusal("QUERY_FAILED", {"reason": "orders refused hunter2-env and login secretive;", "hint": ""})
    assert told.message == "The query stopped: orders refused *** and ***"
    assert "hunter2" not in json.dumps(told.as_json()) + told.to_message() + str(WatersmeetError([told]))
    assert "${env:WM_PASSWORD}" in repr(script.sinks[0])


@pytest.mark.parametrize(
    "text",
    [
        "CREATE SINK s USING postgres OPTIONS (table 't', password 'hunter3' dbname);",
        "CREATE SINK s USING postgres OPTIONS (\"password\" = 'hunter3', \"password\" = 'hunter3');",
        "CREATE SINK s USING postgres OPTIONS (url 'postgresql://me:hunter3@db/x', url 'y');",
        "CREATE SINK s USING postgres OPTIONS (url 'jdbc:postgresql://db/x?user=me&password=hunter3', url 'y');",
    ],
)
def test_no_refusal_quotes_a_password(text: str) -> None:
    with pytest.raises(WatersmeetError) as raised:
        read_script(text)
    shown = str(raised.value) + json.dumps([refusal.as_json() for refusal in raised.value.refusals])
    assert "hunter3" not in shown
    assert "***" in shown


GIVEN_TO_SPARK = {
    # Sources, by `read_source` and `find_unread`: of a script that `resolve_options` gave, or of the topics of one.
    "spark/connectors/reading.py", "spark/connectors/kafka.py",
    # Sinks: of such a script, too.
    "spark/connectors/sinks.py", "spark/connectors/delta.py", "spark/connectors/iceberg.py",
    "spark/connectors/files.py", "spark/connectors/snapshots.py", "spark/run/running.py",
    "spark/connectors/compaction.py",
    # None of a script.
    "spark/run/rebuild_input.py", "spark/state/checkpoint.py", "cli/demo.py",
}  # fmt: skip
"""Every module that hands options to Spark: a new one must have them from `resolve_options`."""


def _gives_options(file: Path) -> bool:
    """Whether a module hands Spark options, all at once or one by one, that are not fixed or a checkpoint's folder."""
    calls = (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call))
    return any(_is_from_outside(call) for call in calls)


def _is_from_outside(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "options":
        return bool(call.args or call.keywords)
    # `spark.read.json(path, **options)` and `.load(path, format, **options)` give options, too.
    if call.func.attr in ("json", "csv", "text", "parquet", "orc", "load", "save", "table", "jdbc", "start", "toTable"):
        return any(keyword.arg is None for keyword in call.keywords)
    if call.func.attr != "option":
        return False
    name = call.args[0] if call.args else None
    if isinstance(name, ast.Constant) and name.value in ("checkpointLocation", "path"):
        return name.value == "path"
    return not all(isinstance(part, ast.Constant) for part in call.args)


def test_the_search_for_options_finds_every_form(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    for text, is_found in {
        "r.options(**given)": True, "r.option(name, given[name])": True, "r.option('sep', given['sep'])": True,
        "r.option('path', given)": True, "spark.read.csv(path, **given)": True, "w.start(path, **given)": True,
        "w.option('checkpointLocation', folder)": False, "r.option('header', 'true')": False,
        "Source(options=x)": False,
    }.items():  # fmt: skip
        file.write_text(text)
        assert _gives_options(file) == is_found, text


def test_options_go_to_spark_in_known_places_only() -> None:
    root = Path(locations.__file__).parent
    giving = [file for file in root.rglob("*.py") if "operators" not in file.parts and _gives_options(file)]
    assert {str(file.relative_to(root)) for file in giving} == GIVEN_TO_SPARK
    resolving = [
        file for file in root.rglob("*.py") if re.search(r"script\w*\.resolve_options\(", file.read_text("utf-8"))
    ]
    assert [file.name for file in resolving] == ["reading.py"], "scripts are resolved by `resolve_options`"


def test_columns_are_read_with_what_references_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.csv").write_text("id;name\n1;a\n")
    options = f"path '{tmp_path}', header 'true', sep '${{env:SEP}}'"
    text = f"CREATE STREAM a USING csv OPTIONS ({options}); SELECT STREAM * FROM a;"
    monkeypatch.setenv("SEP", ";")
    (source,) = with_columns(read_script(text)).sources
    assert [field.name for field in source.fields] == ["id", "name"]
    assert source.lowercase_options["sep"] == "${env:SEP}"


ASKS = """
CREATE STREAM a (WATERMARK FOR t AS t) USING kafka OPTIONS (
    kafka.bootstrap.servers '${env:BROKER}', subscribe 'a', value.format 'avro', schema.registry.url '<url>'<more>
);
CREATE SINK s USING json OPTIONS (path 'out');
INSERT INTO s SELECT STREAM a.id FROM a;
"""
FIELDS = [{"name": "id", "type": "int"}, {"name": "t", "type": "long"}]


@pytest.mark.parametrize(
    "more",
    [
        ", schema.registry.user 'me', schema.registry.password '${env:STOLEN}'",
        ", schema.registry.token '${file:stolen}'",
        ", Schema.Registry.Subject '${env:STOLEN}'",
        "/${env:STOLEN}",
    ],
)
def test_check_and_explain_send_no_secret_to_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setenv("STOLEN", "hunter22")
    monkeypatch.setenv("BROKER", "b:9092")
    (tmp_path / "stolen").write_text("hunter22")
    file = tmp_path / "q.sql"
    with registry() as known:
        known.add("a-value", {"type": "record", "name": "a", "fields": FIELDS})
        url, option = (f"{known.url}{more}", "") if more.startswith("/") else (known.url, more)
        file.write_text(ASKS.replace("<url>", url).replace("<more>", option))
        for command in (["check"], ["explain"], ["explain", "--forecast"]):
            told = CliRunner().invoke(app, [*command, str(file)])
            assert (told.exit_code, known.asked) == (1, []), command
            assert "[UNKNOWN_COLUMNS]" in told.stderr and "check --deep" in told.stderr
        with suppress(WatersmeetError):
            open_script(file)
        assert known.asked, "a run asks"
        # What is not sent to the registry may be a reference.
        known.asked.clear()
        file.write_text(ASKS.replace("<url>", known.url).replace("<more>", ""))
        assert CliRunner().invoke(app, ["check", str(file)]).exit_code == 0
        assert known.asked == ["/subjects/a-value/versions/latest"]


def test_the_caret_stays_where_it_was() -> None:
    line = "OPTIONS (password 'hunter2', x)"
    assert len(locations.mask_line(line)) == len(line)
