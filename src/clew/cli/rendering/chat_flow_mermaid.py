"""The flow of a chat as a sequence diagram of Mermaid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from clew.cli.output import plural, shortened
from clew.cli.rendering.chat_flow import step_words, words

if TYPE_CHECKING:
    from clew.domain.chats.flow import ChatFlow, FlowStep

LONGEST = 80

# The syntax of Mermaid and of HTML. What is left can be in a name or a text.
_SYNTAX = re.compile(r"[^\w .,!?'()→…-]|[_\\]", re.ASCII)
_KEYWORD = re.compile(r"\b(end)\b", re.IGNORECASE)


def mermaid(flow: ChatFlow) -> str:
    """The diagram. What is said goes from the speaker to those who speak next."""
    return "\n".join(["sequenceDiagram", *(f"    {line}" for line in _lines(flow))]) + "\n"


def escaped(text: str, longest: int = LONGEST) -> str:
    """The start of a text, in which nothing has a meaning for Mermaid or HTML."""
    short = shortened(words(text), longest)
    return _KEYWORD.sub(lambda match: f"#{ord(match[1][0])};{match[1][1:]}", _SYNTAX.sub(_entity, short)) or "…"


def _entity(match: re.Match[str]) -> str:
    character = match[0]
    return character if not character.isascii() and character.isprintable() else f"#{ord(character)};"


def _lines(flow: ChatFlow) -> Iterator[str]:
    lanes = {each.id: f"p{number}" for number, each in enumerate(flow.lanes)}
    names = {each.id: each.name for each in flow.lanes}
    for each in flow.lanes:
        shape = "actor" if each.type in {None, "human"} else "participant"
        yield f"{shape} {lanes[each.id]} as {escaped(each.name, 24)}"
    if not lanes:
        return
    everybody = f"{lanes[flow.lanes[0].id]},{lanes[flow.lanes[-1].id]}"
    if flow.earlier:
        yield f"Note over {everybody}: {plural(flow.earlier, 'earlier step')}"
    for number, step in enumerate(flow.steps):
        begins, last = _place_in_group(flow.steps, number)
        if step.at_once is not None:
            yield "par at the same time" if begins else "and"
        others = [lanes[each] for each in _next(flow.steps, number)]
        yield from _step(step, None if step.lane is None else lanes[step.lane], others, everybody, names)
        if last:
            yield "end"


def _step(
    step: FlowStep, own: str | None, others: Sequence[str], everybody: str, names: Mapping[str, str]
) -> Iterator[str]:
    text = escaped(step_words(step, names))
    if own is None or step.kind in {"joined", "left"} or step.outcome != "finished":
        yield f"Note over {own or everybody}: {text}"
    else:
        for other in others or [own]:
            yield f"{own}{'-)' if step.handoff else '->>'}{other}: {text}"
    for approval in step.approvals:
        yield f"Note right of {own}: {escaped(f'{approval.call} {approval.verdict}')}"


def _place_in_group(steps: Sequence[FlowStep], number: int) -> tuple[bool, bool]:
    """Whether a turn is the first, and whether it is the last of those at the same time."""
    group = steps[number].at_once
    if group is None:
        return False, False
    before = steps[number - 1].at_once if number else None
    after = steps[number + 1].at_once if number + 1 < len(steps) else None
    return before != group, after != group


def _next(steps: Sequence[FlowStep], number: int) -> list[str]:
    """The lanes of those who have the next turn, or of the user if the run ends: to them it is said."""
    group = steps[number].at_once
    for after in steps[number + 1 :]:
        if after.kind == "ended":
            return [""] if any(each.lane == "" for each in steps) else []
        if after.kind in {"turn", "said"} and after.lane is not None and (group is None or after.at_once != group):
            group = after.at_once
            together = [each.lane or "" for each in steps if group is not None and each.at_once == group]
            return together or [after.lane]
    return []
