"""Where the workers may read a source's files themselves, as columns, so that its rows never become rows of the JVM."""

from __future__ import annotations

import re

from watersmeet.catalog import Source
from watersmeet.physical.nodes import PortPlan, ScanPlan
from watersmeet.type_names import TYPES

_NAMES = [name for type_ in TYPES if type_.form == "plain" and type_.arrow != ("null",) for name in type_.names]
_PLAIN = re.compile(rf"{'|'.join(_NAMES)}|DECIMAL\(\d+, ?\d+\)", re.IGNORECASE)
"""Types that a Parquet file and Spark understand alike."""

_OPTIONS = frozenset({"path", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "cleansource",
                      "sourcearchivedir", "pathglobfilter", "recursivefilelookup", "filenameonly"})  # fmt: skip
"""Options that say which files are read, not how."""


def is_columnar(port: PortPlan) -> bool:
    """Whether nothing of a side needs Spark before the exchange: plain columns of local Parquet files, no more."""
    scan = port.input
    if not isinstance(scan, ScanPlan) or scan.filters or scan.parts or not is_plain_parquet(scan.source):
        return False
    if port.computed or port.predicates or port.hashed or port.shard_by or port.position is not None:
        return False
    types = {field.name: field.type for field in scan.source.fields}
    return all(_PLAIN.fullmatch(types[column]) for column in scan.columns)


def is_plain_parquet(source: Source) -> bool:
    """Whether a source is Parquet files of a local path, without options that change how they are read."""
    options = {name.lower(): value for name, value in source.options.items()}
    local = "://" not in options.get("path", "").removeprefix("file://")
    return (source.format or "").lower() == "parquet" and "path" in options and local and options.keys() <= _OPTIONS
