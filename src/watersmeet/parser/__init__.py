"""Text to plan: a reader over sqlglot's tokens, with expressions understood as far as the analysis needs."""

from __future__ import annotations

from watersmeet.parser.cursor import Grammar
from watersmeet.parser.expressions import read_expression
from watersmeet.parser.formatter import format_script
from watersmeet.parser.statements import UnreadPart, read_partial_script, read_script

__all__ = ["Grammar", "UnreadPart", "format_script", "read_expression", "read_partial_script", "read_script"]
