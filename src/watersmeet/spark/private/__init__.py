"""What is not public API of PySpark, all of it in this room and nowhere else.

Every module says why it needs what it needs, in which versions of Spark that was seen, and what happens where it is
missing: another way that is public, or a refusal that names the version.
"""

from __future__ import annotations

from watersmeet.errors import WatersmeetError, refuse

SEEN = "4.3.0"
"""The version of Spark in which everything here was seen."""


def spark_version() -> str:
    """The version of PySpark. Uses a name that begins with an underscore, as such names do."""
    from pyspark import __version__

    return __version__


def unknown(what: str, consequence: str) -> WatersmeetError:
    """The refusal of a Spark that lacks something without which nothing goes on."""
    return refuse("UNKNOWN_SPARK", version=spark_version(), what=what, consequence=consequence, known=SEEN)
