"""What a script says, however it is laid out: for tests that compare two readings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.case_files import FILES

from watersmeet.catalog import Span
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Script
from watersmeet.parser.cursor import Token, tokenize
from watersmeet.parser.formatter import gaps_of

ROOT = Path(__file__).parents[2]


def meaning(node: Any) -> Any:
    """Everything in it but places in the text, and the spaces and capitals in what is left to Spark."""
    if isinstance(node, Span):
        return None
    if isinstance(node, Expr):
        spelled = re.sub(r"\s", "", node.text).upper()
        return (node.op, spelled, meaning(node.args), node.value, [ref.parts for ref in node.refs])
    if isinstance(node, tuple | list):
        return [meaning(part) for part in node]
    if isinstance(node, Mapping):
        return dict(node)
    if is_dataclass(node):
        skipped = {"text", "name"} if isinstance(node, Script) else set[str]()
        return [type(node).__name__, *(meaning(getattr(node, f.name)) for f in fields(node) if f.name not in skipped)]
    return node


def words(text: str) -> list[str]:
    """The tokens of a text but semicolons, words in capitals."""
    return [t.word if t.kind == "word" else t.text for t in tokenize(text, "<sql>") if t.word != ";"]


def comments(text: str) -> list[str]:
    """The comments of a text from first to last."""
    tokens: tuple[Token, ...] = tokenize(text, "<sql>")
    return [comment.text for _, gap in sorted(gaps_of(text, tokens, frozenset()).items()) for comment in gap.comments]


def all_scripts() -> list[str]:
    """The SQL of all cases and examples."""
    cases = [yaml.safe_load(path.read_text("utf-8")) for path in FILES]
    examples = [path.read_text("utf-8") for path in sorted((ROOT / "examples").rglob("*.sql"))]
    return [*(case["sql"] for case in cases if "sql" in case), *examples]
