"""Where the workers may read a source's files themselves, as columns, so that its rows never become rows of the JVM."""

from __future__ import annotations

from watersmeet.formats import source_format
from watersmeet.physical.nodes import PortPlan, ScanPlan


def is_columnar(port: PortPlan) -> bool:
    """Whether nothing of a side needs Spark before the exchange: plain columns of local files, no more."""
    scan = port.input
    if not isinstance(scan, ScanPlan) or scan.filters or scan.parts:
        return False
    if port.computed or port.predicates or port.hashed or port.shard_by or port.position is not None:
        return False
    types = {field.name: field.type for field in scan.source.fields}
    return source_format(scan.source).may_be_columns(types[column] for column in scan.columns)
