"""Drafts: what had arrived of an answer when it was last written down, and what becomes of it when it stays at that."""

from __future__ import annotations

import json
from typing import Literal

from clew.domain.messages import Content, Message, Reasoning, Text
from clew.domain.open_run import OpenRun
from clew.domain.ports import Draft
from clew.domain.run_events import AnswerInterrupted


def draft_of(call: int, text: str, reasoning: str) -> bytes:
    """What is written down of the answer to a call."""
    draft = {"call": call, "text": text, "reasoning": reasoning}
    return json.dumps(draft, ensure_ascii=False).encode("utf-8", "backslashreplace")


def drafted(data: bytes, call: int, author: str | None) -> Message | None:
    """The message that a draft comes to; None when it is of another call's answer, and where there are no words."""
    draft = json.loads(data)
    return partial(draft["text"], draft["reasoning"], author) if draft["call"] == call else None


def partial(text: str, reasoning: str, author: str | None) -> Message | None:
    """The message of an answer that is not whole; None when there are no words."""
    contents: list[Content] = []
    if reasoning:
        contents.append(Reasoning(text=reasoning))
    if text:
        contents.append(Text(text=text))
    return Message(role="assistant", author=author, contents=tuple(contents)) if text else None


def interrupted(
    run: OpenRun, draft: Draft | None, author: str | None, reason: Literal["stopped", "crashed"]
) -> tuple[Message | AnswerInterrupted, ...]:
    """What is to be recorded of an answer that was arriving when somebody else ends the run, or goes on with it."""
    if not run.call:
        return ()
    part = None
    if draft is not None and draft.run_id == run.id and draft.data is not None:
        part = drafted(draft.data, run.call, author)
    happened = AnswerInterrupted(call=run.call, message=None if part is None else -1, reason=reason)
    return (happened,) if part is None else (part, happened)
