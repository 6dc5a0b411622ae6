"""An answer that is arriving: what has come of it so far, written down every quarter of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from clew.domain.messages import Message
from clew.domain.models.client import CallDelta, ReasoningDelta, TextDelta, Update
from clew.domain.runs.drafts import draft_of, partial

DRAFT_SECONDS = 0.25
"""After what arrived, how long it takes until it is written down: what a crash can lose at the most."""


class Arriving:
    """The words of an answer so far. Function calls that are not whole are nothing that could be kept."""

    def __init__(self, call: int, author: str | None, put: Callable[[bytes], Awaitable[None]]) -> None:
        self.call = call
        self.begun = False
        self._author = author
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

    def message(self) -> Message | None:
        """What has come, as a message; None when there are no words."""
        return partial(self._text, self._reasoning, self._author)

    def stop(self) -> bool:
        """Write no more; tells whether something is being written still."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None and not self._writing.done():
            return True
        self._look()
        return False

    async def rest(self) -> None:
        """Write no more: what is being written is waited for."""
        self.stop()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._look()

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._timer = asyncio.get_running_loop().call_later(DRAFT_SECONDS, self._write)
            return
        self._look()
        self.drafted = True
        self._writing = asyncio.ensure_future(self._put(draft_of(self.call, self.message())))

    def _look(self) -> None:
        """At how the last writing ended, so that asyncio does not: what could not be written is in memory still."""
        if self._writing is not None and not self._writing.cancelled():
            self._writing.exception()
