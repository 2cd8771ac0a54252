"""What is not public API of PySpark stands in one room, each use with its reason, versions and fallback."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import watersmeet
from watersmeet.spark.private import SEEN, unknown

ROOT = Path(watersmeet.__file__).parent
ROOM = ROOT / "spark" / "private"
PUBLIC = {
    "pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.streaming",
    "pyspark.sql.streaming.query",
    "pyspark.sql.streaming.stateful_processor",
}  # fmt: skip
"""The modules of PySpark that its documentation names."""
DOCUMENTED = re.compile(r"org\.apache\.spark[\w.]*\.RocksDBStateStoreProvider|org\.apache\.\w+:")
PRIVATE = re.compile(r"\bpyspark\.\w+|\borg\.apache\.|\bspark\.(jobGroup|watermarkDelayMs)|^_j\w+$")


def test_a_spark_that_lacks_something_is_named() -> None:
    (found,) = unknown("Arrow schemas of its own", "no rows can be handed to workers").refusals
    assert found.condition == "UNKNOWN_SPARK"
    assert found.hint == f"use Spark {SEEN}."
    assert "has no Arrow schemas of its own" in found.message


def uses(text: str) -> Iterator[str]:
    """What a module uses of PySpark that is not public: imports, attributes of others, and names in texts."""
    tree = ast.parse(text)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
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
            case ast.Attribute(attr=attr) if attr.startswith("_") and not attr.startswith("__"):
                yield ast.unparse(node)
            case ast.Constant(value=str(value)) if id(node) not in told:
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


def test_nothing_private_of_spark_is_used_outside_its_room() -> None:
    modules = [path for path in ROOT.rglob("*.py") if ROOM not in path.parents]
    found = {str(path.relative_to(ROOT)): [*uses(path.read_text("utf-8"))] for path in modules}
    assert {name: names for name, names in found.items() if names} == {}


def test_every_module_of_the_room_says_where_it_was_seen() -> None:
    for path in ROOM.glob("*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        assert path.name == "__init__.py" or f"Seen in: {SEEN}" in docstring, path
