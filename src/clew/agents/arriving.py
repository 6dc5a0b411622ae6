"""An answer that is arriving: what has come of it so far, written down every quarter of a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from clew.domain.messages import Content, Message, Reasoning, Text
from clew.domain.model_client import CallDelta, ReasoningDelta, TextDelta, Update

DRAFT_SECONDS = 0.25
"""After what arrived, how long it takes until it is written down: what a crash can lose at the most."""


class Arriving:
    """The words of an answer so far. Function calls that are not whole are nothing that could be kept."""

    def __init__(self, call: int, put: Callable[[bytes], Awaitable[None]]) -> None:
        self.call = call
        self.begun = False
        self._put = put
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self.drafted = False

    def take(self, update: Update) -> None:
        """Take in a piece of the answer."""
        match update:
            case TextDelta(text=text):
                self._text.append(text)
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
            case CallDelta():
                self.begun = True
                return
            case _:
                return
        self.begun = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_SECONDS, self._write)

    def message(self, author: str | None) -> Message | None:
        """What has come, as a message; None when there are no words."""
        return _message("".join(self._text), "".join(self._reasoning), author)

    async def rest(self) -> None:
        """Write no more: what is being written is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.wait([self._writing])
            if not self._writing.cancelled():
                self._writing.exception()  # looked at: what could not be written down is in memory still

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._timer = asyncio.get_running_loop().call_later(DRAFT_SECONDS, self._write)
            return
        self.drafted = True
        self._writing = asyncio.ensure_future(self._put(self._bytes()))

    def _bytes(self) -> bytes:
        draft = {"call": self.call, "text": "".join(self._text), "reasoning": "".join(self._reasoning)}
        return json.dumps(draft, ensure_ascii=False).encode("utf-8", "backslashreplace")


def drafted(data: bytes, call: int, author: str | None) -> Message | None:
    """The message that a draft comes to; None when it is of another call's answer, and where there are no words."""
    draft = json.loads(data)
    if draft["call"] != call:
        return None
    return _message(draft["text"], draft["reasoning"], author)


def _message(text: str, reasoning: str, author: str | None) -> Message | None:
    contents: list[Content] = []
    if reasoning:
        contents.append(Reasoning(text=reasoning))
    if text:
        contents.append(Text(text=text))
    return Message(role="assistant", author=author, contents=tuple(contents)) if text else None
