"""Functions of the surface fit on a screen, and their options travel as values.

A function is counted from `def` to its last line. The docstring of a call in `watersmeet.__all__` is not counted: it is
the reference that users read. `self`, `cls`, `*rows` and `**options` count as parameters, one each. Where ruff's rules
for size and complexity are switched off in a line, the line gives the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import watersmeet

ROOT = Path(watersmeet.__file__).parent
REPOSITORY = Path(__file__).parent.parent
SURFACE = [
    *(ROOT / name for name in ("api.py", "calls.py", "arguments.py")),
    *sorted((ROOT / "cli").rglob("*.py")),
    *sorted((ROOT / "spark" / "compile").rglob("*.py")),
]
MOST_LINES, MOST_PARAMETERS = 60, 12


def too_large(path: Path) -> Iterator[str]:
    """The functions of a module that are too long, or have too many parameters."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or 0) - node.lineno + 1
        docstring = node.body[0]
        if path.name == "api.py" and node.name in watersmeet.__all__ and ast.get_docstring(node) is not None:
            lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        count = sum(parameter is not None for parameter in parameters)
        if lines > MOST_LINES or count > MOST_PARAMETERS:
            yield f"{node.name}: {lines} lines, {count} parameters"


@pytest.mark.parametrize("path", SURFACE, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_of_the_surface_are_small(path: Path) -> None:
    assert list(too_large(path)) == []


FOLDERS = ("src", "tests", "bench", "faults", "docs")
CHECKED = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
EXCEPTION = re.compile(r"# noqa: [A-Z0-9, ]*\b(?:C901|PLR09\d\d)\b(?P<rest>.*)")


def test_every_exception_to_a_rule_of_size_has_a_reason() -> None:
    unexplained = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in CHECKED
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for match in EXCEPTION.finditer(line)
        if not re.search(r" - \w+ \w+", match["rest"])
    ]
    assert unexplained == []
