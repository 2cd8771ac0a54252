"""Small files beside a checkpoint, in whatever file system it is.

Why: a checkpoint may lie in any file system of Hadoop's, for which PySpark has no calls. Uses: Hadoop's ``FileSystem``
through the JVM of a classic session (``_jvm``, ``_jsparkSession``). Seen in: 4.3.0. Through Spark Connect there is no
JVM at hand: then the folder is looked for on this machine, and where it is not there, nothing is read or written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        ...


def folder_of(spark: SparkSession, path: str) -> Folder:
    """The folder at a path, as that session sees it."""
    if not hasattr(spark, "_jsparkSession"):
        return LocalFolder(Path(path.removeprefix("file://").removeprefix("file:")))
    folder = HadoopFolder(spark, path)
    # Hadoop keeps a checksum beside every local file, and refuses one that was mended by hand.
    return LocalFolder(Path(folder.path.toUri().getPath())) if folder.files.getScheme() == "file" else folder


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

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        folder = self.path / name
        return folder.is_dir() and any(not file.name.startswith(".") for file in folder.iterdir())


class HadoopFolder:
    """A folder of any file system of Hadoop's."""

    def __init__(self, spark: Any, path: str) -> None:
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

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        folder = self._path(self.path, name)
        if not self.files.exists(folder):
            return False
        return any(not entry.getPath().getName().startswith(".") for entry in self.files.listStatus(folder))

    def _path(self, *parts: Any) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(*parts)
