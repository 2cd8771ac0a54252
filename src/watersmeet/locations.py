"""Paths as Spark must have them: with a scheme, so that none depends on Hadoop's default file system.

A path that a script, a project or a command names without a scheme is on this machine. Spark gets it with the scheme
``file``: else Spark would look for it in ``fs.defaultFS``, while this process, which keeps marks, locks, histories and
copies beside the checkpoint, looks for it here. A path that users hand to Spark themselves, such as the
``checkpointLocation`` of a query they start, keeps the meaning that Spark gives it. So a `Path` is always on this
machine, and what comes from a user's own call to Spark stays a ``str``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FILE_OPTIONS = frozenset({"path", "sourcearchivedir"})
"""The options of sources and sinks that name a folder, in small letters."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def has_scheme(path: str) -> bool:
    """Whether a path says in which file system it is.

    >>> has_scheme("s3a://bucket/orders"), has_scheme("/data/a:b")
    (True, False)
    """
    return _SCHEME.match(path) is not None


def location_of(path: str | Path) -> str:
    """Where Spark finds a path: one without a scheme is of this machine.

    >>> location_of("/data/orders"), location_of("s3a://bucket/orders"), location_of(Path("/data/a:b"))
    ('file:///data/orders', 's3a://bucket/orders', 'file:///data/a:b')
    """
    if isinstance(path, str) and has_scheme(path):
        return path
    return f"file://{Path(path).absolute()}"


def local_path(path: str) -> str:
    """A path of this machine without the scheme that says so.

    >>> local_path("file:///data"), local_path("s3://data")
    ('/data', 's3://data')
    """
    return path.removeprefix("file://").removeprefix("file:")


def locate_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options whose paths have a scheme.

    >>> locate_options({"Path": "/data/orders", "maxFilesPerTrigger": "1"})
    {'Path': 'file:///data/orders', 'maxFilesPerTrigger': '1'}
    """
    return {name: location_of(value) if name.lower() in FILE_OPTIONS else value for name, value in options.items()}
