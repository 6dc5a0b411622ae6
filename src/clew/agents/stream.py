"""A run that is followed while it goes on: its updates, one after the other, and its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self

from clew.agents.journal import Emit
from clew.agents.response import AgentResponse, AgentUpdate, ThreadT_co
from clew.domain.runs.errors import RunStoppedError

Stop = Callable[[], None]

_AHEAD = 32
"""Updates that a run may be ahead of whoever follows it. To wait for each to be taken costs more than to make it."""


class AgentStream(AsyncIterator[AgentUpdate], Generic[ThreadT_co]):
    """The updates of a run, as they come; ``async for update in agent.run(…, stream=True)``.

    The run waits for whoever follows it when it is some updates ahead. Leaving the loop ends the run: what had come of
    the answer is kept, and that it was stopped is recorded. ``async with`` sees to that being done when the block is
    left.
    """

    def __init__(self, start: Callable[[Emit, Callable[[Stop], None]], Awaitable[AgentResponse[ThreadT_co]]]) -> None:
        self._start = start
        self._updates: asyncio.Queue[AgentUpdate | None] = asyncio.Queue(maxsize=_AHEAD)
        self._task: asyncio.Task[AgentResponse[ThreadT_co]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Stop | None = None
        self._left = False

    def __aiter__(self) -> _Following:
        return _Following(self)

    async def __anext__(self) -> AgentUpdate:
        """The next update. Raises what the run does, and RunStoppedError once it was left."""
        task = self._begun()
        if self._left:
            raise RunStoppedError
        if not task.done() or not self._updates.empty():
            try:
                update = await self._updates.get()
            except asyncio.CancelledError:
                self._leave(task)
                await asyncio.wait([task])
                raise
            if update is not None:
                return update
            self._wake()  # whoever else follows it
            await asyncio.wait([task])
            if self._left:
                raise RunStoppedError
        task.result()
        raise StopAsyncIteration

    async def get_final_response(self) -> AgentResponse[ThreadT_co]:
        """Follow the run to its end, and give what came of it. Raises what the run does."""
        try:
            while True:
                await self.__anext__()
        except StopAsyncIteration:
            return self._begun().result()

    async def aclose(self) -> None:
        """End the run where it is, and wait until that is recorded. Does nothing when it is over."""
        self.leave()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def leave(self) -> None:
        """End the run where it is; what follows on the thread waits until that is recorded."""
        task = self._task
        if task is None or task.done() or self._loop is None or self._loop.is_closed():
            return
        if self._stop is not None:
            self._stop()
        self._leave(task)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._left = True
        task.get_loop().call_soon_threadsafe(task.cancel)  # what is left may be collected by any thread

    def _begun(self) -> asyncio.Task[AgentResponse[ThreadT_co]]:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(_looked_at)
        return self._task

    async def _run(self) -> AgentResponse[ThreadT_co]:
        try:
            return await self._start(self._updates.put, self._stopper)
        finally:
            self._wake()

    def _wake(self) -> None:
        """Wake who waits for an update: there are no more. Nobody waits while there are some to take."""
        with suppress(asyncio.QueueFull):
            self._updates.put_nowait(None)

    def _stopper(self, stop: Stop) -> None:
        self._stop = stop


class _Following(AsyncIterator[AgentUpdate]):
    """What a loop over a stream holds: when the loop is left, nobody holds it any more, and the run is ended."""

    def __init__(self, stream: AgentStream[Any]) -> None:
        self._stream = stream
        self._over = False

    def __aiter__(self) -> _Following:
        return self

    async def __anext__(self) -> AgentUpdate:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._over = True
            raise

    def __del__(self) -> None:
        if not self._over:
            self._stream.leave()


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Whoever left the loop does not look at how the run ended: it is on the log."""
    if not task.cancelled():
        task.exception()
