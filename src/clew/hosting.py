"""Threads for applications that others host: found again by the host's own ids, in whatever process a request meets."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, TypeAlias

from clew.aio.threads import LocalThread, RemoteThread
from clew.domain.decider import Start
from clew.domain.errors import InvalidNameError, ThreadExistsError, ThreadStatusError
from clew.domain.models.client import ThreadKind
from clew.domain.names import MAX_LENGTH
from clew.engine import Agent, Engine
from clew.service import thread_commands
from clew.service.async_operations import drive
from clew.service.core import load

HostedThread: TypeAlias = LocalThread | RemoteThread

_DIGESTED = "host-sha256:"
"""What the ids of threads begin with whose host ids cannot be ids of Clew's."""


class ThreadStore:
    """The threads of an application that a host calls, each under the host's own id.

    A request is ``thread = await store.get(id)``, then what there is to do, and ``await store.save(thread)`` in the
    end. Everything is on the log as it happens: without ``save`` nothing is lost, only ``on_suspend`` of the context
    providers is not called. With an ``agent`` the threads are bound to it, and new ones are of the kind that its client
    runs on.
    """

    def __init__(self, engine: Engine, agent: Agent | None = None) -> None:
        self._engine = engine
        self._agent = agent

    async def get(self, host_id: str) -> HostedThread:
        """The thread of a host's id: begun if it is not there, resumed if it is suspended.

        Processes that ask at once get the same thread. Raises InvalidNameError for what is no string,
        ThreadDeletedError, and NotAuthorizedError for one that may not be read.
        """
        thread_id = thread_id_of(host_id)
        there = await drive(load(self._engine._core, thread_id))  # noqa: SLF001  # another face of the same engine
        begun = not there.version and await self._begin(thread_id)
        thread = (await self._engine.open_thread(thread_id)).bound_to(self._agent)
        if begun:
            await thread.notify("on_thread_created", [])
        elif (await thread.summary()).status == "suspended":
            with suppress(ThreadStatusError):  # ended meanwhile: whoever goes on with it is told
                await thread.resume()
        return thread

    async def save(self, thread: HostedThread) -> None:
        """Suspend a thread until it is asked for again; one that is not active stays as it is.

        So does one that a run is under way on, in whatever process: whoever carries it out saves the thread. A run that
        waits for an approval stays open.
        """
        if (await thread.summary()).status == "active" and await thread.runs.lease() is None:
            with suppress(ThreadStatusError):  # somebody else has just done it
                await thread.suspend()

    async def _begin(self, thread_id: str) -> bool:
        """Begin a thread; false if somebody else just has."""
        kind: ThreadKind = "local" if self._agent is None else self._agent.client.thread_kinds[0]
        core = self._engine._core  # noqa: SLF001  # it is another face of the same engine
        try:
            await drive(thread_commands.start(core, thread_id, Start(kind=kind), None))
        except ThreadExistsError:
            return False
        return True


def thread_id_of(host_id: str) -> str:
    """The id of the thread of a host's id: the same, where it can be one, and never that of another host's id.

    One that is empty, longer than 200 characters, or no valid Unicode, and one that begins with ``host-sha256:``, is
    ``host-sha256:`` and the SHA-256 of its UTF-8 bytes, in hex. Raises InvalidNameError for what is no string.
    """
    given: Any = host_id
    if not isinstance(given, str):
        raise InvalidNameError(
            f"host id: {type(given).__name__} is not a string. Give str(…) of it, the same each time."
        )
    encoded = given.encode(errors="surrogatepass")
    taken = (
        given.startswith(_DIGESTED) or not 1 <= len(given) <= MAX_LENGTH or encoded != given.encode(errors="replace")
    )
    return f"{_DIGESTED}{hashlib.sha256(encoded).hexdigest()}" if taken else given
