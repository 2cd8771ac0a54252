"""Paths with a scheme, so that none depends on Hadoop's default file system, and references to values.

A path that a script, a project or a command names without a scheme is on this machine. Spark gets it with the scheme
``file``: else Spark would look for it in ``fs.defaultFS``, while this process, which keeps watermarks, locks, histories
and copies next to the checkpoint, looks for it here. A path that users hand to Spark themselves, such as the
``checkpointLocation`` of a query they start, keeps the meaning that Spark gives it. So a `Path` is always on this
machine, and what comes from a user's own call to Spark stays a ``str``.

A `Storage` is a file or a folder of a storage, wherever that is: a `Path`, or in a file system of Hadoop's the
``HadoopStorage`` of ``spark/private/files.py``.

References, ``${env:NAME}`` and ``${file:PATH}``, are resolved when a query is about to start: whatever is checked,
explained or recorded has the reference. Their values, and passwords in a text, are masked in every refusal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from uuid import uuid4

if TYPE_CHECKING:
    from typing_extensions import TypeIs

FILE_OPTIONS = frozenset({"path", "basepath", "sourcearchivedir"})
"""The options of sources and sinks that name a folder, in small letters."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def has_scheme(path: str) -> bool:
    """Whether a path says in which file system it is.

    >>> has_scheme("s3a://bucket/orders"), has_scheme("/data/a:b")
    (True, False)
    """
    return _SCHEME.match(path) is not None


class Storage(Protocol):
    """A file or a folder of a storage: what is needed of `pathlib.Path`, which it is on this machine."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        ...

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        ...

    @property
    def suffix(self) -> str:
        """The suffix of the name, from its last full stop on."""
        ...

    @property
    def parent(self) -> Self:
        """The folder in which it is."""
        ...

    def __truediv__(self, key: str) -> Self: ...
    def __lt__(self, other: Any) -> bool: ...
    def with_name(self, name: str) -> Self:
        """Its sibling of that name."""
        ...

    def absolute(self) -> Self:
        """The same, from the root of its file system on."""
        ...

    def exists(self) -> bool:
        """Whether it is there."""
        ...

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        ...

    def is_file(self) -> bool:
        """Whether it is a file."""
        ...

    def stat(self) -> Any:
        """Its size, and when it was written, as `os.stat_result` calls them."""
        ...

    def iterdir(self) -> Iterable[Self]:
        """List the entries of a folder."""
        ...

    def glob(self, pattern: str) -> Iterable[Self]:
        """List the paths below a folder that match a pattern, part by part."""
        ...

    def rglob(self, pattern: str) -> Iterable[Self]:
        """List the paths below a folder, at any depth, whose name matches a pattern."""
        ...

    def read_bytes(self) -> bytes:
        """Read the content of a file."""
        ...

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The text of a file."""
        ...

    def write_text(self, data: str, encoding: str | None = None) -> int:
        """Write the text of a file."""
        ...

    def write_bytes(self, data: bytes) -> int:
        """Write a file."""
        ...

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a folder."""
        ...

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete a file."""
        ...

    def rename(self, target: Any) -> Any:
        """Give a file or a folder another name."""
        ...


class StorageError(OSError):
    """A storage on another machine that does not answer, or denies access."""


class RemoteStorage(Storage, Protocol):
    """A storage that is not on this machine: what a `Path` does by links, locks and renames, it has methods for."""

    def create(self, text: str) -> bool:
        """Write a file unless it is there; whether it was written. Of two that try at once, one succeeds."""
        ...

    def lets_two_create(self) -> bool:
        """Whether two programs can both create this file, which is new and is deleted again."""
        ...

    def delete_tree(self) -> None:
        """Delete a file, or a folder with all that is in it, if it is there."""
        ...

    def copy_tree(self, target: Any) -> None:
        """Copy a file, or a folder with all that is in it."""
        ...

    def set_time(self, seconds: float) -> None:
        """Set the time at which a file counts as written, where there are such times to set."""
        ...

    def upload(self, source: Path) -> None:
        """Write a file, or a folder with all that is in it, from this machine."""
        ...

    def download(self, target: Path) -> None:
        """Copy a file to this machine."""
        ...


AnyStorage = TypeVar("AnyStorage", bound=Storage)


def is_local(storage: Storage) -> TypeIs[Path]:
    """Whether a storage is on this machine."""
    return isinstance(storage, Path)


def write_whole(file: Storage, text: str) -> None:
    """Write a file of a storage so that it appears whole, and replaces an earlier one in one step."""
    if not is_local(file):
        file.write_text(text, "utf-8")
        return
    hidden = file.with_name(f".{file.name}-{uuid4().hex}")
    hidden.write_text(text, "utf-8")
    hidden.replace(file)


OWNER = "watersmeet.json"
"""The file in a checkpoint with the identity of its queries."""
CURRENT = ".current"
"""The suffix of the file that names the folder of a checkpoint, where folders cannot be renamed."""
GENERATION = "@"
"""The separator between the name of a query and a random suffix, in the name of a folder that was made later."""


def checkpoint_at(storage: AnyStorage, query: str) -> AnyStorage:
    """The checkpoint of a query in a storage.

    Elsewhere than on this machine a new checkpoint cannot take the name of the old one in one step: a file names it.
    """
    folder = storage / "checkpoints"
    if is_local(folder):
        return folder / query
    with suppress(FileNotFoundError):
        return folder / (folder / f"{query}{CURRENT}").read_text("utf-8").strip()
    return folder / query


def find_recorded_sinks(storage: Storage) -> dict[str, tuple[str, ...]]:
    """The checkpoints of a storage by name, each with the sinks that it records: none if it is that of one INSERT."""
    folder = storage / "checkpoints"
    recorded: dict[str, tuple[str, ...]] = {}
    for checkpoint in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = query_of(checkpoint)
        if checkpoint.name.endswith(CURRENT) or not checkpoint.is_dir() or checkpoint_at(storage, name) != checkpoint:
            continue
        with suppress(OSError, ValueError, TypeError, AttributeError):
            recorded[name] = ()
            # What is wrong with the file is told where the query starts.
            recorded[name] = tuple(map(str, json.loads((checkpoint / OWNER).read_text("utf-8")).get("sinks", ())))
    return recorded


def query_of(checkpoint: Storage) -> str:
    """The query of a checkpoint, by the name of its folder.

    >>> query_of(Path("checkpoints/joined@5f0c")), query_of(Path("checkpoints/joined"))
    ('joined', 'joined')
    """
    return checkpoint.name.partition(GENERATION)[0]


def location_of(path: str | Storage) -> str:
    """The path as Spark finds it: one without a scheme is of this machine.

    >>> location_of("/data/orders"), location_of("s3a://bucket/orders"), location_of(Path("/data/a:b"))
    ('file:///data/orders', 's3a://bucket/orders', 'file:///data/a:b')
    """
    if isinstance(path, Path):
        return f"file://{path.absolute()}"
    text = str(path)
    return text if has_scheme(text) else f"file://{Path(text).absolute()}"


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
    """Return whether an option or setting of that name holds a secret.

    >>> is_secret("kafka.ssl.truststore.password"), is_secret("path")
    (True, False)
    """
    return _SECRET.search(name) is not None


def find_missing(text: str) -> Iterator[str]:
    """List the references in a text that cannot be resolved."""
    for kind, name in _REFERENCE.findall(text):
        if kind == "env" and name not in os.environ:
            yield f"the environment variable {name} is not set"
        elif kind == "file":
            try:
                Path(name).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                yield f"the file {name} cannot be read ({type(error).__name__})"


def hint_for_missing(reason: str) -> str:
    """The hint for a reference that cannot be resolved.

    >>> hint_for_missing("the environment variable KAFKA is not set")
    'set it where the query runs: `export KAFKA=value`.'
    """
    variable = re.fullmatch(r"the environment variable (\w+) is not set", reason)
    if variable is None:
        return "write the file, or let the user that runs the query read it."
    return f"set it where the query runs: `export {variable[1]}=value`."


def references_in(text: str) -> list[str]:
    """The references in a text, as they are written.

    >>> references_in("${env:USER}:${file:key} at home")
    ['${env:USER}', '${file:key}']
    """
    return [match[0] for match in _REFERENCE.finditer(text)]


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
