"""What watersmeet.yml may say, and how a project is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from watersmeet.catalog import Sink, Source
from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Script
from watersmeet.project import Project, open_project, read_yaml, resolve_paths
from watersmeet.tools.testing.case import parse_case


def project(folder: Path, spec: str, **files: str) -> Path:
    (folder / "sql").mkdir()
    (folder / "watersmeet.yml").write_text(spec)
    for name, text in files.items():
        (folder / "sql" / f"{name}.sql").write_text(text)
    return folder


def error_of(path: Path) -> WatersmeetError:
    with pytest.raises(WatersmeetError) as caught:
        open_project(path)
    return caught.value


def test_all_files_are_one_script_in_the_order_of_their_names(tmp_path: Path) -> None:
    opened = open_project(project(tmp_path, "name: shop", b="SELECT 2;", a="SELECT 1;\n"))
    assert opened.text == "SELECT 1;\nSELECT 2;\n"
    assert opened.script_name == "shop"


def test_every_field_of_a_pipeline(tmp_path: Path) -> None:
    spec = """
name: shop
storage: state
catalog: c
schema: s
configuration: {spark.x: true, spark.y: 8}
libraries: [{glob: {include: sql/b.sql}}]
"""
    opened = open_project(project(tmp_path, spec, a="1", b="2"))
    assert (opened.storage, opened.catalog, opened.database) == ("state", "c", "s")
    assert opened.configuration == {"spark.x": "true", "spark.y": "8"}
    assert [Path(file.name).name for file in opened.files] == ["b.sql"]


@pytest.mark.parametrize(
    ("spec", "reason", "hint"),
    [
        ("name: shop\nlibaries: []", "there is no field `libaries`", "did you mean `libraries`?"),
        (
            "name: shop\nlibraries: [{glob: {includes: x}}]",
            "there is no field `libraries.0.glob.includes`",
            "`include`",
        ),
        ("storage: x", "the field `name` is missing", "add `name: ...`."),
        ("name: shop\nconfiguration: 5", "`configuration`: ", "for example"),
        ("- name: shop", "it is not a mapping of fields", "for example"),
        ("name: [", "it is not YAML", "correct it"),
        (
            "name: shop\nlibraries: [{glob: {include: nowhere/**}}]",
            "no SQL file matches `nowhere/**`",
            "under `libraries`",
        ),
        ("name: shop\nlibraries: [{glob: {include: /etc/**}}]", "`/etc/**` leads out of the project", "sql/**"),
        ("name: shop\nlibraries: [{glob: {include: ../x/*.sql}}]", "`../x/*.sql` leads out of the project", "sql/**"),
        ("name: shop\nlibraries: [{glob: {include: sql/../../*}}]", "`sql/../../*` leads out of the project", "sql/**"),
    ],
)
def test_a_wrong_file_is_refused_with_a_hint(tmp_path: Path, spec: str, reason: str, hint: str) -> None:
    refusals = error_of(project(tmp_path, spec, a="SELECT 1;")).refusals
    found = [r for r in refusals if reason in r.message]
    assert found and found[0].condition == "WRONG_PROJECT", [r.message for r in refusals]
    assert hint in found[0].hint


@pytest.mark.parametrize("link", ["sql/linked.sql", "sql/folder"])
def test_a_link_that_leads_out_of_the_project_is_refused(tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.sql").write_text("SELECT 2;")
    (tmp_path / "inside").mkdir()
    folder = project(tmp_path / "inside", "name: shop\nlibraries: [{glob: {include: 'sql/*'}}]", a="SELECT 1;")
    assert len(open_project(folder).files) == 1
    (folder / link).symlink_to(outside / "b.sql" if link.endswith(".sql") else outside)
    if link.endswith("folder"):
        spec = (folder / "watersmeet.yml").read_text().replace("sql/*", "sql/folder/*")
        (folder / "watersmeet.yml").write_text(spec)
    [refusal] = error_of(folder).refusals
    assert refusal.condition == "WRONG_PROJECT" and "leads out of the project" in refusal.message


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    error = error_of(project(tmp_path, "libaries: []\nstorge: x", a="SELECT 1;"))
    assert len(error.refusals) == 3


def test_a_folder_without_a_project(tmp_path: Path) -> None:
    assert "it has no watersmeet.yml" in str(error_of(tmp_path))


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_bytes(b"\xff\xfe\x00")
    assert error_of(tmp_path / "q.sql").getCondition() == "WRONG_PROJECT"


def test_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("SELECT 1;")
    opened = open_project(tmp_path / "q.sql")
    assert (opened.root, opened.name, opened.storage) == (tmp_path, "q", "q.storage")


def test_a_file_of_a_project_runs_with_its_settings(tmp_path: Path) -> None:
    folder = project(tmp_path, "name: shop\nstorage: state", a="SELECT 1;", b="SELECT 2;")
    opened = open_project(folder / "sql" / "b.sql")
    assert (opened.root, opened.storage, opened.text) == (folder, "state", "SELECT 2;\n")


def test_paths_start_at_the_project() -> None:
    source = Source("a", (), format="json", options={"path": "data/a", "sourceArchiveDir": "read", "sep": ";"})
    script = Script("s", "", (source,), (Sink("b", "parquet", {"PATH": "s3a://bucket/b"}),))
    resolved = resolve_paths(script, Path("/srv/shop"))
    assert resolved.sources[0].options == {"path": "/srv/shop/data/a", "sourceArchiveDir": "/srv/shop/read", "sep": ";"}
    assert resolved.sinks[0].options == {"PATH": "s3a://bucket/b"}


def test_storage_must_be_a_folder() -> None:
    from watersmeet.project import storage_folder

    assert storage_folder(Project(Path("/srv"), "p", "file:///x/y", ())) == Path("/x/y")
    with pytest.raises(WatersmeetError, match="cannot reach"):
        storage_folder(Project(Path("/srv"), "p", "s3a://bucket/x", ()))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("name: shop\nstorage: a\nstorage: b\n", "the key `storage` appears twice, in lines 2 and 3"),
        ("name: shop\nconfiguration: {a: 1, b: 2, a: 3}\n", "the key `a` appears twice, in lines 2 and 2"),
    ],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, spec: str, told: str) -> None:
    (refusal,) = error_of(project(tmp_path, spec, q="SELECT 1;")).refusals
    assert refusal.condition == "WRONG_PROJECT" and told in refusal.message
    with pytest.raises(WatersmeetError, match="the key `sql` appears twice, in lines 2 and 3"):
        parse_case("name: a\nsql: SELECT 1\nsql: SELECT 2\n")


def test_a_mapping_that_is_merged_into_another_may_be_written_over() -> None:
    text = "base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}\n"
    assert read_yaml(text)["more"] == {"a": 1, "b": 3}


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_bytes(b"\xef\xbb\xbfCREATE STREAM s (id BIGINT);\n")
    assert open_project(tmp_path / "a.sql").text == "CREATE STREAM s (id BIGINT);\n"
