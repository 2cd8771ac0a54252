"""The common part of formats: base classes, malformed rows, formats that only display rows, options of Spark's formats.

The options are those that Spark's formats take, those that they need, and what a misspelt one may have meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar, Literal, get_args

from watersmeet.catalog import Field, Sink, Source
from watersmeet.codec.avro_schema import SCHEMA
from watersmeet.errors import Refusal
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR
from watersmeet.formats.protobuf.descriptor import OPTIONS as PROTOBUF
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

    def can_read_columns(self, columns: Iterable[Field] = ()) -> bool:
        """Whether workers may read these columns themselves, from its files or out of its records."""
        return False


Changes = Literal["log", "snapshot", "upsert"]
"""The form in which a sink takes the changes of a table. ``log``: as rows, each with whether it comes or goes.
``snapshot``: it holds the table as it is after each batch. ``upsert``: rows are put in, replaced and deleted by key.
"""

CHANGES, PATH, TABLE = "changes", "path", "table"
"""The option of CREATE SINK that says so; the one that says in which folder; and the one that names a table."""

_PLAIN = frozenset({CHANGES, "key", "value.format", "key.format", "delivery", "partitions", "replication"})
OWN = _PLAIN | REGISTRY | PROTOBUF
"""The options of a sink that are our own, in small letters. All others are Spark's."""

_DATABASE = ("url", "dsn", "host", "port", "dbname")
"""The options that say which database a table is of."""


@dataclass(frozen=True)
class SinkFormat:
    """The format of a sink. This class is that of any Spark format; subclasses override it.

    - ``names``: its names in USING, in small letters; ``title``: its name in a sentence
    - ``takes``: how it can take the changes of a table; ``default_changes``: the default
    - ``is_display``: it stores nothing and only displays rows and changes
    - ``has_text_keys``: keys are written as text
    - ``is_spark_format``: Spark must know the format
    - ``is_batched``: it is always written batch by batch, never by a streaming sink of Spark's
    - ``has_files``: it is files in a folder, which can be renamed and replaced
    - ``has_every_batch``: it records its last batch, so that every batch is written, even without rows
    """

    sink: Sink

    names: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = ""
    takes: ClassVar[frozenset[Changes]] = frozenset({"log"})
    default_changes: ClassVar[Changes | None] = None
    is_display: ClassVar[bool] = False
    has_text_keys: ClassVar[bool] = False
    is_spark_format: ClassVar[bool] = True
    is_batched: ClassVar[bool] = False
    has_files: ClassVar[bool] = False
    has_every_batch: ClassVar[bool] = False

    @classmethod
    def covers(cls, sink: Sink) -> bool:
        """Whether a sink has this format."""
        return sink.format.lower() in cls.names

    @property
    def changes(self) -> str | None:
        """The form in which changes go there, by the sink or by its format."""
        said = self.sink.lowercase_options.get(CHANGES)
        return self.default_changes if said is None else said.lower()

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return {name: value for name, value in self.sink.options.items() if name.lower() not in OWN}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are replaced, if they are said.

        >>> SinkFormat(Sink("totals", "postgres", {"key": "id, day"})).key
        ('id', 'day')
        """
        return tuple(name.strip() for name in self.sink.lowercase_options.get("key", "").split(",") if name.strip())

    @property
    def key_format(self) -> str:
        """The format of the keys of records."""
        return self.sink.lowercase_options.get("key.format", "string").lower()

    @property
    def value_format(self) -> str:
        """The format of the values of records."""
        return self.sink.lowercase_options.get("value.format", "json").lower()

    @property
    def place(self) -> str:
        """The location of a sink: its path, its database table, or its name."""
        said = self.sink.lowercase_options
        if PATH in said:
            return f"path {said[PATH].rstrip('/')}"
        table = said.get("table") or said.get("dbtable")
        if table is None:
            return self.sink.name.lower()
        return " ".join(("table", table.lower(), *(said.get(name, "") for name in _DATABASE)))

    @property
    def changes_hint(self) -> str:
        """The hint for a table that is written to this sink without a valid `changes` option."""
        held = ", or `changes 'snapshot'` for the current table" if "snapshot" in self.takes else ""
        log = f"add `changes 'log'` to the OPTIONS of {self.sink.name} for a changelog"
        return f"{log}{held}; `USING postgres` upserts."

    def can_take(self, changes: Changes) -> bool:
        """Whether it can take changes so."""
        return changes in self.takes

    def is_encoded(self, changes: Changes | None) -> bool:
        """Whether rows become records with a key and a value."""
        return "value.format" in self.sink.lowercase_options

    def check(self) -> Iterator[Refusal]:
        """The refusals of its options, without Spark."""
        yield from ()

    def check_installed(self) -> Iterator[Refusal]:
        """The packages of Python that writing there needs and that are not installed."""
        yield from ()

    def wrong_option(self, option: str, reason: str, hint: str) -> Refusal:
        """The refusal of an option."""
        return Refusal("WRONG_OPTION", {"format": self.sink.format, "option": option, "reason": reason, "hint": hint})


CONSOLE, NOTHING = Sink("console", "console", {"truncate": "false"}), Sink("nothing", "noop")
"""The sink of a query that names none; and the sink of rows that are not needed."""


class DisplaySink(SinkFormat):
    """A sink that displays rows and stores none."""

    names: ClassVar = ("console", "noop")
    is_display: ClassVar = True


class MemorySink(DisplaySink):
    """A table of the session, which Spark cannot read as a stream and so does not find by name."""

    names: ClassVar = ("memory",)
    is_spark_format: ClassVar = False


_FILES = (
    "path", "maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "maxFileAge", "fileNameOnly", "cleanSource",
    "sourceArchiveDir", "pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter",
    "ignoreCorruptFiles", "ignoreMissingFiles", "maxCachedFiles", "discardCachedInputRatio", "basePath", "retention",
    "compression",
)  # fmt: skip
_TEXTS = (
    "mode", "columnNameOfCorruptRecord", "dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat",
    "enableDateTimeParsingFallback", "multiLine", "encoding", "charset", "lineSep", "samplingRatio", "locale",
    "timeZone", "singleVariantColumn",
)  # fmt: skip
_JSON = (
    "primitivesAsString", "prefersDecimal", "allowComments", "allowUnquotedFieldNames", "allowSingleQuotes",
    "allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars",
    "allowNonNumericNumbers", "dropFieldIfAllNull", "ignoreNullFields", "pretty", "inferTimestamp",
    "writeNonAsciiCharacterAsCodePoint", "explodeEmbeddedArray", "sortKeys", "useUnsafeRow",
)  # fmt: skip
_CSV = (
    "sep", "delimiter", "extension", "quote", "escape", "comment", "header", "inferSchema", "preferDate",
    "enforceSchema", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue", "nanValue", "positiveInf",
    "negativeInf", "maxColumns", "maxCharsPerColumn", "charToEscapeQuoteEscaping", "emptyValue",
    "unescapedQuoteHandling", "codec", "escapeQuotes", "quoteAll", "inputBufferSize", "columnPruning",
)  # fmt: skip
_AVRO = (
    "avroSchema", "avroSchemaUrl", "recordName", "recordNamespace", "ignoreExtension", "mode", "datetimeRebaseMode",
    "positionalFieldMatching", "enableStableIdentifiersForUnionType", "stableIdentifierPrefixForUnionType",
    "recursiveFieldMaxDepth",
)  # fmt: skip
_XML = (
    "rowTag", "excludeAttribute", "inferSchema", "nullValue", "treatEmptyValuesAsNulls", "attributePrefix",
    "valueTag", "ignoreSurroundingSpaces", "rowValidationXSDPath", "ignoreNamespace", "wildcardColName", "rootTag",
    "declaration", "arrayElementName", "validateName", "indent", "prefersDecimal", "preferDate", "useLegacyXMLParser",
)  # fmt: skip
_KAFKA = (
    "assign", "subscribe", "subscribePattern", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "groupIdPrefix", "includeHeaders", "topic", "kafka.bootstrap.servers",
)  # fmt: skip

OPTIONS: dict[str, tuple[str, ...]] = {
    "json": (*_FILES, *_TEXTS, *_JSON),
    "csv": (*_FILES, *_TEXTS, *_CSV),
    "xml": (*_FILES, *_TEXTS, *_XML),
    "text": (*_FILES, "wholetext", "lineSep", "encoding"),
    "parquet": (*_FILES, "mergeSchema", "datetimeRebaseMode", "int96RebaseMode"),
    "orc": (*_FILES, "mergeSchema"),
    "avro": (*_FILES, *_AVRO),
    "kafka": _KAFKA,
    "rate": ("rowsPerSecond", "rampUpTime", "numPartitions"),
    "rate-micro-batch": ("rowsPerBatch", "numPartitions", "startTimestamp", "advanceMillisPerBatch"),
    "socket": ("host", "port", "includeTimestamp"),
    "console": ("numRows", "truncate"),
}
"""The options of each format that is known, as Spark writes them; case does not count."""

NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("json", "csv", "xml", "text", "parquet", "orc", "avro"), (("path",),)),
    "kafka": (("kafka.bootstrap.servers",), ("subscribe", "subscribePattern", "assign", "topic")),
    "socket": (("host",), ("port",)),
}
"""Options without which nothing can be read or written: one of each tuple."""


def unknown_options(format: str, names: tuple[str, ...], own: frozenset[str]) -> dict[str, str | None]:
    """The options that a format does not have, each with the closest known one; None: none is close.

    ``own`` are ours, in small letters. An option with a dot may be Hadoop's or of Kafka's client, unless it is close to
    ours.

    >>> unknown_options("JSON", ("pth", "PATH", "fs.s3a.key", "valu.format", "colour"), frozenset({"value.format"}))
    {'pth': 'path', 'valu.format': 'value.format', 'colour': None}
    """
    if format.lower() not in OPTIONS:
        return {}
    spellings = {name.lower(): name for name in (*OPTIONS[format.lower()], *own)}
    unknown: dict[str, str | None] = {}
    for name in names:
        if name.lower() in spellings:
            continue
        is_dotted = "." in name
        candidates = [option for option in spellings if ("." in option) == is_dotted]
        near = get_close_matches(name.lower(), candidates, n=1, cutoff=0.85 if is_dotted else 0.7)
        if near or not is_dotted:
            unknown[name] = spellings[near[0]] if near else None
    return unknown
