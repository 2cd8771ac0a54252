"""What PySpark asks the JVM about names is asked once.

Why: the bridge between Python and the JVM asks what a name means whenever it is used. For the name of a package, and
for a short name, which may be in one of several packages, the JVM then looks for a class in all jars, a millisecond
each time; the end of a Java iterator alone does so thirty times. In a profile of small queries that was a sixth of the
time of Spark's own process. So the answers are kept where the bridge looks first. Uses:
attributes of the bridge's view of the JVM. Seen in: 4.0 to 4.3. Missing: names are looked up as before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHORT = ("PythonUtils", "PythonRDD", "PythonSQLUtils", "SerDeUtil", "SimplePythonFunction", "functions")
_WHOLE = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.internal.SQLConf",
    "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
    "org.apache.spark.util.Utils",
)
"""Names that PySpark asks for in one piece."""
_PARTS = (
    "py4j.reflection.TypeUtil",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.sql",
    "java.lang.Thread",
    "scala.jdk.javaapi.CollectionConverters",
)
"""Names that are asked for part by part."""


def cache_jvm_names(spark: SparkSession) -> None:
    """Keep the answers of the JVM of a session to what will be asked again."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return
    with suppress(Exception):  # of the bridge, or of a PySpark without it
        from py4j.java_gateway import JavaClass

        for name in (*_SHORT, *_WHOLE):
            # What is no class yet may become one: PySpark tells the view of further packages when it needs them.
            if isinstance(member := getattr(jvm, name), JavaClass):
                _attributes(jvm)[name] = member
        for name in _PARTS:
            holder = jvm
            for part in name.split("."):
                member: Any = getattr(holder, part)
                _attributes(holder)[part] = member
                holder = member


def _attributes(holder: Any) -> dict[str, Any]:
    """Where the bridge looks before it asks."""
    return cast("dict[str, Any]", vars(holder))
