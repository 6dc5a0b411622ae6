"""The flow of a chat as an SVG picture: a lane for each participant, and what they said in boxes from top to bottom."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from clew.cli.output import plural
from clew.cli.rendering.chat_flow import step_words, words

if TYPE_CHECKING:
    from clew.domain.chats.flow import ChatFlow, FlowLane, FlowStep

LANE, BOX, ROW, MARGIN, HEAD = 190, 170, 24, 24, 52
LINE, CELLS, MOST_LINES = 15, 23, 3
"""Pixels of a line of text, its cells (6.5 pixels each, as wide fonts need), and how many lines a box has."""

COLORS = ("#2563eb", "#9333ea", "#059669", "#d97706", "#dc2626", "#0891b2", "#4f46e5", "#be185d")
GREY, INK, PAPER = "#94a3b8", "#1e293b", "#ffffff"
VERDICTS = {"approved": "#059669", "rejected": "#dc2626", "waiting": "#d97706"}


@dataclass(frozen=True)
class _Row:
    """Steps beside each other, from ``top`` down."""

    steps: tuple[FlowStep, ...]
    top: int
    height: int


def svg(flow: ChatFlow, title: str) -> str:
    """The picture, as a document of its own without scripts, fonts or links."""
    rows = _rows(flow.steps)
    height = (rows[-1].top + rows[-1].height if rows else HEAD + MARGIN) + 2 * MARGIN
    width = max(2 * MARGIN + LANE * max(1, len(flow.lanes)), 320)
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    lines = [
        start,
        f"<title>{_text(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        *_lanes(flow, rows, height - MARGIN),
        *_arrows(flow, rows),
        *(line for row in rows for step in row.steps for line in _step(flow, step, row, width)),
    ]
    if flow.earlier:
        earlier = plural(flow.earlier, "earlier step")
        lines.append(f'<text x="{MARGIN}" y="{MARGIN + HEAD + 12}" fill="{GREY}">⋮ {earlier}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _text(text: str) -> str:
    return html.escape(words(text))


def _wrapped(text: str) -> list[str]:
    """The start of a text in lines that fit into a box; wide characters count as two cells."""
    lines = [""]
    for word in words(text).split(" "):
        rest = word
        if lines[-1] and cell_len(f"{lines[-1]} {rest}") > CELLS:
            lines.append("")
        while cell_len(rest) > CELLS:
            part = set_cell_size(rest, CELLS).rstrip(" ") or rest[0]
            lines[-1:] = [*([lines[-1]] if lines[-1] else []), part, ""]
            rest = rest[len(part) :]
        lines[-1] = f"{lines[-1]} {rest}".strip()
    if len(lines) > MOST_LINES:
        lines[MOST_LINES - 1] = set_cell_size(lines[MOST_LINES - 1], CELLS - 1).rstrip() + "…"
    return lines[:MOST_LINES]


def _rows(steps: Sequence[FlowStep]) -> list[_Row]:
    """The steps by row: turns at the same time are beside each other."""
    grouped: list[list[FlowStep]] = []
    for step in steps:
        if grouped and step.at_once is not None and grouped[-1][0].at_once == step.at_once:
            grouped[-1].append(step)
        else:
            grouped.append([step])
    rows, top = [], MARGIN + HEAD + ROW
    for group in grouped:
        height = max(_height(each) for each in group)
        rows.append(_Row(tuple(group), top, height))
        top += height + ROW
    return rows


def _height(step: FlowStep) -> int:
    if step.kind not in {"said", "turn"}:
        return LINE + 8
    return LINE * (len(_wrapped(step_words(step, {}))) + len(step.approvals)) + 14


def _center(flow: ChatFlow, lane: str) -> int:
    number = next(number for number, each in enumerate(flow.lanes) if each.id == lane)
    return MARGIN + LANE * number + LANE // 2


def _color(flow: ChatFlow, lane: str) -> str:
    number = next(number for number, each in enumerate(flow.lanes) if each.id == lane)
    return COLORS[number % len(COLORS)]


def _lanes(flow: ChatFlow, rows: Sequence[_Row], bottom: int) -> Iterator[str]:
    present = dict(zip((each.version for each in flow.steps), flow.present(), strict=True))
    for lane in flow.lanes:
        x, color = _center(flow, lane.id), _color(flow, lane.id)
        yield from _head(lane, x, color)
        top = MARGIN + HEAD
        for row in rows:
            end = row.top + row.height
            here = lane.id in present[row.steps[0].version]
            dash = "" if here else ' stroke-dasharray="1 6"'
            yield f'<path d="M{x} {top}V{end}" stroke="{color if here else GREY}" stroke-opacity=".45"{dash}/>'
            top = end
        if rows:
            yield f'<path d="M{x} {top}V{bottom}" stroke="{GREY}" stroke-opacity=".45" stroke-dasharray="1 6"/>'


def _head(lane: FlowLane, x: int, color: str) -> Iterator[str]:
    name = html.escape(set_cell_size(words(lane.name), 20).rstrip())
    yield f'<rect x="{x - BOX // 2}" y="{MARGIN}" width="{BOX}" height="{HEAD - 8}" rx="8" fill="{color}"/>'
    y = MARGIN + (20 if lane.type else 27)
    yield f'<text x="{x}" y="{y}" text-anchor="middle" font-weight="600" fill="{PAPER}">{name}</text>'
    if lane.type:
        kind = html.escape(set_cell_size(words(lane.type), 24).rstrip())
        yield f'<text x="{x}" y="{y + 15}" text-anchor="middle" font-size="10" fill="{PAPER}">{kind}</text>'


def _arrows(flow: ChatFlow, rows: Sequence[_Row]) -> Iterator[str]:
    """From what was said to those who speak next."""
    yield (
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>'
    )
    spoken = [row for row in rows if row.steps[0].kind in {"said", "turn"}]
    for above, below in pairwise(spoken):
        for one in above.steps:
            for other in below.steps:
                if one.lane is None or other.lane is None or one.outcome == "abandoned":
                    continue
                x, to = _center(flow, one.lane), _center(flow, other.lane)
                y, end = above.top + _height(one), below.top - 2
                bold = f' stroke="{_color(flow, one.lane)}" stroke-width="2"' if one.handoff else f' stroke="{GREY}"'
                middle = (y + end) // 2
                yield (
                    f'<path d="M{x} {y}C{x} {middle} {to} {middle} {to} {end}" fill="none"{bold} '
                    'marker-end="url(#head)"/>'
                )


def _step(flow: ChatFlow, step: FlowStep, row: _Row, width: int) -> Iterator[str]:
    names = {each.id: each.name for each in flow.lanes}
    if step.lane is None:
        middle = row.top + row.height // 2
        label = _text(step_words(step, names))
        wide = min(width - 2 * MARGIN, 7 * cell_len(words(step_words(step, names))) + 24)
        yield f'<path d="M{MARGIN} {middle}H{width - MARGIN}" stroke="{GREY}" stroke-dasharray="4 4"/>'
        yield (
            f'<rect x="{(width - wide) // 2}" y="{row.top}" width="{wide}" height="{row.height}" '
            f'rx="{row.height // 2}" fill="#f1f5f9" stroke="{GREY}"/>'
        )
        yield f'<text x="{width // 2}" y="{middle + 4}" text-anchor="middle" fill="#475569">{label}</text>'
        return
    x, color = _center(flow, step.lane), _color(flow, step.lane)
    if step.kind in {"joined", "left"}:
        yield (
            f'<rect x="{x - 32}" y="{row.top}" width="64" height="{row.height}" rx="{row.height // 2}" '
            f'fill="{PAPER}" stroke="{color}"/>'
        )
        yield (
            f'<text x="{x}" y="{row.top + row.height // 2 + 4}" text-anchor="middle" fill="{color}">'
            f"{step_words(step, names)}</text>"
        )
        return
    yield from _box(step, names, x, row.top, color)


def _box(step: FlowStep, names: dict[str, str], x: int, top: int, color: str) -> Iterator[str]:
    dash = "" if step.outcome == "finished" else ' stroke-dasharray="5 3"'
    edge = "#dc2626" if step.outcome == "failed" else color
    left, height = x - BOX // 2, _height(step)
    yield f"<g><title>version {step.version}: {_text(step_words(step, names))}</title>"
    yield f'<rect x="{left}" y="{top}" width="{BOX}" height="{height}" rx="8" fill="{PAPER}"/>'
    yield (
        f'<rect x="{left}" y="{top}" width="{BOX}" height="{height}" rx="8" fill="{edge}" fill-opacity=".08" '
        f'stroke="{edge}" stroke-width="1.5"{dash}/>'
    )
    y = top + 19
    for line in _wrapped(step_words(step, {})):
        yield f'<text x="{left + 9}" y="{y}">{html.escape(line)}</text>'
        y += LINE
    for approval in step.approvals:
        shown = html.escape(set_cell_size(words(f"{approval.call} {approval.verdict}"), CELLS).rstrip())
        yield f'<text x="{left + 9}" y="{y}" font-size="11" fill="{VERDICTS[approval.verdict]}">◆ {shown}</text>'
        y += LINE
    yield "</g>"
