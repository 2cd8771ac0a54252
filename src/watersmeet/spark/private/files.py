"""Small files beside a checkpoint, in whatever file system it is.

Why: a checkpoint may lie in any file system of Hadoop's, for which PySpark has no calls. Uses: Hadoop's ``FileSystem``
through the JVM of a classic session (``_jvm``, ``_jsparkSession``). Seen in: 4.3.0. Through Spark Connect there is no
JVM at hand: then the folder is looked for on this machine, and where it is not there, nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder(Protocol):
    """A folder of small files."""

    def read(self, name: str) -> str | None:
        """The text of a file; None: there is none."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        ...

    def names(self, name: str) -> list[str]:
        """What there is in a folder of that name, but for what is hidden."""
        ...


def folder_of(spark: SparkSession, path: str) -> Folder:
    """The folder at a path, as that session sees it."""
    if not hasattr(spark, "_jsparkSession"):
        return LocalFolder(Path(path.removeprefix("file://").removeprefix("file:")))
    folder = HadoopFolder(spark, path)
    # Hadoop keeps a checksum beside every local file, and refuses one that was mended by hand.
    return LocalFolder(Path(folder.path.toUri().getPath())) if folder.files.getScheme() == "file" else folder


def is_there(spark: Any, address: str) -> bool:
    """Whether there is a file at an address, written as a URI."""
    parts = urlsplit(address)
    if parts.scheme in ("", "file") or not hasattr(spark, "_jvm"):
        return Path(unquote(parts.path)).exists()
    file = HadoopFolder(spark, spark._jvm.java.net.URI(address))
    return bool(file.files.exists(file.path))


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> str | None:
        """The text of a file; None: there is none."""
        file = self.path / name
        return file.read_text("utf-8", "replace") if file.is_file() else None

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all, if the folder is there."""
        if self.path.is_dir():
            hidden = self.path / f".{name}"
            hidden.write_text(text, "utf-8")
            hidden.replace(self.path / name)

    def names(self, name: str) -> list[str]:
        """What there is in a folder of that name, but for what is hidden."""
        folder = self.path / name
        return _shown(file.name for file in folder.iterdir()) if folder.is_dir() else []


class HadoopFolder:
    """A folder of any file system of Hadoop's."""

    def __init__(self, spark: Any, path: Any) -> None:
        self.jvm = spark._jvm
        self.path = self._path(path)
        self.files = self.path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def read(self, name: str) -> str | None:
        """The text of a file; None: there is none."""
        file = self._path(self.path, name)
        if not self.files.exists(file):
            return None
        stream = self.files.open(file)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8", "replace")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        hidden, file = self._path(self.path, f".{name}"), self._path(self.path, name)
        stream = self.files.create(hidden, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        # Hadoop does not rename onto a file that is there.
        self.files.delete(file, False)
        self.files.rename(hidden, file)

    def names(self, name: str) -> list[str]:
        """What there is in a folder of that name, but for what is hidden."""
        folder = self._path(self.path, name)
        found = self.files.listStatus(folder) if self.files.exists(folder) else ()
        return _shown(entry.getPath().getName() for entry in found)

    def _path(self, *parts: Any) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(*parts)


def _shown(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]
