"""The stream of a run: its updates while it runs, and its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from clew.agents.admission import Admission
from clew.agents.journal import Emit
from clew.agents.response import AgentResponse, AgentUpdate, ThreadT_co
from clew.domain.runs.errors import RunStoppedError

ResponseT_co = TypeVar("ResponseT_co", covariant=True)

_BUFFERED = 32
"""How many updates a run may be ahead of its reader. Waiting for the reader after each one would cost too much."""


class UpdateStream(AsyncIterator[AgentUpdate], Generic[ResponseT_co]):
    """The updates of a run, as they arrive, and its response."""

    def __init__(self, execute: Callable[[Emit, Admission], Awaitable[ResponseT_co]]) -> None:
        self._execute = execute
        self._updates: asyncio.Queue[AgentUpdate | None] = asyncio.Queue(maxsize=_BUFFERED)
        self._task: asyncio.Task[ResponseT_co] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admission = Admission()
        self._left = False

    def __aiter__(self) -> AsyncIterator[AgentUpdate]:  # noqa: PYI034  # leaving the loop must stop the run
        return _Loop(self)

    async def __anext__(self) -> AgentUpdate:
        """The next update. Raises the errors of the run, and RunStoppedError after it was left."""
        task = self._started()
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
            self._wake()  # other readers
            await asyncio.wait([task])
            if self._left:
                raise RunStoppedError
        task.result()
        raise StopAsyncIteration

    async def get_final_response(self) -> ResponseT_co:
        """Read to the end of the run, and return its response. Raises the errors of the run."""
        try:
            while True:
                await self.__anext__()
        except StopAsyncIteration:
            return self._started().result()

    async def aclose(self) -> None:
        """Stop the run, and wait until that is recorded. Does nothing when the run is over."""
        self.leave()
        if self._task is not None:
            await asyncio.wait([self._task])

    def __await__(self) -> Generator[Any, None, Self]:
        return self._admitted().__await__()

    async def __aenter__(self) -> Self:
        return await self._admitted()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def leave(self) -> None:
        """Stop the run. The next run on the thread waits until that is recorded."""
        task = self._task
        if task is None or task.done() or self._loop is None or self._loop.is_closed():
            return
        if self._admission.run is not None:
            self._admission.run.stop()
        self._leave(task)

    async def _admitted(self) -> Self:
        task = self._started()
        try:
            await self._admission.wait(task)
        except asyncio.CancelledError:
            if not task.done():
                self.leave()
                await asyncio.wait([task])
            raise
        return self

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._left = True
        task.get_loop().call_soon_threadsafe(task.cancel)  # any thread may collect a stream that was left

    def _started(self) -> asyncio.Task[ResponseT_co]:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.ensure_future(self._carry_out())
            self._task.add_done_callback(retrieve_outcome)
        return self._task

    async def _carry_out(self) -> ResponseT_co:
        try:
            return await self._execute(self._updates.put, self._admission)
        finally:
            self._wake()

    def _wake(self) -> None:
        """Wake the readers that wait: there are no more updates. While the queue is full, no reader waits."""
        with suppress(asyncio.QueueFull):
            self._updates.put_nowait(None)


class AgentStream(UpdateStream[AgentResponse[ThreadT_co]], Generic[ThreadT_co]):
    """The updates of a run, as they arrive: ``async for update in agent.run(…, stream=True)``.

    The run waits for its reader when it is some updates ahead. Leaving the loop stops the run: the part of the answer
    that has arrived is kept, and the stop is recorded. With ``async with``, that is done when the block is left.

    ``await stream``, like ``async with``, waits until the run is on the log, and raises the error of one that is
    refused: before a service has sent the first byte of its reply.
    """


class _Loop(AsyncIterator[AgentUpdate]):
    """The iterator of a loop over a stream. When the loop is left, Python deletes it, and that stops the run."""

    def __init__(self, stream: UpdateStream[Any]) -> None:
        self._stream = stream
        self._over = False

    def __aiter__(self) -> Self:
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


def retrieve_outcome(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging the outcome of a run that nobody waits for: it is on the log."""
    if not task.cancelled():
        task.exception()
