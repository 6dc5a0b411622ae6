"""Prints the figures of `--json` files as a page of Markdown tables: `python -m benchmarks.results FILE... > PAGE`.

A theme that is in several files is taken from the last of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import formatted

INTRODUCTION = """\
# Results of the benchmarks

[Benchmarks](benchmarks.md) says what the figures mean, and what the missed budgets would take. This page was made from
files of `python -m benchmarks --json FILE`, with `python -m benchmarks.results FILE...`. A ratio is the median of the
ratios of all rounds, so it can differ from the quotient of the two medians next to it.
"""


def page(reports: Iterable[Mapping[str, Any]]) -> str:
    """The page: a table for each theme, with the machine that measured it."""
    themes: dict[str, tuple[str, list[Mapping[str, Any]]]] = {}
    for report in reports:
        measured: dict[str, tuple[str, list[Mapping[str, Any]]]] = {}
        for figure in report["figures"]:
            measured.setdefault(figure["benchmark"], (report["machine"], []))[1].append(figure)
        themes |= measured
    verdicts = [figure["verdict"] for _, figures in themes.values() for figure in figures]
    lines = [INTRODUCTION, f"{verdicts.count('met')} budgets are met, {verdicts.count('missed')} are missed."]
    for heading, (machine, figures) in themes.items():
        lines += ["", f"## {heading}", "", f"{machine}.", ""]
        lines += ["| figure | measured | baseline | ratio | budget | |", "|---|---|---|---|---|---|"]
        lines += [_row(figure) for figure in figures]
    return "\n".join([*lines, ""])


def _row(figure: Mapping[str, Any]) -> str:
    unit, ratio, verdict = figure["unit"], figure["ratio"], figure["verdict"]
    cells = (
        figure["name"].replace("|", "\\|"),
        formatted(figure["measured"], unit),
        formatted(figure["baseline"], unit),
        "" if ratio is None else formatted(ratio, "") + "x",
        figure["budget"] or "",
        "**missed**" if verdict == "missed" else verdict or "",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]))
