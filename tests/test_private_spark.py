"""What is not public API of PySpark stands in one room, each use with its reason, versions and fallback."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import watersmeet
from watersmeet.errors import WatersmeetError
from watersmeet.spark import private
from watersmeet.spark.private import SEEN, introspection, unknown_spark

ROOT = Path(watersmeet.__file__).parent
ROOM = ROOT / "spark" / "private"
PUBLIC = {
    "pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.streaming",
    "pyspark.sql.streaming.query", "pyspark.sql.streaming.readwriter",
    "pyspark.sql.streaming.stateful_processor",
}  # fmt: skip
"""The modules of PySpark that its documentation names."""
DOCUMENTED = re.compile(
    r"org\.apache[\w.]*\.(RocksDBStateStoreProvider|DeltaCatalog|IcebergSparkSessionExtensions)|org\.apache\.\w+:"
)
PRIVATE = re.compile(r"\bpyspark\.\w+|\borg\.apache\.|\bspark\.(jobGroup|watermarkDelayMs)|^_j\w+$")


def test_a_spark_that_lacks_something_is_named() -> None:
    (found,) = unknown_spark("Arrow schemas of its own", "no rows can be handed to workers").refusals
    assert found.condition == "UNKNOWN_SPARK"
    assert found.hint == f"use Spark {SEEN}."
    assert "has no Arrow schemas of its own" in found.message


def test_a_spark_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "spark_version", lambda: "3.5.9")
    with pytest.raises(WatersmeetError, match=r"Spark 3\.5\.9 has no `transformWithStateInPandas`"):
        private.check_version()
    # 4.0 was made for another protobuf than the rest.
    monkeypatch.setattr(private, "spark_version", lambda: "4.0.5")
    monkeypatch.setattr(private, "protobuf_version", lambda: "7.36.2")
    with pytest.raises(WatersmeetError, match="PROTOBUF_UNFIT"):
        private.check_version()
    monkeypatch.setattr(private, "protobuf_version", lambda: "6.33.5")
    private.check_version()


def test_moments_are_in_the_zone_of_the_session_where_spark_tells_them_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.pandas import types

    new, moment = types.to_arrow_schema, TimestampType()
    pairs = [
        ("t", moment), ("n", TimestampNTZType()), ("a", ArrayType(moment)), ("m", MapType(moment, DateType())),
        ("s", StructType([StructField("m", MapType(StringType(), moment))])),
    ]  # fmt: skip
    schema = StructType([StructField(name, type_, name != "m") for name, type_ in pairs])
    want = introspection.arrow_schema(schema, "Asia/Tokyo")

    def old(schema: Any, error: bool = False, timestamp_utc: bool = True) -> Any:
        return new(schema, timezone="UTC") if "timezone" in signature(new).parameters else new(schema)

    monkeypatch.setattr(types, "to_arrow_schema", old)
    assert introspection.arrow_schema(schema, "Asia/Tokyo").equals(want, check_metadata=True)
    assert want.field("t").type == pa.timestamp("us", "Asia/Tokyo")


def uses(text: str) -> Iterator[str]:
    """What a module uses of PySpark that is not public: imports, attributes of others, and names in texts."""
    tree = ast.parse(text)
    stated = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in ("pyspark", "py4j"):
                names = [alias.name for alias in node.names]
                if module not in PUBLIC or any(name.startswith("_") for name in names):
                    yield f"{module}: {', '.join(names)}"
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name.split(".")[0] in ("pyspark", "py4j"))
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "os")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))) if "pyspark" not in text:
                pass
            case ast.Attribute(attr=attr) if attr.startswith("_") and not attr.startswith("__"):
                yield ast.unparse(node)
            case ast.Constant(value=str(value)) if id(node) not in stated:
                if PRIVATE.search(DOCUMENTED.sub("", value)):
                    yield value
            case _:
                pass


@pytest.mark.parametrize(
    "text",
    [
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "from py4j.protocol import Py4JError",
        "import pyspark.worker",
        "frame._jdf.queryExecution()",
        "getattr(spark, '_jvm')",
        "WORKER = 'pyspark.daemon'",
        "jvm.get('org.apache.spark.sql.Dataset')",
    ],
)
def test_a_private_use_is_seen(text: str) -> None:
    assert [*uses(text)]


def test_private_spark_is_used_in_its_room_only() -> None:
    modules = [path for path in ROOT.rglob("*.py") if ROOM not in path.parents]
    found = {str(path.relative_to(ROOT)): [*uses(path.read_text("utf-8"))] for path in modules}
    assert {name: names for name, names in found.items() if names} == {}


def test_every_module_of_the_room_says_where_it_was_seen() -> None:
    for path in ROOM.glob("*.py"):
        docstring = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
        assert path.name == "__init__.py" or f"Seen in: {SEEN}" in docstring, path


def test_sinks_leave_the_active_session_of_the_process_alone() -> None:
    """A batch has a session of its own, which these make the active one: settings of others would go to it."""
    calls = {"createDataFrame", "getOrCreate", "newSession"}
    found = [
        f"{path.name}: {node.attr}"
        for path in (ROOT / "spark" / "sinks").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in calls
    ]
    assert found == []
