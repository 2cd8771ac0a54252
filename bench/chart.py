"""The chart of ``make bench``: throughput against what grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AXES = {"shards": "shards", "state": "rows kept", "batch": "rows per batch", "keys": "distinct keys"}
NAMES = {"watersmeet": "Watersmeet (RocksDB)", "spark-memory": "Spark's own join (in memory)"}
COLOURS = {"watersmeet": "#0b6e99", "spark-memory": "#d9822b"}


def draw(measured: list[dict[str, Any]], path: Path) -> None:
    """Draw one panel per axis, Watersmeet beside Spark's own join."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, panels = plt.subplots(1, len(AXES), figsize=(15, 3.8), layout="constrained", sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        for contender, name in NAMES.items():
            points = [m for m in measured if m["axis"] == axis and m["contender"] == contender]
            if points:
                across = [m["state_rows"] if axis == "state" else m["value"] for m in points]
                speeds = [m["rows_per_second"] / 1000 for m in points]
                panel.plot(across, speeds, marker="o", label=name, color=COLOURS[contender])
        panel.set_xscale("log", base=2 if axis == "shards" else 10)
        panel.set_xlabel(label)
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylim(0, 1.05 * max(m["rows_per_second"] for m in measured) / 1000)
    panels[0].set_ylabel("thousand rows per second")
    panels[1].legend(loc="best", fontsize="small")
    figure.suptitle("Interval join, two cores, steady state: throughput as things grow")
    figure.savefig(path, dpi=110)
    plt.close(figure)
