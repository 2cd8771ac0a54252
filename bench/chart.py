"""The chart of ``make bench``: the cost of a row against the size that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AXES = {
    "shards": "shards (Spark's own join: partitions)",
    "state": "rows kept",
    "batch": "rows per batch",
    "keys": "distinct keys",
}
NAMES = {"watersmeet": "Watersmeet (RocksDB)", "spark-memory": "Spark's own join (in memory)"}
COLOURS = {"watersmeet": "#0b6e99", "spark-memory": "#d9822b"}


def cost(measured: dict[str, Any]) -> float:
    """Microseconds of the clock per row of a batch."""
    return 1_000_000 / measured["rows_per_second"]


def draw(measured: list[dict[str, Any]], path: Path) -> None:
    """Draw one panel per axis, with Watersmeet and Spark's own join."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, panels = plt.subplots(1, len(AXES), figsize=(15, 3.8), layout="constrained", sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        for contender, name in NAMES.items():
            points = [m for m in measured if m["axis"] == axis and m["contender"] == contender]
            if points:
                values = sorted((m["state_rows"] if axis == "state" else m["value"], cost(m)) for m in points)
                panel.plot(*zip(*values, strict=True), marker="o", label=name, color=COLOURS[contender])
        panel.set_xscale("log", base=2 if axis == "shards" else 10)
        panel.set_xlabel(label)
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_yscale("log")
    panels[0].set_ylabel("microseconds per row")
    if panels[0].has_data():
        panels[0].legend(loc="best", fontsize="small")
    figure.suptitle("Interval join, two cores, steady state: what a row costs as things grow")
    figure.savefig(path, dpi=110)
    plt.close(figure)
