"""What a run reads and writes of one thread, over the core: see the port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from clew.domain.control import Control
from clew.domain.decider import Branch, Intent, Start, check_readable
from clew.domain.events import Event
from clew.domain.history import History
from clew.domain.history_stores import claim_stream
from clew.domain.json_values import Json
from clew.domain.ports import Blob, Claim, Draft, Fork, Lease, Write
from clew.domain.runs.ports import Holding
from clew.domain.runs.service_state import ServiceSide
from clew.service import thread_queries
from clew.service.async_operations import drive, settled, waker
from clew.service.authorization import check
from clew.service.core import Core, Terms, commit, load
from clew.service.operations import Operation, read
from clew.service.remote_threads import check_fork, read_side
from clew.service.state_claims import claim_state

_MICROSECONDS = 1_000_000


class Beginning(NamedTuple):
    """How a thread begins that is not there yet: with what intent, on what control, and where it leaves its parent."""

    intent: Start | Branch
    control: Control
    fork: Fork | None = None
    parent: str | None = None


class ThreadRuns:
    """The log of the runs of one thread. With a ``beginning`` the thread is begun by the first thing recorded.

    What is read raises NotAuthorizedError where the thread may not be read. What a run records is not asked about: it
    must come to its end.
    """

    def __init__(self, core: Core, thread_id: str, beginning: Beginning | None = None) -> None:
        self._core = core
        self._beginning = beginning
        self._stream = core.stream(thread_id)
        self._claimed = ""
        self.thread_id = thread_id

    def is_in(self, core: Core) -> bool:
        """Whether the thread is in the store of this core."""
        return self._core.log is core.log

    async def control(self, *, fresh: bool = False) -> Control:
        """The control, as far as this process has seen it unless it is to be fresh."""
        if self._beginning is not None:
            return self._beginning.control
        known = None if fresh else self._core.known.tips.get(self._stream)
        if known is None:
            known = await drive(thread_queries.existing(self._core, self.thread_id))
        else:
            await drive(check(self._core, "read", self.thread_id))
        check_readable(self.thread_id, known, "a run")
        return known

    @property
    def tenant(self) -> str:
        """Whose thread it is."""
        return self._core.tenant

    @property
    def actor(self) -> str | None:
        """Who acts where nobody else is named."""
        return self._core.actor

    @property
    def begins(self) -> bool:
        """Whether the thread is not there yet, and begins, other than as a fork, with what is recorded first."""
        return self._beginning is not None and self._beginning.parent is None

    async def history(self) -> History:
        """The messages on the path, what is kept for components, and the version that they were read at."""
        begin = self._beginning
        await self._check()
        if begin is None:
            return await drive(thread_queries.newest(self._core, self.thread_id))
        if begin.parent is None:
            return History(self.thread_id, 0, ())
        return await drive(thread_queries.history(self._core, begin.parent, begin.control.version))

    async def service_side(self) -> ServiceSide:
        """What the service has been sent of the thread, and what it calls it."""
        await self._check()
        return await drive(read_service_side(self._core, self.thread_id, self._beginning))

    async def events(self, after: int) -> list[Event]:
        """The events of the lineage after a version."""
        if self._beginning is not None:
            return []
        await self._check()
        return await drive(read(lambda: self._core.log.lineage(self._stream, after=after)))

    async def event(self, version: int) -> Event:
        """One event of the lineage."""
        await self._check()
        begin = self._beginning
        where = self.thread_id if begin is None or begin.parent is None else begin.parent
        return await drive(thread_queries.event(self._core, where, version))

    async def blob(self, digest: str) -> bytes | None:
        """The bytes of that digest, None when they are not there."""
        await self._check()
        found = await drive(read(partial(self._core.log.blob, bytes.fromhex(digest))))
        return None if found is None else found.data

    async def claim_state(self, provider: str, state: Json) -> None:
        """Say that what a component keeps is this thread's, and no other's."""
        stream = claim_stream(self._core.tenant, provider, state)
        if stream != self._claimed:
            await drive(claim_state(self._core, self.thread_id, provider, state))
            self._claimed = stream

    async def supply(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that are not there yet."""
        new = [blob for blob in blobs if blob.digest not in self._core.known.blobs]
        if new:
            await self._beside(Write((), {}, blobs=new))
            self._core.known.blobs.update(blob.digest for blob in new)

    async def record(
        self,
        intents: Sequence[Intent],
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        blobs: Sequence[Blob] = (),
        holding: Holding | None = None,
        drop_draft: str | None = None,
    ) -> list[Event]:
        """Write what intents come to, and return it."""
        new = [blob for blob in blobs if blob.digest not in self._core.known.blobs]
        terms = Terms(
            actor=actor,
            expected_version=expected_version,
            again=expected_version is None,
            blobs=tuple(new),
            claims=() if holding is None else (self._claim(holding),),
            drafts=self._dropped(drop_draft),
        )
        begin = self._beginning
        if begin is not None:
            intents = (begin.intent, *intents)
            terms = terms._replace(base=begin.control, fork=begin.fork, expected_version=None)
        done = await drive(commit(self._core, self.thread_id, tuple(intents), terms))
        self._beginning = None
        self._core.known.blobs.update(blob.digest for blob in new)
        return list(done.events)

    async def hold(self, holding: Holding, *, drop_draft: str | None = None) -> None:
        """Keep the lease that one has, or let go of it."""
        await self._beside(Write((), {}, claims=(self._renewal(holding),), drafts=self._dropped(drop_draft)))

    async def lease(self) -> Lease | None:
        """The lease, None when nobody holds one that has not run out."""
        await self._check()
        found = await drive(read(partial(self._core.log.lease, self._stream)))
        return None if found is None or found.until <= self._core.now() else found

    async def draft(self) -> Draft | None:
        """What was written down of an answer that was arriving."""
        await self._check()
        return await drive(read(partial(self._core.log.draft, self._stream)))

    async def put_draft(self, run_id: str, data: bytes, holding: Holding) -> None:
        """Write down what has arrived of an answer, and keep the lease that one has."""
        draft = Draft(self._stream, run_id, data)
        await self._beside(Write((), {}, claims=(self._renewal(holding),), drafts=(draft,)))

    async def changed(self, after: int, seconds: float) -> None:
        """Wait until the thread has moved on from a version, but not longer than so many seconds."""
        woken = asyncio.Event()
        wake = waker(asyncio.get_running_loop(), woken)
        end = self._core.log.listen(wake)
        try:
            async with asyncio.timeout(seconds):
                while (await drive(load(self._core, self.thread_id))).version <= after:
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            pass
        finally:
            end()

    async def _check(self) -> None:
        """Raise NotAuthorizedError unless the thread, or that which it is a fork of, may be read."""
        begin = self._beginning
        if begin is None:
            await drive(check(self._core, "read", self.thread_id))
        elif begin.parent is not None:
            await drive(check(self._core, "read", begin.parent))

    def _claim(self, holding: Holding) -> Claim:
        now = self._core.now()
        until = now + int(holding.seconds * _MICROSECONDS) if holding.seconds else 0
        return Claim(self._stream, holding.holder, now, until)

    def _renewal(self, holding: Holding) -> Claim:
        """A run that was paused, and taken over meanwhile, must not take the lease back between two writes."""
        return self._claim(holding)._replace(renews=bool(holding.seconds))

    def _dropped(self, run_id: str | None) -> tuple[Draft, ...]:
        return () if run_id is None else (Draft(self._stream, run_id, None),)

    async def _beside(self, write: Write) -> None:
        await settled(self._core.log.submit(write).outcome)


def read_service_side(core: Core, thread_id: str, beginning: Beginning | None = None) -> Operation[ServiceSide]:
    """What the service has been sent of a thread, at its head or, before it has begun, at its cut."""
    stream = core.stream(thread_id)
    if beginning is None:
        return (yield from read_side(core, stream, stream))
    if beginning.fork is None:
        return ServiceSide()
    return (yield from read_side(core, beginning.fork.parent, stream, beginning.fork.cut))


def branch_of(core: Core, thread_id: str, at: thread_queries.At, at_message: int | None = None) -> Operation[Beginning]:
    """How a fork of a thread at a version begins. Raises ServiceCannotForkError."""
    control = yield from thread_queries.readable(core, thread_id, "fork")
    version = yield from thread_queries.resolve(core, thread_id, control, at, at_message)
    yield from check_fork(core, thread_id, version, control.kind)
    cut = yield from thread_queries.event(core, thread_id, version)
    stream = core.stream(thread_id)
    base = control
    if version != control.version:
        base = yield from read(lambda: core.log.control(stream, version))
    differs = None if control.kind == base.kind else control.kind
    intent = Branch(cut.thread_id, version, (cut.hash or b"").hex(), kind=differs)
    return Beginning(intent, base._replace(run=None), Fork(cut.stream, version), thread_id)  # runs do not cross a cut
