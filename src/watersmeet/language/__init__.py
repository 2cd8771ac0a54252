"""Text to plan: a reader over sqlglot's tokens, with expressions understood as far as the analysis needs."""

from __future__ import annotations

from watersmeet.language.format.script import format_script
from watersmeet.language.reader.expression import read_expression
from watersmeet.language.reader.grammar import Grammar
from watersmeet.language.reader.statements import read_script

__all__ = ["Grammar", "format_script", "read_expression", "read_script"]
