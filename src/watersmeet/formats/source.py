"""The base class of source formats, and what happens to malformed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from watersmeet.catalog import Source
from watersmeet.codec.avro_schema import SCHEMA
from watersmeet.errors import Refusal
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR
from watersmeet.formats.registry import OPTIONS as REGISTRY
from watersmeet.locations import is_secret, local_path, mask_secrets

MALFORMED = "malformed"
"""Our own option of a source, and behind INTO the words that keep such rows."""
SHOWN = "_malformed"
"""The column of a result that holds them."""

MalformedPolicy = Literal["fail", "drop"]
"""``fail``: the query stops and names the first one. ``drop``: they are counted and left out."""


def policy_for(source: Source, default_policy: MalformedPolicy = "fail") -> MalformedPolicy:
    """Return the policy for malformed rows of a source.

    >>> policy_for(Source("orders", (), options={"malformed": "drop"}))
    'drop'
    """
    return "drop" if source.lowercase_options.get(MALFORMED, default_policy).lower() == "drop" else "fail"


def wrong_policy(source: Source, *, may_be: bool) -> Refusal | None:
    """The refusal of what the option says; ``may_be``: whether the source can have malformed rows at all."""
    said = source.lowercase_options.get(MALFORMED)
    if said is None or (may_be and said.lower() in get_args(MalformedPolicy)):
        return None
    reason = "`malformed` can be 'fail' or 'drop'" if may_be else "its rows cannot be malformed"
    hint = "write `malformed 'drop'`, or leave it out." if may_be else "leave it out: only text and records have it."
    parameters = {"format": str(source.format), "option": f"{MALFORMED} '{said}'", "reason": reason, "hint": hint}
    return Refusal("WRONG_OPTION", parameters)


_RATES = frozenset({
    "ignoremissingfiles", "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger",
    "maxtriggerdelay",
    "maxcachedfiles", "discardcachedinputratio", "latestfirst", "cleansource", "sourcearchivedir", "minpartitions",
    "maxrecordsperpartition", "rowspersecond", "rampuptime", "rowsperbatch", "numpartitions", "fetchsize",
})  # fmt: skip
"""Options about the read rate, the handling of read files, and of missing ones."""
_BEGINNING = frozenset({
    "startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy",
    "startingversion", "user", "driver", MALFORMED, SCHEMA, DESCRIPTOR, *REGISTRY,
})  # fmt: skip
"""Options about credentials, about where a query without a checkpoint begins, about the location of schemas, which
change with their writers, and others that do not affect rows.
"""


@dataclass(frozen=True)
class SourceFormat:
    """The format of a source. This class is that of any Spark format; subclasses override it.

    - ``names``: its names in USING, in small letters; ``title``: its name in a sentence
    - ``may_have_change``: its columns have names, so that one may be ``_change``
    - ``holds_json``: it is text of JSON objects, read by the selected columns
    - ``may_be_malformed``: its rows are text, which may be malformed
    - ``has_partitions``: its rows come from partitions, each with its own watermark
    - ``limits``: options after which a batch need not read all available rows
    """

    source: Source

    names: ClassVar[tuple[str, ...]] = ("kinesis", "rate", "rate-micro-batch", "socket", "text", "xml")
    title: ClassVar[str] = ""
    may_have_change: ClassVar[bool] = False
    holds_json: ClassVar[bool] = False
    may_be_malformed: ClassVar[bool] = False
    has_partitions: ClassVar[bool] = False
    limits: ClassVar[frozenset[str]] = frozenset(
        {"maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "rowsperbatch"}
    )

    def check(self) -> Iterator[Refusal]:
        """The refusals of its options, without Spark."""
        yield from ()

    def check_reachable(self) -> Iterator[Refusal]:
        """The refusals of an unreachable source."""
        yield from ()

    def affects_rows(self, option: str) -> bool:
        """Whether an option, in small letters, decides about its rows; others affect only the rate or the consumer."""
        return option not in _RATES and option not in _BEGINNING and not is_secret(option)

    @property
    def row_options(self) -> dict[str, str]:
        """The options that affect its rows, by name: they are part of a state's identity.

        >>> SourceFormat(Source("orders", (), options={"Path": "file:/in/", "maxFilesPerTrigger": "1"})).row_options
        {'path': '/in'}
        """
        options = {
            name: mask_secrets(value)
            for name, value in self.source.lowercase_options.items()
            if self.affects_rows(name)
        }
        path = {"path": local_path(options["path"]).rstrip("/")} if "path" in options else {}
        return {**options, **path}

    @property
    def is_limited(self) -> bool:
        """Whether an option limits the rows of a batch."""
        return not self.limits.isdisjoint(self.source.lowercase_options)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names under which Spark reports its offsets; empty: unknown."""
        return ()

    def can_read_columns(self, types: Iterable[str] = ()) -> bool:
        """Whether workers may read its files themselves, columns of those types from them."""
        return False
