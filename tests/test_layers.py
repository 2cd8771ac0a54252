"""Imports point one way, a family is one folder and one entry, and each room keeps to itself what it is for.

The contracts of import-linter are in pyproject.toml. What does not hold yet is marked, and the mark must go with it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "watersmeet"
OPERATORS = PACKAGE / "operators"
FAMILIES = sorted(path.parent.name for path in OPERATORS.glob("*/definition.py"))


def imports(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules that a file imports, anywhere in it, and the names that it takes from them."""
    return imports_of(path.read_text("utf-8"))


def imports_of(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The same, of the text of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, tuple(alias.name for alias in node.names)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    """The package that a module counts to: a room of operators/, spark/ and tools/ is one, and so are the passes."""
    first, *rest = module.split(".")[1:] or ("",)
    is_room = first in ("operators", "spark", "tools") or [first, *rest[:1]] == ["logical", "passes"]
    return f"{first}.{rest[0]}" if rest and is_room else first


def package_imports(sources: Mapping[str, str]) -> set[tuple[str, str]]:
    """Which package imports which, of modules by their names; imports in functions and for types count too."""
    found: set[tuple[str, str]] = set()
    for module, text in sources.items():
        for imported, names in imports_of(text):
            if imported.partition(".")[0] != "watersmeet":
                continue
            whole = [f"{imported}.{name}" for name in names]
            # A name may be that of a module.
            modules = {name if name in sources else imported for name in whole} or {imported}
            found |= {(package_of(module), package_of(target)) for target in modules}
    return {(one, other) for one, other in found if one != other}


def mutual(edges: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted((one, other) for one, other in edges if one < other and (other, one) in edges)


def test_no_two_packages_import_each_other() -> None:
    edges = package_imports({module_of(path): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")})
    assert len(edges) > 100 and mutual(edges) == []


def test_imports_that_are_late_or_for_types_are_found() -> None:
    late = "def f():\n    from watersmeet.spark.connectors import kafka\n"
    typed = "if TYPE_CHECKING:\n    import watersmeet.formats.base\n"
    sources = {"watersmeet.formats.base": late, "watersmeet.spark.connectors.kafka": typed}
    assert mutual(package_imports(sources)) == [("formats", "spark.connectors")]


def test_no_contract_ignores_an_import() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert "ignore_imports" not in text


CONTRACTS: Mapping[str, Any] = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
}
TOP_LEVEL = {
    f"watersmeet.{path.stem}" for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
} - {"watersmeet.__init__"}
BELOW_KERNELS = {
    "watersmeet.deprecation", "watersmeet.duration", "watersmeet.functions", "watersmeet.locations",
    "watersmeet.operators", "watersmeet.schema", "watersmeet.testing", "watersmeet.version",
}  # fmt: skip
"""Packages that no kernel has a reason to import, but that bring nothing with them, and `operators` itself."""
DESCRIPTIONS = {"__init__", "analyze", "explain", "parse", "plan", "relation", "unbounded"}
"""The modules of a family that know the query; all others are what its kernel is made of."""


def test_contracts_list_every_module() -> None:
    """They name modules by hand: a new one must be in them."""
    assert TOP_LEVEL - {"watersmeet.parser"} == set(CONTRACTS["one-parser"]["source_modules"])
    forbidden = {name for name in CONTRACTS["kernels-alone"]["forbidden_modules"] if name.startswith("watersmeet.")}
    assert forbidden == TOP_LEVEL - BELOW_KERNELS
    kernels = {module_of(path) for path in OPERATORS.glob("*/*.py") if path.stem not in DESCRIPTIONS}
    listed = [re.escape(name).replace(r"\*", r"\w+") for name in CONTRACTS["kernels-alone"]["source_modules"]]
    assert {name for name in kernels if not re.match(rf"({'|'.join(listed)})(\.|$)", name)} == set()


def test_families_do_not_import_each_other() -> None:
    """A bar stands for independence in the layers of import-linter, a colon does not."""
    layer = next(layer for layer in CONTRACTS["layers"]["layers"] if "operators.asof" in layer)
    assert set(layer.split(" | ")) == {f"watersmeet.operators.{family}" for family in FAMILIES}


def test_the_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize(
    "module",
    [
        "watersmeet.cli.app",
        "watersmeet.cli.check",
        "watersmeet.project",
        "watersmeet.cli.demo",
        "watersmeet.formats",
    ],
)
def test_no_spark_is_loaded_before_it_is_needed(module: str) -> None:
    program = f"import sys, {module}; print([m for m in ('pyspark', 'pandas', 'py4j') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_command_itself_loads_next_to_nothing() -> None:
    heavy = ("pyarrow", "numpy", "sqlglot", "pydantic", "pyspark")
    program = f"import sys, watersmeet.cli.app; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


MENTIONS = {
    # Neither `has_offset` nor SQL's `AS OF`, which reads other things too, nor options of Delta and Iceberg.
    "asof": r"(?<!version)(?<!timestamp)asof|\bas-of\b(?!-timestamp)|(?<![a-z])as_of(?![a-z])",
    # Neither `async_` nor `fsync`.
    "sync": r"\bsync joins?\b|syncjoin|(?<![a-z])sync_(?=[a-z])",
    # Not the time windows of GROUP BY.
    "window": r"windowjoin|analyzedwindow|\bwindow joins?\b|window_join",
    # Neither `recursiveFileLookup`, an option of Spark, nor `ProcessLookupError`.
    "lookup": r"(?<!file)(?<!process)lookup",
}
"""How a family is mentioned, in code and in docstrings, whatever the case of its letters."""


@pytest.mark.parametrize("family", MENTIONS)
def test_a_family_is_one_folder_and_one_entry(family: str) -> None:
    """Beside it the registry, the Python calls and their arguments, and the texts of errors may name it."""
    own = OPERATORS / family
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml") and path.parent != own]
    naming = [path for path in files if re.search(MENTIONS[family], path.read_text("utf-8"), re.IGNORECASE)]
    assert len(naming) <= 4, [str(path.relative_to(PACKAGE)) for path in naming]


def is_description(module: str, name: str) -> bool:
    """Whether what is imported is a value: a constant, a frozen description, an error, or evaluation row by row."""
    if module in ("watersmeet.operators.core.rowwise", "watersmeet.operators.core.aggregates"):
        return True
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found):
        made = getattr(found, "__dataclass_params__", None)
        return issubclass(found, Exception) or (made is not None and made.frozen)
    return not inspect.isroutine(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_definition_calls_no_kernel(family: str) -> None:
    taken = list(imports(OPERATORS / family / "definition.py"))
    assert not {module.partition(".")[0] for module, _ in taken} & {"numpy", "pyarrow"}
    ours = [(module, name) for module, names in taken if module.startswith("watersmeet.") for name in names]
    assert [one for one in ours if not is_description(*one)] == []


def stores(path: Path) -> list[str]:
    """Where a module writes to a store or reads from it itself, or makes bytes of tables."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if re.search(r"\bstore\.(put|get|delete|names)$|^(pa|pyarrow)\.ipc$", text):
                found.append(f"{path.relative_to(OPERATORS)}:{node.lineno} {text}")
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_families_do_not_store(family: str) -> None:
    """Only operators/state does."""
    assert [place for path in (OPERATORS / family).glob("*.py") for place in stores(path)] == []


PUBLIC_SPARK = re.compile(
    r"pyspark(\.(errors(\..*)?|logger|taskcontext"
    r"|sql(\.(functions|types|dataframe|streaming(\.(query|readwriter|listener|stateful_processor))?))?))?"
)
PRIVATE_MEMBER = re.compile(r"_(jvm|jdf|jsc|sc|gateway|jsparkSession|jsession|jq|jwrite|jreader|jmap|client)")


def private_spark(path: Path) -> list[str]:
    """What a module uses of Spark that is no public API: members behind Py4J, modules, also by their names as text."""
    tree = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    members = [node.attr for node in tree if isinstance(node, ast.Attribute) and PRIVATE_MEMBER.fullmatch(node.attr)]
    texts = [node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [text for text in texts if re.fullmatch(r"pyspark(\.[a-z_]+)+", text)]
    modules = [module for module, _ in imports(path) if module.split(".")[0] in ("pyspark", "py4j")]
    return members + [module for module in (*modules, *named) if not PUBLIC_SPARK.fullmatch(module)]


def test_private_spark_is_in_one_room() -> None:
    room = PACKAGE / "spark" / "private"
    using = {str(path.relative_to(PACKAGE)): private_spark(path) for path in PACKAGE.rglob("*.py")}
    elsewhere = {name: used for name, used in using.items() if used and not (PACKAGE / name).is_relative_to(room)}
    assert elsewhere == {}


def test_no_module_hides_one_of_pythons_own() -> None:
    # Workers may have this folder itself on their path.
    names = {path.stem for path in PACKAGE.iterdir()}
    assert names.isdisjoint(sys.stdlib_module_names)


def test_files_hold_a_subject() -> None:
    files = [*PACKAGE.rglob("*.py")]
    assert len(files) <= 340, "merge siblings that are always read together"


def test_a_package_is_not_hidden_by_a_name_of_its_parent() -> None:
    # A submodule becomes an attribute of its package: what was imported under the same name before is gone.
    for package in PACKAGE.rglob("__init__.py"):
        inside = {path.stem for path in package.parent.iterdir()} - {"__init__"}
        module = ".".join(package.parent.relative_to(PACKAGE.parent).parts)
        taken = {
            name for source, names in imports(package) for name in names if source not in (module, f"{module}.{name}")
        }
        assert not inside & taken, f"{module}: {inside & taken}"


SIDES = {"Port": "operators.core", "PortPlan": "physical", "InputFrame": "spark.compile"}
"""What a side of a join is: of an operator, of a physical plan, and of Spark."""


def sides_in(tree: ast.Module) -> set[str]:
    """The classes whose fields are the columns and the event times of rows, or a DataFrame with what is known of it."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            fields = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            found |= {node.name} if {"columns", "times"} <= fields or "frame" in fields else set()
    return found


def test_a_side_has_one_class_per_stage() -> None:
    found: dict[str, str] = {}
    for room in ("operators", "physical", "spark/compile", "spark/exchange"):
        for path in (PACKAGE / room).rglob("*.py"):
            names = sides_in(ast.parse(path.read_text("utf-8")))
            found |= {name: package_of(module_of(path)) for name in names}
    # A layout of stored rows has columns and times, too, but says how they lie in the state.
    assert found.pop("RowLayout") == "operators.state"
    assert found == SIDES
