"""The run log: what a run reads and writes of its thread, over the core. It implements the port of the same name."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from clew.domain.chats.events import CHANNEL_OF
from clew.domain.decider import Branch, Intent, Rewind, Start, check_readable
from clew.domain.decider_state import CallLocation, Control
from clew.domain.errors import ConflictError, HistoryStoreSharedError, ThreadExistsError, UnknownThreadError
from clew.domain.events import TYPE_NAMES, Event, StateClaimed, to_time
from clew.domain.history import History, HistoryMessage, NeededHistory
from clew.domain.history_stores import claim_stream
from clew.domain.json_values import Json
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import Cost, cost_of
from clew.domain.ports import Blob, Claim, Draft, Fork, Key, Lease, Write
from clew.domain.runs.errors import PricesFailedWarning, RunInProgressError
from clew.domain.runs.events import Caller, ChildThread
from clew.domain.runs.ports import Holding, RunKey
from clew.domain.runs.remote_threads import ServiceState
from clew.domain.streams import ROOT, stream_id
from clew.service import thread_queries
from clew.service.async_effects import ThreadsafeEvent, drive, outcome_of
from clew.service.authorization import check
from clew.service.child_runs import are_linked
from clew.service.core import CommitOptions, Core, cache_new_history, commit, load, with_checkpoint
from clew.service.effects import Operation, Read, read, wait
from clew.service.memory.scope_view import visible_version
from clew.service.remote_threads import check_fork, read_service_state
from clew.service.thread_commands import rewind_intent

T = TypeVar("T")

_MICROSECONDS = 1_000_000


class Beginning(NamedTuple):
    """What the first record of a run begins with: a thread that is not stored yet, or a rewind of one that is.

    ``control`` is what the intent is decided on, ``fork`` the cut of a fork, and ``parent`` the thread whose history
    the run continues: that of the fork's parent, or of the thread itself.
    """

    intent: Start | Branch | Rewind
    control: Control
    fork: Fork | None = None
    parent: str | None = None

    @property
    def at(self) -> int:
        """The version of the parent that the run continues from."""
        return self.intent.to if isinstance(self.intent, Rewind) else self.control.version


class ThreadRuns:
    """The log of the runs of one thread. With a ``beginning``, the first record also begins or rewinds the thread.

    Reads raise NotAuthorizedError if the thread may not be read. Writes are not checked: a run must reach its end.
    """

    def __init__(self, core: Core, thread_id: str, beginning: Beginning | None = None) -> None:
        self._core = core
        self._beginning = beginning
        self._stream = core.stream(thread_id)
        self._claimed = ""
        self.thread_id = thread_id
        self.tenant = core.tenant
        self.actor = core.actor
        self.prices = core.prices

    def is_in(self, core: Core) -> bool:
        """Whether the thread is in the store of this core."""
        return self._core.log is core.log

    def of(self, thread_id: str) -> ThreadRuns:
        """The log of a thread that this one names, which who may use this one may use, too."""
        return ThreadRuns(self._core.with_linked(thread_id), thread_id)

    async def channel(self, thread_id: str) -> ThreadRuns:
        """The log of a thread on which this chat takes turns, which may not exist yet.

        Who may use the chat may use it if its label names the chat, and else as any thread.
        """
        control = await self._read(load(self._core, thread_id))
        if control.version and control.labels.get(CHANNEL_OF) != self.thread_id:
            return ThreadRuns(self._core, thread_id)
        return self.of(thread_id)

    async def inner(self, call: CallLocation, thread_id: str) -> ThreadRuns:
        """The log of a thread on which a call runs an agent. Raises UnknownThreadError if it does not name the call."""
        return await self._linked(thread_id, self.thread_id, (*call, thread_id))

    async def outer(self, caller: Caller) -> ThreadRuns:
        """The log of the thread whose call began a run. Raises UnknownThreadError if it does not name this one."""
        return await self._linked(caller.thread_id, caller.thread_id, (caller.message, caller.index, self.thread_id))

    async def _linked(self, other: str, caller: str, link: tuple[int, int, str]) -> ThreadRuns:
        message, index, child = link
        named = ChildThread(message=message, index=index, thread_id=child)
        if not await self._read(read(lambda: are_linked(self._core, caller, named))):
            raise UnknownThreadError(other)
        return self.of(other)

    async def control(self, *, fresh: bool = False, checkpoint: str | None = None) -> Control:
        """The newest control that this process knows; with ``fresh`` the one in the store."""
        if self._beginning is not None:
            return self._beginning.control
        control = None if fresh else self._core.caches.submitted.get(self._stream)
        if control is None:
            control = await drive(thread_queries.existing(self._core, self.thread_id))
        elif self._core.authorize is not None:
            await drive(check(self._core, "read", self.thread_id))
        check_readable(self.thread_id, control, "a run")
        if checkpoint is None:
            return control
        return await drive(with_checkpoint(self._core, self.thread_id, control, checkpoint))

    @property
    def begins(self) -> bool:
        """Whether the first record begins the thread, other than as a fork."""
        return self._beginning is not None and self._beginning.parent is None

    async def history(self, needed: NeededHistory | None = None) -> History:
        """The messages on the path that are needed, with the context state and the version that they were read at."""
        begin = self._beginning
        if begin is None:
            return await self._read(newest_history(self._core, self.thread_id, needed))
        if begin.parent is None:
            return History(self.thread_id, 0, ())
        return await self._read(thread_queries.needed_history(self._core, begin.parent, begin.at, needed))

    async def history_part(self, last: int | None, before: HistoryMessage | None) -> History:
        """The ``last`` messages on the path, ``before`` a message if it is given."""
        begin, where, at = self._beginning, self.thread_id, None
        if begin is not None:
            if begin.parent is None:
                return History(self.thread_id, 0, ())
            where, at = begin.parent, begin.at
        return await drive(thread_queries.history(self._core, where, at, last=last, before=before))

    async def service_state(self, at: int | None = None) -> ServiceState:
        """The state of the thread at its service, at a version or now."""
        if at is not None:
            return await self._read(read_service_state(self._core, self._stream, self._stream, at))
        return await self._read(service_state_of(self._core, self.thread_id, self._beginning))

    async def events(self, after: int, upto: int | None = None) -> list[Event]:
        """The events of the lineage after a version, up to another."""
        if self._beginning is not None:
            return []
        log = self._core.log
        return await self._read(read(lambda: log.with_blobs(log.lineage(self._stream, after=after, upto=upto))))

    async def event(self, version: int) -> Event:
        """One event of the lineage."""
        begin = self._beginning
        where = self.thread_id if begin is None or begin.parent is None else begin.parent
        return await self._read(thread_queries.whole_event(self._core, where, version))

    async def blob(self, digest: str) -> bytes | None:
        """The bytes of that digest, None if the store does not have them."""
        blob = await self._read(read(partial(self._core.log.blob, bytes.fromhex(digest))))
        return None if blob is None else blob.data

    async def reads_at(self, name: str) -> int | None:
        """The version at which the thread reads a scope or a document store, None for the newest."""
        return await drive(visible_version(self._core, self.thread_id, name))

    async def claim_state(self, provider: str, state: Json) -> None:
        """Record that a provider state belongs to this thread, and to no other."""
        stream = claim_stream(self._core.tenant, provider, state)
        if stream != self._claimed:
            await drive(claim_state(self._core, self.thread_id, provider, state))
            self._claimed = stream

    async def supply(self, blobs: Sequence[Blob]) -> None:
        """Store the blobs that the store does not have."""
        known = self._core.caches.blobs
        new = [blob for blob in blobs if blob.digest not in known]
        if new:
            await self._write(Write((), {}, blobs=new))
            known.update(blob.digest for blob in new)

    async def record(
        self,
        intents: Sequence[Intent],
        *,
        actor: str | None = None,
        on_behalf_of: str | None = None,
        expected_version: int | None = None,
        blobs: Sequence[Blob] = (),
        holding: Holding | None = None,
        drop_draft: str | None = None,
        key: RunKey | None = None,
    ) -> list[Event]:
        """Write the events of the intents, and return them; none if an earlier record had the same key."""
        known_blobs = self._core.caches.blobs
        claims = [] if holding is None else [self._claim(holding)]
        if holding is not None and holding.successor is not None:
            claims.append(self._claim(Holding(holding.successor)))
        options = CommitOptions(
            actor=actor,
            on_behalf_of=on_behalf_of,
            expected_version=expected_version,
            key=None if key is None else self._key(key),
            retry=expected_version is None,
            blobs=tuple([blob for blob in blobs if blob.digest not in known_blobs]) if blobs else (),
            claims=tuple(claims),
            drafts=() if drop_draft is None else (Draft(self._stream, drop_draft, None),),
        )
        begin = self._beginning
        if begin is not None:
            intents = (begin.intent, *intents)
            if isinstance(begin.intent, Rewind):
                options = options._replace(expected_version=begin.control.version, retry=False)
            else:
                options = options._replace(base=begin.control, fork=begin.fork, expected_version=None)
        try:
            committed = await drive(commit(self._core, self.thread_id, tuple(intents), options))
        except ConflictError as error:
            if begin is None or isinstance(error, RunInProgressError) or isinstance(begin.intent, Rewind):
                raise
            raise ThreadExistsError(self.thread_id) from None
        if begin is not None:
            self._beginning = None
            if isinstance(begin.intent, Start) and committed.events:
                cache_new_history(self._core, self.thread_id, committed.events)
        if options.blobs:
            known_blobs.update(blob.digest for blob in options.blobs)
        return list(committed.events)

    async def cost(self, usage: TokenUsage, *, model: str, provider: str | None) -> Cost | None:
        """What a model call costs now. A price list that fails has no price: the answer must be recorded."""
        prices = self.prices
        if prices is None:
            return None
        price = partial(cost_of, prices, usage, model=model, provider=provider, at=to_time(self._core.now()))
        try:
            return price() if getattr(prices, "is_loaded", True) else await asyncio.to_thread(price)
        except Exception as error:  # noqa: BLE001  # it may be the application's own
            warnings.warn(
                f"The price list failed, so the cost is unknown: {error!r}", PricesFailedWarning, stacklevel=2
            )
            return None

    async def repeated(self, key: RunKey) -> int | None:
        """The first version of an earlier record with the key, None if there was none."""
        first = await drive(read(partial(self._core.log.repeated, self._key(key))))
        if first is None:
            return None
        self._beginning = None  # the thread exists
        if self._core.authorize is not None:
            await drive(check(self._core, "read", self.thread_id))
        return first.versions[0]

    async def hold(self, holding: Holding, *, drop_draft: str | None = None) -> None:
        """Renew the lease, or release it."""
        drafts = () if drop_draft is None else (Draft(self._stream, drop_draft, None),)
        await self._write(Write((), {}, claims=(self._renewal(holding),), drafts=drafts))

    async def lease(self) -> Lease | None:
        """The lease, None if it is free or has expired."""
        lease = await self._read(read(partial(self._core.log.lease, self._stream)))
        return None if lease is None or lease.until <= self._core.now() else lease

    async def draft(self) -> Draft | None:
        """The draft of a partial answer."""
        return await self._read(read(partial(self._core.log.draft, self._stream)))

    async def put_draft(self, run_id: str, data: bytes, holding: Holding) -> None:
        """Save the draft of an answer, and renew the lease."""
        draft = Draft(self._stream, run_id, data)
        await self._write(Write((), {}, claims=(self._renewal(holding),), drafts=(draft,)))

    async def changed(self, after: int, seconds: float) -> bool:
        """Wait for a version of the thread later than ``after``, at most that many seconds; returns whether it came."""
        woken = ThreadsafeEvent()
        end = self._core.log.listen(woken.set, self._stream)
        try:
            async with asyncio.timeout(seconds):
                while (await drive(load(self._core, self.thread_id))).version <= after:
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            return False
        finally:
            end()
        return True

    async def _read(self, operation: Operation[T]) -> T:
        """Carry out a read. Raises NotAuthorizedError unless the thread, or the parent of the fork, may be read."""
        begin = self._beginning
        if self._core.authorize is not None and (begin is None or begin.parent is not None):
            parent = None if begin is None else begin.parent
            await drive(check(self._core, "read", parent or self.thread_id))
        return await drive(operation)

    async def _write(self, write: Write) -> None:
        await outcome_of(self._core.log.submit(write).outcome)

    def _key(self, key: RunKey) -> Key:
        return Key(self._stream, key.key, key.content)

    def _claim(self, holding: Holding) -> Claim:
        now = self._core.now()
        until = now + int(holding.seconds * _MICROSECONDS) if holding.seconds else 0
        return Claim(self._stream, holding.holder, now, until)

    def _renewal(self, holding: Holding) -> Claim:
        """A claim that only renews: a run that another process has taken over must not get the lease back."""
        return self._claim(holding)._replace(renews=bool(holding.seconds))


def newest_history(core: Core, thread_id: str, needed: NeededHistory | None = None) -> Operation[History]:
    """The messages on the path at the newest version of a thread that exists; with ``needed`` only those.

    The newest version is that of the log, or of this process's last append, which may not be stored yet. A later write
    checks the version that it expects.
    """
    stream = core.stream(thread_id)
    cached, submitted = core.caches.histories.get(stream), core.caches.submitted.get(stream)
    # A redaction in an ancestor leaves no event in its forks.
    found: History | None = None
    if cached is not None and submitted is not None and submitted.parent_id is None:
        with core.caches.lock(stream):
            if cached.builder.version == submitted.version and cached.builder.has(None, needed):
                found = cached.builder.history(None, needed)
    if found is None:
        found = yield Read(partial(thread_queries.whole_history, core, thread_id, needed=needed))
    elif cached is not None and cached.builder.names_blobs:
        found = yield Read(partial(thread_queries.with_media, core, found))
    return found


def claim_state(core: Core, thread_id: str, provider: str, state: Json) -> Operation[None]:
    """Record that a provider state belongs to a thread. Raises HistoryStoreSharedError if it belongs to another.

    The first event of a stream that is named after the state names the owner: of two concurrent threads, one is first.
    """
    stream = claim_stream(core.tenant, provider, state)
    while True:
        for event in (yield from read(lambda: core.log.lineage(stream, upto=1))):
            if isinstance(event.data, StateClaimed) and event.data.thread_id != thread_id:
                raise HistoryStoreSharedError(provider, thread_id, event.data.thread_id)
            return
        claimed = StateClaimed(provider=provider, thread_id=thread_id)
        type_ = TYPE_NAMES[StateClaimed]
        event = Event(stream, 1, type_, core.event_id(), core.now(), 0, claimed, core.actor)
        try:
            yield from wait(core.log.submit(Write([event], {stream: ROOT})).outcome)
        except ConflictError:
            continue  # another thread was first
        return


def service_state_of(core: Core, thread_id: str, beginning: Beginning | None = None) -> Operation[ServiceState]:
    """The state of a thread at its service: at its head, or at the version that a fork or a rewind begins from."""
    stream = core.stream(thread_id)
    if beginning is None:
        return (yield from read_service_state(core, stream, stream))
    if isinstance(beginning.intent, Rewind):
        return (yield from read_service_state(core, stream, stream, beginning.at))
    if beginning.fork is None:
        return ServiceState()
    return (yield from read_service_state(core, beginning.fork.parent, stream, beginning.fork.cut))


def branch_of(core: Core, thread_id: str, at: thread_queries.At, at_message: int | None = None) -> Operation[Beginning]:
    """The beginning of a fork of a thread at a version. Raises ServiceCannotForkError."""
    control = yield from thread_queries.readable(core, thread_id, "fork")
    version = yield from thread_queries.resolve(core, thread_id, control, at, at_message)
    if control.kind == "remote":
        yield from check_fork(core, thread_id, version)
    owner, base = core.stream(thread_id), control
    if version != control.version:
        owner, base = yield from thread_queries.cut(core, thread_id, version)
    kind = None if control.kind == base.kind else control.kind
    intent = Branch(stream_id(owner), version, base.head.hex(), kind=kind)
    return Beginning(intent, base._replace(run=None), Fork(owner, version), thread_id)  # runs do not cross a cut


def rewind_of(core: Core, thread_id: str, to: thread_queries.At) -> Operation[Beginning]:
    """The beginning of a run that continues from an earlier version of its thread. Raises ServiceCannotForkError."""
    control = yield from thread_queries.readable(core, thread_id, "rewind")
    intent = yield from rewind_intent(core, thread_id, control, to)
    return Beginning(intent, control._replace(run=None), None, thread_id)
