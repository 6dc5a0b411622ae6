"""Drafts: the saved part of an answer that is arriving, and the message that it becomes if the answer is cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from clew.domain.decider_state import OpenRun
from clew.domain.messages import Content, Message, Reasoning, Text
from clew.domain.models.answer_parts import joined
from clew.domain.ports import Draft
from clew.domain.runs.events import AnswerInterrupted

MAX_PARTIAL = 1_000_000
"""Characters of text, and of reasoning, that are kept of a partial answer: they fit into any event."""


def draft_of(call: int, message: Message | None) -> bytes:
    """The draft of the answer to a call, as bytes."""
    dumped = None if message is None else message.model_dump()
    return json.dumps({"call": call, "message": dumped}, ensure_ascii=False).encode()


def drafted(data: bytes, call: int) -> Message | None:
    """The message of a draft; None if it belongs to another call, or has no text."""
    draft = json.loads(data)
    if draft["call"] != call or draft["message"] is None:
        return None
    return Message.model_validate(draft["message"])


def partial(text: Sequence[str], reasoning: Sequence[str], author: str | None) -> Message | None:
    """The message of a partial answer from its pieces; None without text."""
    contents: list[Content] = []
    if thoughts := joined(reasoning)[:MAX_PARTIAL]:
        contents.append(Reasoning(text=thoughts))
    if words := joined(text)[:MAX_PARTIAL]:
        contents.append(Text(text=words))
    return Message(role="assistant", author=author, contents=tuple(contents)) if words else None


def interrupted(
    run: OpenRun, draft: Draft | None, reason: Literal["stopped", "crashed"]
) -> tuple[Message | AnswerInterrupted, ...]:
    """What to record of an answer that was arriving, when another process ends or continues the run."""
    if not run.call:
        return ()
    part = None
    if draft is not None and draft.run_id == run.id and draft.data is not None:
        part = drafted(draft.data, run.call)
    happened = AnswerInterrupted(call=run.call, message=None if part is None else -1, reason=reason)
    return (happened,) if part is None else (part, happened)
