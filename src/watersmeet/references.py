"""Values that a text names and does not hold, ``${env:NAME}`` and ``${file:PATH}``, and those that nobody may see.

References are resolved when a query is about to start, and not before: what is checked, explained and recorded has the
reference. What they stood for is masked in every refusal from then on, and so are passwords that a text does hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

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
