"""Starts the JVM of a session with its settings in a file that only we can read, unless `spark-submit` has started it.

PySpark itself puts every setting on the command line of the JVM, which all users of the machine can see. What starts
the JVM is ``SparkContext._ensure_initialized``, and ``_gateway`` tells whether there is one. ``spark-submit`` tells the
program that it starts in ``PYSPARK_GATEWAY_PORT`` how to reach its JVM.

Seen in: 4.0 to 4.3. Missing: PySpark starts the JVM when it makes the session, as it does by itself;
and a program that is submitted is taken for one that is not.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FILE = "--properties-file"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def submit_settings() -> dict[str, str] | None:
    """The settings with which this program was submitted, its master among them; None: nobody has submitted it."""
    if _SUBMITTED not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    start = getattr(SparkContext, "_ensure_initialized", None)
    if start is not None:
        # The settings are those of the JVM.
        start()
    return dict(SparkConf().getAll())


def launch(settings: Mapping[str, str]) -> None:
    """Start the JVM, unless there is one, or its arguments name a file of settings already."""
    from pyspark import SparkContext

    before = os.environ.get(ARGUMENTS)
    start = getattr(SparkContext, "_ensure_initialized", None)
    if start is None or getattr(SparkContext, "_gateway", None) is not None or _FILE in (before or ""):
        return
    # Its folder is made for this user alone.
    with TemporaryDirectory(prefix="watersmeet-settings-") as folder:
        file = Path(folder) / "settings"
        file.write_text(properties(settings), "ascii")
        rest = "pyspark-shell" if before is None else before
        os.environ[ARGUMENTS] = f"{_FILE} {shlex.quote(str(file))} --load-spark-defaults {rest}"
        try:
            start()
        finally:
            if before is None:
                del os.environ[ARGUMENTS]
            else:
                os.environ[ARGUMENTS] = before


def properties(settings: Mapping[str, str]) -> str:
    r"""Settings as a file of Java's properties.

    >>> properties({"a": " x=y:z\n"})
    'a=\\u0020x\\u003dy\\u003az\\u000a\n'
    """
    return "".join(f"{name}={''.join(map(_escape_character, value))}\n" for name, value in settings.items())


def _escape_character(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in "-_./,*+$@()[]"):
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
