"""Write docs/reference/errors.md from the catalogue of errors: ``python docs/make_errors.py``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "reference" / "errors.md"
CATALOGUE = Path(__file__).parents[1] / "src" / "watersmeet" / "errors.toml"

_INTRODUCTION = """\
# Errors

This page lists every error condition with its SQLSTATE. The message gives the consequence, the label the cause at its
place in the text, and the hint one thing to type. Labels of one to three words are left out here. Your names
replace the words in braces. Conditions marked "may be retried" can succeed later without a change; their [exit
code](cli.md#exit-codes) is 4 or 5.

<!-- Written by docs/make_errors.py from src/watersmeet/errors.toml. Change those, not this page. -->
"""


def page() -> str:
    """Return the page: one section per heading comment of the catalogue, one entry per condition."""
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
    least = {"label": 4, "hint": 1}
    parts = [f"- {part}: {_text(condition[part])}" for part in least if _says(condition.get(part), least[part])]
    if condition.get("retry"):
        parts.append("- may be retried")
    message = f"{condition['sqlstate']}: {_text(condition['message'])}"
    return [f"### {name}", "", message, *(["", *parts] if parts else [])]


def _says(text: str | None, least: int) -> bool:
    """Return whether a part has that many words, and is more than a single parameter."""
    return text is not None and len(text.split()) >= least and re.fullmatch(r"\{\w+\}", text) is None


def _text(text: str) -> str:
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
