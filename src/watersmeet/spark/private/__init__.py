"""All uses of PySpark's private API, in this package and nowhere else.

Every module says why it needs a private part, in which versions of Spark that was seen, and what happens where it is
missing: a public alternative, or a refusal that names the version.
"""

from __future__ import annotations

from watersmeet.errors import WatersmeetError, refuse

OLDEST = (4, 0)
SEEN = "4.0 to 4.3"
"""The versions of Spark in which everything here was seen: those of `make matrix`."""


def spark_version() -> str:
    """The version of PySpark. Uses a name that begins with an underscore, as such names do."""
    from pyspark import __version__

    return __version__


def check_version() -> None:
    """Refuse a Spark that is too old. Anything missing in a later one is refused where it is used."""
    if tuple(int(part) for part in spark_version().split(".")[:2]) < OLDEST:
        raise unknown_spark("`transformWithStateInPandas`", "no join can run")
    if spark_version().startswith("4.0.") and int(protobuf_version().split(".")[0]) > 6:
        raise refuse("PROTOBUF_UNFIT", version=spark_version(), found=protobuf_version())


def protobuf_version() -> str:
    """The version of protobuf; Spark 4.0 needs at most 6, because code generated for 5 does not load in 7.

    0 if it is not installed, which Spark reports when it needs it.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("protobuf")
    except PackageNotFoundError:
        return "0"


def unknown_spark(feature: str, consequence: str, versions: str = SEEN) -> WatersmeetError:
    """The refusal of a Spark that lacks something essential; ``versions``: those that have it."""
    return refuse("UNKNOWN_SPARK", version=spark_version(), what=feature, consequence=consequence, known=versions)
