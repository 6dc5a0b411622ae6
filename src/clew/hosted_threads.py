"""Threads for an application that a host calls: any process finds a thread by the host's own id."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, TypeAlias

from clew.aio.threads import LocalThread, RemoteThread
from clew.domain.decider import Start
from clew.domain.errors import InvalidNameError, ThreadExistsError, ThreadStatusError
from clew.domain.models.client import ThreadKind
from clew.domain.streams import MAX_LENGTH
from clew.engine import Agent, Engine
from clew.service import thread_commands
from clew.service.async_effects import drive
from clew.service.core import load

HostedThread: TypeAlias = LocalThread | RemoteThread

_DIGESTED = "host-sha256:"
"""The prefix of thread ids that are digests, for host ids that are not valid ids of Clew."""


class ThreadStore:
    """The threads of an application that a host calls, each under the host's own id.

    A request calls ``thread = await store.get(id)``, does its work, and ends with ``await store.save(thread)``. The log
    has everything as it happens: without ``save`` nothing is lost, but the context providers' ``on_suspend`` is not
    called. With an ``agent`` the threads are bound to it, and new ones are of the kind that its client runs on.
    """

    def __init__(self, engine: Engine, agent: Agent | None = None) -> None:
        self._engine = engine
        self._agent = agent

    async def get(self, host_id: str) -> HostedThread:
        """The thread of a host's id: started if it does not exist, resumed if it is suspended.

        Processes that call this at the same time get the same thread. Raises InvalidNameError for an id that is not a
        string, ThreadDeletedError, and NotAuthorizedError for a thread that the actor may not read.
        """
        thread_id = thread_id_of(host_id)
        control = await drive(load(self._engine._core, thread_id))  # noqa: SLF001  # a part of the same face
        started = not control.version and await self._start(thread_id)
        thread = (await self._engine.open_thread(thread_id)).bound_to(self._agent)
        if started:
            await thread.notify("on_thread_created", [])
        elif await thread.status == "suspended":
            with suppress(ThreadStatusError):  # it was ended or resumed meanwhile
                await thread.resume()
        return thread

    async def save(self, thread: HostedThread) -> None:
        """Suspend an active thread until the next ``get``.

        A thread stays as it is while a process executes a run on it: that process saves the thread. A run that waits
        for an approval stays open.
        """
        if await thread.status == "active" and await thread.runs.lease() is None:
            with suppress(ThreadStatusError):  # another process suspended it meanwhile
                await thread.suspend()

    async def _start(self, thread_id: str) -> bool:
        """Start a thread; false if another process was faster."""
        kind: ThreadKind = "local" if self._agent is None else self._agent.client.thread_kinds[0]
        core = self._engine._core  # noqa: SLF001  # a part of the same face
        try:
            await drive(thread_commands.start(core, thread_id, Start(kind=kind), None))
        except ThreadExistsError:
            return False
        return True


def thread_id_of(host_id: str) -> str:
    """The thread id of a host id: the same text where it is a valid id. Different host ids have different thread ids.

    For a host id that is empty, longer than 200 characters, not valid Unicode, or that starts with ``host-sha256:``, it
    is ``host-sha256:`` and the SHA-256 of its UTF-8 bytes, in hex. Raises InvalidNameError for an id that is not a
    string.
    """
    given: Any = host_id
    if not isinstance(given, str):
        raise InvalidNameError(f"host id: {type(given).__name__} is not a string. Give str(…) of it, always the same.")
    encoded = given.encode(errors="surrogatepass")
    is_valid = 1 <= len(given) <= MAX_LENGTH and encoded == given.encode(errors="replace")
    if is_valid and not given.startswith(_DIGESTED):
        return given
    return f"{_DIGESTED}{hashlib.sha256(encoded).hexdigest()}"
