"""SECURITY.md names the tests that hold its threat model: they must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "SECURITY.md").read_text("utf-8")
NAMED = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
SURFACES = (
    "Page", "Board", "Metrics", "Archives", "Scripts and projects", "Secrets", "Data", "Checkpoints and storage",
    "Sockets", "Jars",
)  # fmt: skip


def find_missing_tests(text: str) -> list[str]:
    """The tests that a text names and that are not there: the file, or a function of that name at its top level."""
    missing: list[str] = []
    for named in NAMED.finditer(text):
        path, function = ROOT / named[1], named[2]
        nodes = ast.parse(path.read_text("utf-8")).body if path.is_file() else []
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        if not (function or "").startswith("test_") or function not in functions:
            missing.append(named[0])
    return missing


def test_every_test_that_the_threat_model_names_exists() -> None:
    assert find_missing_tests(DOCUMENT) == []


def test_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/test_security_document.py"
    gone = [f"{here}::test_nothing", "tests/test_gone.py::test_x", here, f"{here}::missing_tests"]
    assert find_missing_tests(f"`{here}::test_a_test_that_is_gone_is_noticed`, {', '.join(gone)}") == gone


def test_every_surface_has_defences_with_tests_and_says_what_it_does_not_defend_against() -> None:
    sections = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
    for surface in SURFACES:
        rows = re.findall(r"^\| (.+) \| (.+) \|$", sections[surface], re.MULTILINE)
        assert rows[0] == ("defends against", "test"), surface
        assert len(rows) > 1 and all(NAMED.search(test) for _, test in rows[1:]), surface
        assert "It does not defend against" in sections[surface], surface
        anchor = surface.lower().replace(" ", "-")
        assert f"| [{surface.lower()}](#{anchor}) |" in DOCUMENT, surface
