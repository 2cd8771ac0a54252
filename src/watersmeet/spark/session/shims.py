"""Small commands of our own that stand before another one. They are written once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def shim(command: str, text: str, environ: Mapping[str, str]) -> Path:
    """The command of that name and text, in the folder ``bin`` of a folder of its own."""
    name = f"{command}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", tempfile.gettempdir())) / ".cache")
    path = cache / "watersmeet" / name / "bin" / command
    try:
        _write(path, text)
    except OSError:  # the cache cannot be written, as in some containers
        path = Path(tempfile.mkdtemp(prefix=f"watersmeet-{command}-")) / "bin" / command
        _write(path, text)
    return path


def _write(path: Path, text: str) -> None:
    if path.is_file() and path.read_text("utf-8") == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: another process may start the command at this moment.
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text, "utf-8")
    beside.chmod(0o755)
    beside.replace(path)
