"""What can be read of a thread, awaited."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TypeVar

from clew.domain.events import Event
from clew.domain.history import History, StateBuilder, ThreadState
from clew.domain.model_view import ModelView, model_view
from clew.domain.ports import Verdict
from clew.domain.runs.request_building import Request
from clew.domain.views.replay import Step
from clew.service import conversation_export, run_requests, thread_queries, thread_versions
from clew.service.async_operations import Subscription
from clew.service.core import Core
from clew.service.feeds import thread_feed
from clew.service.operations import Operation
from clew.service.thread_queries import At, ThreadSummary

T = TypeVar("T")


class ReadThread(ABC):
    """A thread, as far as it is read."""

    id: str
    _core: Core
    _live: weakref.WeakSet[Subscription]

    async def summary(self) -> ThreadSummary:
        """What a list says of the thread."""
        return await self._do(thread_queries.summary(self._core, self.id))

    async def history(self, *, at: At = None, at_message: int | None = None) -> History:
        """The messages on the path at a version, by default the newest."""
        return await self._do(thread_queries.history(self._core, self.id, at, at_message))

    async def view(self, *, at: At = None, at_message: int | None = None) -> ModelView:
        """The messages that a model would be sent: the history, with every call followed by its result."""
        return model_view(await self.history(at=at, at_message=at_message))

    async def request(self, version: int) -> Request:
        """What the model was asked at a version, rebuilt from the log, byte for byte, with its digest checked.

        ``version`` is that of a model call. Raises UnknownVersionError for any other, and DefinitionMissingError when
        the store does not have the instructions or tool schemas.
        """
        return await self._do(run_requests.request(self._core, self.id, version))

    async def markdown(self, *, at: At = None, at_message: int | None = None) -> str:
        """The thread as Markdown, to read: nothing that was said can break out of its place."""
        return await self._do(conversation_export.markdown(self._core, self.id, at, at_message))

    async def state(self, *, at: At = None, at_message: int | None = None) -> ThreadState:
        """What the thread was at a version: status, labels, checkpoints and messages."""
        return await self._do(thread_queries.state(self._core, self.id, at, at_message))

    async def events(self, *, at: At = None, at_message: int | None = None, after: int = 0) -> AsyncIterator[Event]:
        """The events of the lineage up to a version, ancestors' included, read a page at a time."""
        upto = await self._do(thread_queries.upto(self._core, self.id, at, at_message))
        while page := await self._do(thread_queries.events(self._core, self.id, after, upto)):
            for each in page:
                yield each
            after = page[-1].version

    async def replay(self, *, at: At = None, at_message: int | None = None) -> AsyncIterator[tuple[Event, ThreadState]]:
        """Each event with the state after it."""
        await self._do(thread_queries.readable(self._core, self.id, "replay"))
        states = StateBuilder()
        async for each in self.events(at=at, at_message=at_message):
            yield each, states.add(each)

    async def step(self, *, at: At = None, at_message: int | None = None, last: int = thread_versions.LAST) -> Step:
        """One step of the replay, by default the newest, with the last messages on the path, so many at the most.

        It is read from near the version and not from the start: for going to and fro in a long thread.
        """
        return await self._do(thread_versions.step(self._core, self.id, at, at_message, last))

    async def forks(self) -> list[ThreadSummary]:
        """The threads that were forked from this one."""
        return await self._do(thread_queries.forks(self._core, self.id))

    def subscribe(self, *, after: int = 0) -> Subscription:
        """The events of the lineage from a version on, and then those that come, as they come."""
        return Subscription(self._core, thread_feed(self._core, self.id, after), self._live)

    async def verify(self) -> Verdict:
        """Recompute the hash chain of the thread and of its ancestors."""
        return await self._do(thread_queries.verify(self._core, self.id))

    @abstractmethod
    async def _do(self, operation: Operation[T]) -> T:
        """The outcome of an operation on the thread."""
