"""Tables of databases as sources: read once, as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from watersmeet.errors import Refusal
from watersmeet.formats.source import SourceFormat

_STATIC = "`USING jdbc OPTIONS (url 'jdbc:postgresql://host/db', dbtable 'name', static 'true')`"
_CHANGES = "to follow its changes, `CHANGES FROM debezium` from a topic"


class Jdbc(SourceFormat):
    """What Spark's JDBC reads, which is no stream; and Postgres, which is a sink by that name and no source."""

    names: ClassVar = ("jdbc", "postgres", "postgresql")

    def check(self) -> Iterator[Refusal]:
        """Refuse what would be read as a stream."""
        format_ = str(self.source.format)
        is_static = self.source.kind == "table" and self.source.said.get("static", "false").lower() == "true"
        if format_.lower() != "jdbc":
            reason, hint = "it is written to, and not read from", f"write {_STATIC} in CREATE TABLE; or {_CHANGES}."
        elif not is_static:
            reason = "Spark reads it once, and not as a stream"
            table = "" if self.source.kind == "table" else "write CREATE TABLE, and "
            hint = f"{table}add `static 'true'` to its OPTIONS, if it never changes; or {_CHANGES}."
        else:
            return
        told = {"format": format_, "option": f"USING {format_}", "reason": reason, "hint": hint}
        yield Refusal("WRONG_OPTION", told)
