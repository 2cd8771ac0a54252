"""The packages that bring formats which are not part of Spark, as Maven calls them, for each version of Spark.

A registry need not have every package of every version: these are known to be there, and to work with one another. All
that is needed is listed, so that nothing is fetched besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watersmeet.plan.nodes import Script

JARS = "spark.jars"
"""What names of settings begin with that say which jars a session has. Only a new one takes them."""

_CLIENT = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)


@dataclass(frozen=True)
class Connector:
    """What brings a format to a version of Spark.

    ``packages``: all that are needed, the first of them the connector itself. ``settings``: what a session must be set
    to besides, from its start on.
    """

    packages: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """The name of the connector without its version and that of Scala, as its file begins.

        >>> Connector(("org.apache.spark:spark-avro_2.13:4.1.1",)).name
        'spark-avro'
        """
        return self.packages[0].split(":")[1].partition("_")[0]


def _kafka(version: str) -> Connector:
    return Connector((f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}", *_CLIENT))


def _avro(version: str) -> Connector:
    return Connector((f"org.apache.spark:spark-avro_2.13:{version}",))


EXTENSIONS = "spark.sql.extensions"
"""The setting that names what is added to Spark's language; several, separated by commas."""
_DELTA = {
    EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_ICEBERG = {EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}


def _delta(version: str) -> Connector:
    return Connector((f"io.delta:delta-spark_2.13:{version}", f"io.delta:delta-storage:{version}"), _DELTA)


def _iceberg(spark: str, version: str) -> Connector:
    return Connector((f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{version}",), _ICEBERG)


CONNECTORS: Mapping[str, Mapping[str, Connector]] = {
    "kafka": {"4.0": _kafka("4.0.3"), "4.1": _kafka("4.1.3"), "4.2": _kafka("4.2.0"), "4.3": _kafka("4.2.0")},
    # There is none of 4.2 and 4.3 in the registry; that of 4.1 was seen to read all types and to write on 4.3.
    "avro": {"4.0": _avro("4.0.2"), "4.1": _avro("4.1.1"), "4.2": _avro("4.1.1"), "4.3": _avro("4.1.1")},
    "delta": {"4.0": _delta("4.0.0"), "4.1": _delta("4.1.0")},
    "iceberg": {"4.0": _iceberg("4.0", "1.10.0"), "4.1": _iceberg("4.1", "1.11.0")},
}
"""By format, and by the version of Spark."""


def connector_of(format_: str, spark: str) -> Connector | None:
    """What brings a format to a version of Spark; None: it is part of Spark, or nothing is known of it.

    >>> connector_of("Kafka", "4.3.0").packages[0]
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'
    """
    return CONNECTORS.get(format_.lower(), {}).get(".".join(spark.split(".")[:2]))


def connectors_of(formats: Iterable[str], spark: str, present: Sequence[str] = ()) -> list[Connector]:
    """What brings those formats to a version of Spark, but for what is ``present``: coordinates, or names of files.

    >>> connectors_of(["json", "kafka"], "4.3.0", ["/jars/spark-sql-kafka-0-10_2.13-4.1.0.jar"])
    []
    """
    connectors = (connector_of(format_, spark) for format_ in dict.fromkeys(name.lower() for name in formats))
    return [
        connector
        for connector in connectors
        if connector is not None and not any(connector.name in text for text in present)
    ]


def formats_in(script: Script) -> list[str]:
    """The formats of all sources and sinks of a script."""
    return [declared.format for declared in (*script.sources, *script.sinks) if declared.format is not None]
