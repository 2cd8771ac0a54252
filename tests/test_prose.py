"""Prose is plain English: documents, help, error texts, and the docstrings and comments of `src`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BANNED = re.compile(
    r"\b(?:anew|nobody|somebody|whoever|(?:is|are) none)\b"
    r"|\bthere it is\b(?! \w)|\bit is no\b(?! (?:longer|further)\b)",
    re.IGNORECASE,
)
"""Words and phrases that a reader has to translate. `None` with a capital is the value of Python."""

RIDDLE = re.compile(r"(?:What|Who|Whom|Whose|Whoever|Which|How|Where|When|Why)\b")
"""The beginning of a docstring that does not say what its subject does or returns."""

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "Makefile")),
    *(ROOT / name for name in ("pyproject.toml", "src/watersmeet/errors.toml")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests" / "cli" / "help").glob("*.txt")),
]
MODULES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROGRAMS = sorted(path for folder in ("bench", "faults") for path in (ROOT / folder).rglob("*.py"))


def find_banned(text: str) -> list[str]:
    """The banned words of a text; a phrase may span lines."""
    spaced = re.sub(r"\s+(?:# ?)?", " ", text)
    return [match[0] for match in BANNED.finditer(spaced) if not match[0].endswith(" None")]


def docstrings(text: str) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and the strings that describe a constant or field above them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip()


def comments(text: str) -> str:
    """The comments of a module, line by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string.removeprefix("#") for token in tokens if token.type == tokenize.COMMENT)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_have_no_banned_words(path: Path) -> None:
    assert find_banned(path.read_text("utf-8")) == []


def test_docstrings_and_comments_have_no_banned_words() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {word}: {piece[:60]}"
        for path in (*MODULES, *PROGRAMS, *TESTS)
        for text in [path.read_text("utf-8")]
        for piece in (*docstrings(text), comments(text))
        for word in find_banned(piece)
    ]
    assert offenders == []


def test_docstrings_begin_with_what_their_subject_does_or_returns() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {docstring[:60]}"
        for path in (*MODULES, *PROGRAMS)
        for docstring in docstrings(path.read_text("utf-8"))
        if RIDDLE.match(docstring)
    ]
    assert offenders == []


def test_banned_words_are_found() -> None:
    assert find_banned("It is\n# none, and Nobody begins anew; it is no key. There it is.") == [
        "is none", "Nobody", "anew", "it is no", "There it is",
    ]  # fmt: skip
    assert find_banned("It is no longer None, and the value is None. There it is a name.") == []
