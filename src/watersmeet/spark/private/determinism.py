"""Whether Spark computes the same values when it computes a frame again.

Why: functions that users add (UDFs marked by ``asNondeterministic``, SQL functions that call ``rand()``) are known to
Spark alone. Uses: ``deterministic`` and ``containsPattern`` of the analysed plan in the JVM, with Catalyst's pattern of
expressions that read the clock or the session. Seen in: 4.0 to 4.3. Missing (Spark Connect has no JVM here): every
frame counts as deterministic, and only what is known by name is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def is_deterministic(frame: DataFrame) -> bool:
    """Whether a frame has the same values whenever it is computed, as far as Spark knows."""
    try:
        classic = cast("Any", frame)
        plan = classic._jdf.queryExecution().analyzed()
        current = classic.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        # Spark puts the zone of the session into `convert_timezone`, as it does into all that shows a time.
        reads_clock = plan.containsPattern(current) and "convert_timezone(" not in plan.toString()
        return bool(plan.deterministic()) and not reads_clock
    except (AttributeError, TypeError, Py4JError):
        return True
