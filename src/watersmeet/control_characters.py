"""Control characters in texts for a terminal, which would take them for commands: to move, to colour, to answer."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
"""All of C0 and C1 except for tabs and line ends."""


def escape_controls(text: str) -> str:
    r"""Return a text in which each control character is written as in JSON; line ends and tabs stay.

    >>> escape_controls("red: \x1b[31m\n") == "red: \\u001b[31m\n"
    True
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def replace_controls(line: str) -> str:
    r"""Return a line in which a sign of the same width stands for each control character.

    >>> replace_controls("a\x1bb")
    'a\ufffdb'
    """
    return _CONTROLS.sub("\ufffd", line)
