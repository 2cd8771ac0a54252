"""The catalogue of refusals: every condition is raised somewhere, and some test says when."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest

from watersmeet.errors import catalogue

ROOT = Path(__file__).parent.parent
SOURCES = {path: path.read_text("utf-8") for path in (ROOT / "src" / "watersmeet").rglob("*.py")}
# Golden files and cases name the condition that they expect; this file names none.
TESTS = {
    path: path.read_text("utf-8")
    for suffix in ("py", "yaml", "txt")
    for path in (ROOT / "tests").rglob(f"*.{suffix}")
    if path != Path(__file__)
}


def is_named(condition: str, texts: dict[Path, str]) -> bool:
    """Whether one of the texts speaks of the condition."""
    return any(re.search(rf"\b{condition}\b", text) for text in texts.values())


def test_every_condition_is_raised_by_some_code() -> None:
    assert [condition for condition in catalogue() if not is_named(condition, SOURCES)] == []


def test_every_condition_has_a_test() -> None:
    assert [condition for condition in catalogue() if not is_named(condition, TESTS)] == []


def test_every_condition_that_code_raises_is_in_the_catalogue() -> None:
    raised = re.compile(r"(?:\brefuse|\bRefusal|\.refusal|\brefusal)\(\s*\"([A-Z_]+)\"")
    unknown = {found for text in SOURCES.values() for found in raised.findall(text)} - set(catalogue())
    assert unknown == set()


@pytest.mark.parametrize("condition", catalogue())
def test_texts_are_complete(condition: str) -> None:
    entry = catalogue()[condition]
    assert re.fullmatch(r"[0-9A-Z]{5}", entry.sqlstate)
    assert entry.message.endswith((".", "}")), "a sentence"
    assert entry.hint, "one thing to type"
    for text in (entry.message, entry.label, entry.hint):
        assert all(name is None or re.fullmatch(r"[a-z_]+", name) for _, name, _, _ in Formatter().parse(text))
