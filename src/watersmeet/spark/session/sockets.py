"""How Spark and its Python processes reach each other on one machine: through files that only this user can open.

By itself Spark takes TCP. When a receive buffer runs full there, while both sides write, the system drops what arrives
and waits longer and longer before it sends that again: a join of hundreds of millions of results was seen to stand
still for minutes. Unix sockets lose nothing, and have no such waits. They have no secret either: who may open the file
may speak, so they are taken only where the folder is private.
"""

from __future__ import annotations

from pathlib import Path

from watersmeet.spark.session.folders import is_private

FOLDER = "spark.python.unix.domain.socket.dir"
LONGEST = 61
"""Characters of the folder: an address has at most 104 on some systems, of which Spark takes 43 for the name."""


def unix_sockets(folder: Path | None) -> dict[str, str]:
    """The settings that let Spark take Unix sockets in that folder; none where it cannot.

    Spark 4.0 has no such settings and takes TCP.

    >>> unix_sockets(None)
    {}
    """
    if folder is None or len(str(folder)) > LONGEST or not is_private(folder):
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        FOLDER: str(folder),
    }
