"""Drafts: what had arrived of an answer when it was last written down, and what becomes of it when it stays at that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from clew.domain.messages import Content, Message, Reasoning, Text
from clew.domain.models.answer_parts import joined
from clew.domain.ports import Draft
from clew.domain.runs.events import AnswerInterrupted
from clew.domain.runs.open_run import OpenRun

MOST_KEPT = 1_000_000
"""Characters of words, and of thoughts, that are kept of an answer that is not whole: what any event has room for."""


def draft_of(call: int, message: Message | None) -> bytes:
    """What is written down of the answer to a call, as far as it has come."""
    said = None if message is None else message.model_dump()
    return json.dumps({"call": call, "message": said}, ensure_ascii=False).encode()


def drafted(data: bytes, call: int) -> Message | None:
    """The message that a draft comes to; None when it is of another call's answer, and where there are no words."""
    draft = json.loads(data)
    if draft["call"] != call or draft["message"] is None:
        return None
    return Message.model_validate(draft["message"])


def partial(text: Sequence[str], reasoning: Sequence[str], author: str | None) -> Message | None:
    """The message of an answer that is not whole, from its pieces; None when there are no words."""
    contents: list[Content] = []
    if thoughts := joined(reasoning)[:MOST_KEPT]:
        contents.append(Reasoning(text=thoughts))
    if words := joined(text)[:MOST_KEPT]:
        contents.append(Text(text=words))
    return Message(role="assistant", author=author, contents=tuple(contents)) if words else None


def interrupted(
    run: OpenRun, draft: Draft | None, reason: Literal["stopped", "crashed"]
) -> tuple[Message | AnswerInterrupted, ...]:
    """What is to be recorded of an answer that was arriving when somebody else ends the run, or goes on with it."""
    if not run.call:
        return ()
    part = None
    if draft is not None and draft.run_id == run.id and draft.data is not None:
        part = drafted(draft.data, run.call)
    happened = AnswerInterrupted(call=run.call, message=None if part is None else -1, reason=reason)
    return (happened,) if part is None else (part, happened)
