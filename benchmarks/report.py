"""A figure with its baseline and budget, and the printed table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Of = Literal["measured", "ratio"]

HEADER = ("what", "measured", "baseline", "ratio", "budget", "")


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit for a figure or for its ratio to the baseline, at most or at least."""

    limit: float
    at_most: bool
    of: Of

    def met_by(self, figure: Figure) -> bool | None:
        """Whether a figure meets the budget; None if the value was not measured."""
        value = figure.measured if self.of == "measured" else figure.ratio
        if value is None:
            return None
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``baseline`` has the unit of ``measured``; ``ratio`` is the median over paired rounds."""

    name: str
    measured: float | None
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    budget: Budget | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``met`` or ``MISSED``; empty without a budget or without a value."""
        met = None if self.budget is None else self.budget.met_by(self)
        return "" if met is None else ("met" if met else "MISSED")

    def as_json(self, benchmark: str) -> dict[str, object]:
        """The figure as a JSON object."""
        return {
            "benchmark": benchmark,
            "name": self.name,
            "measured": self.measured,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "budget": None if self.budget is None else _budget(self),
            "verdict": self.verdict.lower() or None,
            "note": self.note or None,
        }


def at_most(limit: float) -> Budget:
    """The measured value may be no more."""
    return Budget(limit, at_most=True, of="measured")


def at_least(limit: float) -> Budget:
    """The measured value must be no less."""
    return Budget(limit, at_most=False, of="measured")


def at_most_times(limit: float) -> Budget:
    """The ratio to the baseline may be no more."""
    return Budget(limit, at_most=True, of="ratio")


def at_least_times(limit: float) -> Budget:
    """The ratio to the baseline must be no less."""
    return Budget(limit, at_most=False, of="ratio")


def table(results: Sequence[tuple[str, Sequence[Figure]]]) -> list[str]:
    """All figures as plain text, in columns, under the headings of their benchmarks."""
    rows = [(heading, [_row(figure) for figure in figures]) for heading, figures in results]
    every = [HEADER, *(row for _, group in rows for row in group)]
    widths = [max(len(row[column]) for row in every) for column in range(len(HEADER))]
    lines = [_line(HEADER, widths)]
    for (heading, figures), (_, group) in zip(results, rows, strict=True):
        lines += ["", heading]
        for figure, row in zip(figures, group, strict=True):
            lines.append(_line(row, widths))
            lines += [f"      {line}" for line in figure.note.splitlines()]
    return lines


def tally(figures: Iterable[Figure]) -> str:
    """How many budgets were met, in one line."""
    verdicts = [figure.verdict for figure in figures]
    missed = verdicts.count("MISSED")
    return f"{verdicts.count('met')} budgets met, {missed} missed."


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        formatted(figure.measured, figure.unit),
        formatted(figure.baseline, figure.unit),
        "" if figure.ratio is None else f"{_number(figure.ratio)}x",
        _budget(figure),
        figure.verdict,
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *middle, verdict = row
    cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
    return "  ".join(["  " + name.ljust(widths[0]), *cells, verdict]).rstrip()


def _budget(figure: Figure) -> str:
    budget = figure.budget
    if budget is None:
        return ""
    sign = "≤" if budget.at_most else "≥"
    return (
        f"{sign} {_number(budget.limit)}x" if budget.of == "ratio" else f"{sign} {formatted(budget.limit, figure.unit)}"
    )


def formatted(value: float | None, unit: str) -> str:
    """A value with its unit; empty if it was not measured."""
    return "" if value is None else f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
