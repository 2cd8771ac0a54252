"""Writes docs/reference/errors.md from the catalogue of refusals: ``python docs/make_errors.py``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "reference" / "errors.md"
CATALOGUE = Path(__file__).parents[1] / "src" / "watersmeet" / "errors.toml"

_INTRODUCTION = """\
# Refusals

Every condition with which Watersmeet refuses a script, a call or a file. Words in braces are filled in with your
names. In a refusal, the message gives the consequence, the label the cause at its place in the text, and the hint one
thing to type. What may be retried may succeed later with nothing changed; the [exit code](cli.md#exit-codes) tells.

<!-- Written by docs/make_errors.py from src/watersmeet/errors.toml. Change those, not this page. -->
"""


def page() -> str:
    """The page as it must be: one section per heading comment of the catalogue, one entry per condition."""
    text = CATALOGUE.read_text("utf-8")
    conditions = tomllib.loads(text)
    lines = [_INTRODUCTION.rstrip()]
    seen_condition = False
    for line in text.splitlines():
        heading = re.fullmatch(r"# (\w[\w ]*)", line)
        name = re.fullmatch(r"\[(\w+)\]", line)
        if heading and (seen_condition or heading[1] == "Reading"):
            lines += ["", f"## {heading[1]}"]
        elif name:
            seen_condition = True
            lines += ["", *_entry(name[1], conditions[name[1]])]
    return "\n".join(lines) + "\n"


def _entry(name: str, condition: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", "", f"SQLSTATE {condition['sqlstate']}", "", f"- message: {_text(condition['message'])}"]
    lines += [f"- {part}: {_text(condition[part])}" for part in ("label", "hint") if _says(condition.get(part))]
    return [*lines, "- may be retried"] if condition.get("retry") else lines


def _says(text: str | None) -> bool:
    """Whether a part has words of its own, and is not one parameter alone."""
    return bool(text) and re.fullmatch(r"\{\w+\}", str(text)) is None


def _text(text: str) -> str:
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
