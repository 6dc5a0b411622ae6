"""The flow of a chat on a terminal: a column for each participant, and time from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import one_line, plural, shortened

if TYPE_CHECKING:
    from clew.domain.chats.flow import ChatFlow, FlowApproval, FlowLane, FlowStep

COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")

STARTS = 400
"""Characters of a text that are looked at: its start is shown."""

NARROW_FROM = 20
"""Lanes from which a column is one character wide."""

_MARKS = {"finished": "●", "failed": "✗", "open": "○", "abandoned": "◌"}
_VERDICTS: Mapping[str, tuple[str, str]] = {
    "approved": ("✓", "green"),
    "rejected": ("✗", "red"),
    "waiting": ("?", "yellow"),
}


def words(text: str) -> str:
    """The start of a text, on one line and safe for a terminal."""
    return one_line(text[:STARTS])


def step_words(step: FlowStep, names: Mapping[str, str]) -> str:
    """What a step says, without who says it."""
    if step.kind == "ended":
        return f"ended: {words(step.text)}"
    if step.kind == "restored":
        return f"restored from chat {words(step.text)}"
    if step.kind in {"joined", "left"}:
        return {"joined": "joins", "left": "leaves"}[step.kind]
    if step.outcome == "failed":
        return f"failed: {words(step.text)}"
    if step.outcome == "abandoned":
        return "was abandoned"
    if step.outcome == "open":
        return "has the turn"
    shown = words(step.text) or "says nothing"
    return f"{shown} → {words(names.get(step.handoff, step.handoff))}" if step.handoff else shown


def flow_lines(flow: ChatFlow, width: int) -> Iterator[Text]:
    """The lines of the picture."""
    lanes = [each.id for each in flow.lanes]
    names = {each.id: each.name for each in flow.lanes}
    colors = {lane: COLORS[number % len(COLORS)] for number, lane in enumerate(lanes)}
    gap = "" if len(lanes) > NARROW_FROM else "  "
    yield from _names(flow.lanes, colors, gap, width)
    if flow.earlier:
        yield Text(f"⋮  {plural(flow.earlier, 'earlier step')}", style="dim")
    group: int | None = None
    for step, present in zip(flow.steps, flow.present(), strict=True):
        together = [each.lane or "" for each in flow.steps if step.at_once is not None and each.at_once == step.at_once]
        if step.at_once is not None and step.at_once != group:
            yield _crossing(lanes, set(together), present, gap)
        group = step.at_once
        line = Text()
        for lane in lanes:
            mark, style = _mark(step, lane, present, colors)
            line.append(mark, style).append(gap)
        line.append(f" {step.version:>5}  ", "dim")
        if step.lane is not None:
            line.append(f"{shortened(words(names[step.lane]), 24)}: ", f"bold {colors[step.lane]}")
        line.append(step_words(step, names), _style(step))
        for approval in step.approvals:
            line.append_text(_approval(approval))
        line.truncate(width, overflow="ellipsis")
        yield line


def _names(lanes: Sequence[FlowLane], colors: Mapping[str, str], gap: str, width: int) -> Iterator[Text]:
    """A line for each lane, from which it goes down."""
    for number, lane in enumerate(lanes):
        line = Text()
        for above in lanes[:number]:
            line.append("│", colors[above.id]).append(gap)
        line.append("╷", colors[lane.id]).append(f" {words(lane.name)}", f"bold {colors[lane.id]}")
        if lane.type:
            line.append(f"  {words(lane.type)}", "dim")
        line.truncate(width, overflow="ellipsis")
        yield line


def _mark(step: FlowStep, lane: str, present: frozenset[str], colors: Mapping[str, str]) -> tuple[str, str]:
    if step.kind == "ended":
        return "┴" if lane in present else " ", "dim"
    if lane == step.lane:
        return {"joined": "╷", "left": "╵"}.get(step.kind, _MARKS[step.outcome]), f"bold {colors[lane]}"
    return ("│", f"dim {colors[lane]}") if lane in present else (" ", "")


def _crossing(lanes: Sequence[str], together: set[str], present: frozenset[str], gap: str) -> Text:
    """A line that connects the lanes of those who have their turns at the same time."""
    places = [number for number, lane in enumerate(lanes) if lane in together]
    first, last = places[0], places[-1]
    line = Text()
    for number, lane in enumerate(lanes):
        inside = first <= number <= last
        mark = "┬" if lane in together else "─" if inside else "│" if lane in present else " "
        line.append(mark).append("──"[: len(gap)] if first <= number < last else gap)
    line.stylize("dim")
    return line.append("        at the same time", "dim italic")


def _style(step: FlowStep) -> str:
    if step.kind in {"said", "turn"} and step.outcome == "finished":
        return ""
    return "red" if step.outcome == "failed" else "yellow" if step.outcome == "open" else "dim"


def _approval(approval: FlowApproval) -> Text:
    mark, color = _VERDICTS[approval.verdict]
    return Text(f"  {mark} {words(approval.call) or 'a call'} {approval.verdict}", style=color)
