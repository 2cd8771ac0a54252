"""What a feed is: how rows tell what they do to a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from watersmeet.catalog import Source
from watersmeet.errors import Refusal
from watersmeet.formats.source import SourceFormat
from watersmeet.plan.expressions import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY_FORMAT = "key.format"
"""Our own option: how the key of a record is encoded."""
CHANGE = "_change"
"""The column in which the rows of a table tell whether they come (``+``) or go (``-``)."""


@dataclass(frozen=True)
class Feed:
    """How rows tell what they do. In this class: by a column ``_change``, by the option ``deletes``, or they all come.

    Whatever the form, the frame of a table has its declared columns and ``_change``; with a primary key, ``+`` is an
    upsert and ``-`` deletes the row of its key. Changes are delivered in the order in which the source tells them.

    - ``name``: what CHANGES FROM calls it
    - ``wanted``: the column that a DataFrame must have that is given as such a feed
    - ``own``: the options that it brings along, in small letters
    - ``may_be_malformed``: it opens values, which may not have the form that they must have
    """

    source: Source

    name: ClassVar[str] = ""
    wanted: ClassVar[str] = ""
    own: ClassVar[frozenset[str]] = frozenset()
    may_be_malformed: ClassVar[bool] = False

    def check(self) -> Iterator[Refusal]:
        """What is wrong with its options and can be told without Spark."""
        yield from ()

    def accepts(self, names: Iterable[str]) -> bool:
        """Whether a given frame with those columns can be such a feed."""
        return self.wanted in names

    @property
    def options(self) -> Mapping[str, str]:
        """What Spark must be told to read such a feed."""
        return {}

    def schema(self, format_: SourceFormat) -> str | None:
        """What Spark is to read; None: what there is."""
        source = self.source
        has_changes = "deletes" in source.lowercase_options or source.field(CHANGE) is not None
        adds_change = source.kind == "table" and format_.may_have_change and not has_changes
        return f"{ddl(source)}, {CHANGE} STRING" if adds_change else ddl(source)

    def changes(self, frame: DataFrame) -> DataFrame:
        """The declared columns of what was read and, for a table, what each row does."""
        from watersmeet.spark.sources.feeds import row_changes

        return row_changes(self.source, frame)

    def wrong_option(self, option: str, said: str, reason: str, hint: str) -> Refusal:
        """The refusal of an option."""
        parameters = {"format": str(self.source.format), "option": f"{option} '{said}'"}
        return Refusal("WRONG_OPTION", {**parameters, "reason": reason, "hint": hint})


def ddl(source: Source) -> str:
    """The columns of a source as Spark reads a schema."""
    return ", ".join(f"{quote(f.name)} {f.type}{'' if f.nullable else ' NOT NULL'}" for f in source.fields)
