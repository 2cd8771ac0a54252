"""Which copy of a static table belongs to a declaration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.catalog import Field, Source
from watersmeet.spark.connectors.static import copy_of, write_declaration

ITEMS = Source("items", (Field("id", "INT"), Field("name", "STRING")), kind="table", format="csv",
               options={"path": "/data", "static": "true", "password": "secret"})  # fmt: skip
MORE = replace(ITEMS, fields=(*ITEMS.fields, Field("price", "INT")))


def test_copy_of_an_earlier_version_counts_while_it_has_the_columns(tmp_path: Path) -> None:
    folder = tmp_path / "static" / "items"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"ID": [1], "name": ["tea"], "#reason": [None]}), folder / "part-0.parquet")
    assert copy_of(ITEMS, tmp_path) == folder
    assert copy_of(MORE, tmp_path).name.startswith("items-")
    # Another table, whose name begins alike.
    assert copy_of(replace(ITEMS, name="items-12345678"), tmp_path).name.startswith("items-12345678-")


def test_copy_is_found_by_what_decides_about_its_rows(tmp_path: Path) -> None:
    made = copy_of(MORE, tmp_path)
    made.mkdir(parents=True)
    write_declaration(MORE, made)
    assert "secret" not in (made / "_declaration.json").read_text()
    assert copy_of(replace(MORE, options={**MORE.options, "path": "file:///data/", "password": "x"}), tmp_path) == made
    assert copy_of(ITEMS, tmp_path) == made, "it has all columns"
    typed = replace(ITEMS, fields=(Field("id", "BIGINT"), *ITEMS.fields[1:]))
    others = (typed, replace(ITEMS, format="json"), replace(ITEMS, options={**ITEMS.options, "path": "/other"}))
    assert len({copy_of(other, tmp_path) for other in others} | {made}) == 4


def test_copy_of_columns_in_another_order_is_another(tmp_path: Path) -> None:
    id_, name, price = MORE.fields
    made = copy_of(MORE, tmp_path)
    made.mkdir(parents=True)
    write_declaration(MORE, made)
    # The second column of a row of CSV was the name, and is the price now.
    for fields in ((id_, price, name), (id_, price), (name,)):
        assert copy_of(replace(MORE, fields=fields), tmp_path) != made
        assert copy_of(replace(MORE, fields=fields, format="json"), tmp_path) != made
    by_name = replace(MORE, format="json")
    made = copy_of(by_name, tmp_path)
    made.mkdir()
    write_declaration(by_name, made)
    assert copy_of(replace(by_name, fields=(price, name)), tmp_path) == made
    # As an earlier version left it.
    (tmp_path / "earlier" / "static" / "items").mkdir(parents=True)
    pq.write_table(pa.table({"name": ["tea"], "id": [1]}), tmp_path / "earlier" / "static" / "items" / "0.parquet")
    assert copy_of(ITEMS, tmp_path / "earlier").name != "items"


def test_copy_of_other_settings_is_another(tmp_path: Path) -> None:
    made = copy_of(MORE, tmp_path, {})
    assert made == copy_of(MORE, tmp_path), "as earlier versions called it"
    made.mkdir(parents=True)
    write_declaration(MORE, made, {})
    strict = {"spark.sql.legacy.timeParserPolicy": "LEGACY"}
    other = copy_of(MORE, tmp_path, strict)
    assert other != made == copy_of(MORE, tmp_path)
    other.mkdir()
    write_declaration(MORE, other, strict)
    assert (copy_of(MORE, tmp_path, {}), copy_of(ITEMS, tmp_path, strict)) == (made, other)
    # A copy of an earlier version does not say its settings.
    write_declaration(MORE, made)
    assert copy_of(MORE, tmp_path, {"spark.sql.caseSensitive": "true"}) == made
