"""Draws the data of the themes ``growth`` and ``chats`` as SVG files. It runs in a separate environment.

The files depend on the data alone: their text is text, and they contain no date.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "clew",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#97a3b3",
    "axes.labelcolor": "#3d4856",
    "xtick.color": "#5b6675",
    "ytick.color": "#5b6675",
    "axes.titlecolor": "#1f2733",
}
STRONG = "#cf3b43"
MUTED = ("#5f7a99", "#7f8f5f", "#8a6f9c", "#a07f4f", "#5f948f", "#9a7080", "#77808c", "#6a86a8")
ALONE = ("append", "newest 50 messages", "page of 100 threads")
LINE_HEIGHT = 0.05
"""Distance of two labels, as a share of the height of the chart."""


def main(data: Path) -> None:
    """Draw all charts of a file, next to it."""
    import matplotlib as mpl

    charts = json.loads(data.read_text(encoding="utf-8"))["charts"]
    names = sorted({name for chart in charts for name in chart["curves"]})
    peers = [name for name in names if not _is_ours(name)]
    with mpl.rc_context(STYLE):
        for chart in charts:
            _draw(chart, {name: MUTED[number % len(MUTED)] for number, name in enumerate(peers)}, data.parent)


def _is_ours(name: str) -> bool:
    return name.startswith("Clew") or name in ALONE


def _draw(chart: dict[str, Any], colours: dict[str, str], folder: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 4.8), layout="constrained")
    axes = figure.add_subplot()
    curves = {name: [(float(x), float(y)) for x, y in points.items()] for name, points in chart["curves"].items()}
    for name, points in curves.items():
        ours = _is_ours(name)
        axes.plot(
            *zip(*points, strict=True),
            color=STRONG if ours else colours[name],
            linewidth=2.6 if ours else 1.5,
            linestyle="--" if "alone" in name else "-",
            marker="o",
            markersize=4.5 if ours else 3.5,
            zorder=3 if ours else 2,
        )
    _scales(axes, curves)
    axes.set_title(chart["title"], loc="left", fontweight="bold")
    axes.set_xlabel(chart["x"])
    axes.set_ylabel(chart["y"])
    axes.grid(which="major", color="#e3e7ec", linewidth=0.8)
    axes.set_axisbelow(True)
    _label_ends(axes, curves, colours)
    figure.savefig(folder / f"{chart['name']}.svg", metadata={"Creator": None, "Date": None, "Title": chart["title"]})


def _scales(axes: Any, curves: dict[str, list[tuple[float, float]]]) -> None:
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        NullFormatter,
        NullLocator,
    )

    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points]
    if min(xs) == 0:
        axes.set_xscale("symlog", linthresh=10, linscale=0.5)
        axes.set_xticks(sorted(set(xs)))
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
    axes.set_yscale("log")
    low, high = min(ys) / 1.6, max(max(ys) * 1.6, min(ys) * 12)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < 300 * low else (1,), numticks=12))
    axes.set_xlim(right=max(xs) * 1.15)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _label_ends(axes: Any, curves: dict[str, list[tuple[float, float]]], colours: dict[str, str]) -> None:
    """Name each curve next to the chart. A dotted line leads from the end of the curve to its name."""
    to_height = axes.transData + axes.transAxes.inverted()
    heights = {name: to_height.transform(points[-1])[1] for name, points in curves.items()}
    names = sorted(heights, key=lambda name: heights[name])
    for name, height in zip(names, spread([heights[name] for name in names], LINE_HEIGHT), strict=True):
        ours = _is_ours(name)
        colour = STRONG if ours else colours[name]
        axes.annotate(
            name,
            xy=curves[name][-1],
            xytext=(1.02, height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontweight="bold" if ours else "normal",
            arrowprops={"arrowstyle": "-", "linestyle": ":", "color": colour, "relpos": (0, 0.5), "shrinkA": 1},
        )


def spread(heights: list[float], distance: float) -> list[float]:
    """Move sorted heights apart so that neighbours have at least that distance, around where they were."""
    groups = [[height] for height in heights]

    def centre(group: list[float]) -> float:
        return sum(group) / len(group)

    def top(group: list[float]) -> float:
        return centre(group) + distance * (len(group) - 1) / 2

    def bottom(group: list[float]) -> float:
        return centre(group) - distance * (len(group) - 1) / 2

    while touching := [n for n, (low, high) in enumerate(pairwise(groups)) if bottom(high) - top(low) < distance]:
        first = touching[0]
        groups[first : first + 2] = [groups[first] + groups[first + 1]]
    return [bottom(group) + distance * number for group in groups for number in range(len(group))]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
