"""The picture of the bench: how time grows with size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure


def growth_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Show how the time of a batch grows with each size, all on one pair of logarithmic axes."""
    figure = Figure(figsize=(6, 4), layout="constrained", facecolor="white")
    axes = figure.subplots(1, 1)
    for size in dict.fromkeys(row["size"] for row in rows):
        chosen = [row for row in rows if row["size"] == size]
        factors = [row["value"] / chosen[0]["value"] for row in chosen]
        label = f"{size} from {chosen[0]['value']} to {chosen[-1]['value']}"
        label += " (20 points per axis)" if size == "torus_dim" else ""
        axes.loglog(factors, [row["grid_ms"] for row in chosen], marker="o", markersize=4, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("size, relative to the smallest")
    axes.set_ylabel("milliseconds per batch")
    axes.set_title("Grid inference as one size grows", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
