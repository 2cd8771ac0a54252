"""Paths with a scheme, so that none depends on Hadoop's default file system, and references to values.

A path that a script, a project or a command names without a scheme is on this machine. Spark gets it with the scheme
``file``: else Spark would look for it in ``fs.defaultFS``, while this process, which keeps marks, locks, histories and
copies beside the checkpoint, looks for it here. A path that users hand to Spark themselves, such as the
``checkpointLocation`` of a query they start, keeps the meaning that Spark gives it. So a `Path` is always on this
machine, and what comes from a user's own call to Spark stays a ``str``.

References, ``${env:NAME}`` and ``${file:PATH}``, are resolved when a query is about to start: whatever is checked,
explained or recorded has the reference. Their values, and passwords in a text, are masked in every refusal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

FILE_OPTIONS = frozenset({"path", "basepath", "sourcearchivedir"})
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


MASK = "***"

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_NAME = r"password|passphrase|secret|token|credential|access.?key|sasl\.jaas\.config"
_SECRET = re.compile(_NAME, re.IGNORECASE)
_PUBLIC = frozenset({
    "path", "subscribe", "subscribepattern", "topic", "kafka.bootstrap.servers", "host", "port", "dbname", "table",
    "dbtable", "user",
})  # fmt: skip
"""Options that errors speak of, so that what they stand for is shown."""
_WRITTEN = (
    # password 'x', "password": "x", password = 'x'
    re.compile(rf"""((?:{_NAME})[\w.]*["'`]?\s*[=:]?\s*["'])(?!\$\{{)([^"']+)(?=["'])""", re.IGNORECASE),
    # password=x, as in addresses and in what libraries say of them
    re.compile(rf"((?:{_NAME})[\w.]*\s*=\s*)(?!\$\{{)([^\s&;,'\")]+)", re.IGNORECASE),
    # scheme://user:x@host
    re.compile(r"(://[^\s:/@]*:)([^\s@/]+)(?=@)"),
)
_SHORTEST = 3
"""So short a value would be found everywhere."""

_secrets: set[str] = set()


def is_secret(name: str) -> bool:
    """Whether an option or setting of that name holds what nobody may see.

    >>> is_secret("kafka.ssl.truststore.password"), is_secret("path")
    (True, False)
    """
    return _SECRET.search(name) is not None


def find_missing(text: str) -> Iterator[str]:
    """What the references in a text name that is not there."""
    for kind, name in _REFERENCE.findall(text):
        if kind == "env" and name not in os.environ:
            yield f"the environment variable {name} is not set"
        elif kind == "file":
            try:
                Path(name).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                yield f"the file {name} cannot be read ({type(error).__name__})"


def references_in(text: str) -> list[str]:
    """The references in a text, as they are written.

    >>> references_in("${env:USER}:${file:key} at home")
    ['${env:USER}', '${file:key}']
    """
    return [found[0] for found in _REFERENCE.finditer(text)]


def resolve_references(options: Mapping[str, str]) -> dict[str, str]:
    """Options with what their references stand for; all that errors need not speak of is masked from now on."""
    for name, value in options.items():
        remember_secret(name, value)
    return {name: _resolve(name, value) for name, value in options.items()}


def remember_secret(name: str, value: str) -> None:
    """Mask a value from now on, if an option of that name is secret and the value is no reference to one."""
    if is_secret(name) and not _REFERENCE.search(value) and len(value) >= _SHORTEST:
        _secrets.add(value)


def anchor_references(text: str, root: Path) -> str:
    """A text whose references to files start at a folder.

    >>> anchor_references("${file:keys/db}", Path("/srv")), anchor_references("${env:KEY}", Path("/srv"))
    ('${file:/srv/keys/db}', '${env:KEY}')
    """
    return _REFERENCE.sub(lambda m: f"${{file:{root / m[2]}}}" if m[1] == "file" else m[0], text)


def mask_secrets(text: str) -> str:
    """A text in which no secret is to be read that is known or looks like one.

    >>> mask_secrets("FATAL: password=hunter2 at postgresql://me:hunter2@db/shop")
    'FATAL: password=*** at postgresql://me:***@db/shop'
    """
    for value in sorted(_secrets, key=len, reverse=True):
        text = text.replace(value, MASK)
    for written in _WRITTEN:
        text = written.sub(rf"\1{MASK}", text)
    return text


def mask_line(line: str) -> str:
    """A line of a script with secrets as long as they were, so that what is told of its columns stays true.

    >>> mask_line("OPTIONS (password 'hunter2')"), mask_line("OPTIONS (password '${env:DB}')")
    ("OPTIONS (password '*******')", "OPTIONS (password '${env:DB}')")
    """
    for value in sorted(_secrets, key=len, reverse=True):
        line = line.replace(value, "*" * len(value))
    for written in _WRITTEN:
        line = written.sub(lambda m: m[1] + "*" * len(m[2]), line)
    return line


def _resolve(name: str, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        kind, of = match.groups()
        secret = os.environ[of] if kind == "env" else Path(of).read_text("utf-8").rstrip("\r\n")
        if name.lower() not in _PUBLIC and len(secret) >= _SHORTEST:
            _secrets.add(secret)
        return secret

    return _REFERENCE.sub(value, text)
