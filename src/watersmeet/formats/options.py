"""The options that Spark's formats take, those that they need, and what a misspelt one may have meant."""

from __future__ import annotations

from difflib import get_close_matches

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
