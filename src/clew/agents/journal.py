"""The journal of a run: steps wait until the next external call, and are then written together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias, TypeVar

from clew.agents.response import AgentUpdate
from clew.domain.context.state import CONTEXT_STATE_EVENTS, NO_CONTEXT_STATE, ContextState, next_context_state
from clew.domain.decider import Actor, Advance, Intent, RunStep
from clew.domain.decider_state import OpenRun, holder_of
from clew.domain.errors import ClewError, ClosedError, ConflictError, StoreUnavailableError
from clew.domain.events import MESSAGE_APPENDED, Event
from clew.domain.history import HistoryMessage, NeededByRun, NotSent, Spans, as_message
from clew.domain.messages import Message
from clew.domain.models.client import CallDelta, ReasoningDelta, TextDelta, Update, joined
from clew.domain.ports import Blob
from clew.domain.reducers.history_reduction import stands_alone
from clew.domain.runs.errors import ModelError, RunInProgressError, RunTakenOverError
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    Failure,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunCompleted,
    RunResumed,
    RunStarted,
    ToolStarted,
)
from clew.domain.runs.ports import LEASE_SECONDS, Holding, RunKey, RunLog
from clew.domain.runs.state import RunState, after, draft_of, partial

T = TypeVar("T")

Emit: TypeAlias = Callable[[AgentUpdate], Coroutine[Any, Any, None]]
"""Hands an update to the reader of a stream."""

DRAFT_SECONDS = 0.25
"""Seconds from the first new piece of an answer until the draft is written: the most that a crash can lose."""

_INTENDED = RunStarted | RunResumed | ModelCalled | ToolStarted | ApprovalRequested | RunCompleted
"""Steps that announce an action. If such a step was not written, the action did not happen."""

_ENDS_ANSWER = frozenset({ModelAnswered, ModelFailed, AnswerInterrupted})

MANY_MESSAGES = 500
"""With more messages, another operating system thread makes the request, so that the event loop does not wait."""

FEW_MESSAGES = 64
"""How many unread messages are read first if a reducer needs some that its last reduction left out."""

MORE_MESSAGES = 4
"""The factor by which this number grows each time."""

_RENEWAL_SECONDS = LEASE_SECONDS / 3
"""Seconds between two renewals of the lease while nothing is written."""


async def run_to_end(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Run ``work`` to its end even if the caller is cancelled; returns its result and the cancellation, if any.

    If the work fails and the caller was cancelled, the cancellation is raised.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is not None:
        raise cancelled from task.exception()
    return task.result(), cancelled


def failure(error: BaseException) -> Failure:
    """The record of an error. For an error that is not Clew's own it has only the class: the text may be secret."""
    kind = type(error).__name__
    if not isinstance(error, ClewError):
        return Failure(kind=kind)
    message = joined([str(error)])  # without characters that cannot be stored, which services may send
    if not isinstance(error, ModelError):
        return Failure(kind=kind, message=message)
    code = None if error.code is None else joined([error.code])
    return Failure(kind=kind, message=message, status=error.status, code=code)


class RunRepeatedError(Exception):
    """Another call began this run first: both have the same idempotency key. Callers do not see this error."""


class PartialAnswer:
    """The text of an answer while it arrives. Every ``DRAFT_SECONDS`` it is saved as the run's draft.

    Incomplete function calls are dropped.
    """

    def __init__(
        self, call: int, author: str | None, save: Callable[[bytes], Awaitable[None]], *, kept: bool = True
    ) -> None:
        self._kept = kept
        self.call = call
        self.begun = False
        self.drafted = False
        self._author = author
        self._save = save
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    def add(self, update: Update) -> None:
        """Add a piece of the answer."""
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
        if self._timer is None and self._kept:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_SECONDS, self._save_draft)

    def message(self) -> Message | None:
        """The answer so far as a message; None without text, or if no part of it may be kept."""
        return partial(self._text, self._reasoning, self._author) if self._kept else None

    def stop(self) -> bool:
        """Save no further drafts; returns whether one is still being saved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._saving is None:
            return False
        if not self._saving.done():
            return True
        self._retrieve_outcome()
        return False

    async def drain(self) -> None:
        """Save no further drafts, and wait for the one that is being saved."""
        self.stop()
        if self._saving is not None:
            await asyncio.wait([self._saving])
            self._retrieve_outcome()

    async def save_last(self) -> None:
        """Save what has arrived, as the last draft."""
        await self.drain()
        if self.begun and self._kept:
            await self._save(draft_of(self.call, self.message()))

    def _save_draft(self) -> None:
        self._timer = None
        if self._saving is not None:
            if not self._saving.done():
                self._timer = asyncio.get_running_loop().call_later(DRAFT_SECONDS, self._save_draft)
                return
            self._retrieve_outcome()
        self.drafted = True
        self._saving = asyncio.ensure_future(self._save(draft_of(self.call, self.message())))

    def _retrieve_outcome(self) -> None:
        """Keep asyncio from logging a failed save: the text is still in memory."""
        if self._saving is not None and not self._saving.cancelled():
            self._saving.exception()


class Successor(NamedTuple):
    """A run that another agent begins when this one ends: its journal, its first event, and the blobs of its agent."""

    journal: Journal
    started: RunStarted
    blobs: Sequence[Blob]

    @property
    def begins(self) -> Advance:
        """The intent with which it begins."""
        return Advance(self.journal.state.run_id, 1, (self.started,))


class Journal:
    """Records one attempt of a run: it has the waiting steps, and the state after the written ones.

    ``asking`` is who asked for this attempt. ``version`` is the newest version of the thread that the run has seen.
    ``blobs`` are those that waiting steps refer to. ``emit`` receives the updates of a streamed run; None without a
    reader.
    """

    def __init__(
        self,
        log: RunLog,
        state: RunState,
        asking: Actor,
        attempt: int,
        emit: Emit | None,
        needed: NeededByRun | None,
    ) -> None:
        self.log = log
        self.state = state
        self.attempt = attempt
        self.emit = emit
        self.holder = holder_of(OpenRun(state.run_id, state.began, attempt))
        """The name under which this attempt holds the lease."""
        self.steps: list[RunStep] = []
        self.blobs: list[Blob] = []
        self.version = 0
        self.answer: PartialAnswer | None = None
        """The answer that is arriving; None between answers."""
        self.key: RunKey | None = None
        """The idempotency key of the run, for its first write."""
        self.keeps_drafts = True
        """Whether the part of an answer that has arrived is saved, and kept if the answer is interrupted."""
        self.on_begun: Callable[[], None] | None = None
        """Is called when the run is on the log."""
        self.on_lost: Callable[[], None] | None = None
        """Is called when another process has ended or continued the run, while this one writes nothing."""
        self._asking = asking
        self.emitted = 0
        """How many of the messages that the run added were emitted."""
        self._over = False
        self._drop_draft = False
        self._needed = needed
        self._history: list[HistoryMessage] | None = None
        self.unread: Spans = ()
        """The spans of versions whose messages are not in the history, because the run does not need them."""
        self._context_state = NO_CONTEXT_STATE
        self._context_events: list[Event] = []
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether this attempt is on the log, and has neither ended nor paused for approvals."""
        return bool(self.state.began) and self.state.attempt == self.attempt and not self._over

    @property
    def context_state(self) -> ContextState:
        """What components recorded, as of ``version``."""
        for event in self._context_events:
            self._context_state = next_context_state(self._context_state, event)
        self._context_events.clear()
        return self._context_state

    def add(self, *steps: RunStep) -> int:
        """Queue steps to be written; returns the index of the first one among the waiting steps."""
        index = len(self.steps)
        self.steps += steps
        return index

    def reference(self, index: int) -> int:
        """How the next step refers to the waiting step at ``index``: a number below 0 that counts back from it."""
        return index - len(self.steps)

    async def history(self, *, after: int | None = None) -> list[HistoryMessage]:
        """The messages on the path, with those that wait to be written, and without ``unread`` ones.

        The whole history is read if the run needs it, or if a message ``after`` a version would be unread.
        """
        if self._history is None:
            recorded = await self.log.history(self._needed)
            self.version, self._history, self.unread = recorded.version, list(recorded.messages), recorded.unread
            self._context_state, self._context_events = recorded.context, []
        messages = [*self._history]
        version = self.version
        for step in self.steps:
            if isinstance(step, Message):
                version += 1
                messages.append(HistoryMessage(version, step.role, step, "", 0))
        if self.unread and self._needed is not None:
            paired, began = self._needed.paired(self.context_state), self.state.began or self.version
            misses = after is not None and after < self.unread[-1][1]
            if misses or not stands_alone(messages, self.unread, paired, began):
                return await self.whole_history()
        return messages

    async def read_decisions(self) -> int:
        """Read what others have decided about calls that wait; returns the newest version of the thread."""
        asked = {call.request for call in self.state.calls if call.status == "asked"}
        events = await self.log.events(min(asked) - 1)
        for event in events:
            if isinstance(event.data, ApprovalGiven) and event.data.request in asked:
                self.state = after(self.state, event)
        return events[-1].version

    async def inputs(self) -> list[Message]:
        """The input messages of a run that has no answer yet."""
        began = self.state.began
        return [each.message for each in await self.history(after=began) if each.version > began and each.message]

    async def leave_to_service(self) -> None:
        """Read only what the service that holds the thread does not have."""
        self._needed = NotSent((await self.log.service_state()).call.sent)

    async def whole_history(self) -> list[HistoryMessage]:
        """All messages on the path, with those that wait to be written. The rest of the run has them all, too."""
        self._needed = None
        if self.unread:
            self._history = None
        return await self.history()

    async def earlier_history(self) -> list[HistoryMessage]:
        """The same as ``history``, with several times as many unread messages as the last time."""
        if self._needed is not None:
            self._needed = self._needed._replace(more=max(FEW_MESSAGES, MORE_MESSAGES * self._needed.more))
            self._history = None
        return await self.history()

    def discard_history(self) -> None:
        """Read the history again at its next use, because another client has appended."""
        self._history = None

    def begin_answer(self, author: str | None) -> PartialAnswer:
        """Begin to collect a new answer by ``author``."""
        self.answer = PartialAnswer(
            self.state.called,
            author,
            self._put_draft,
            kept=self.keeps_drafts,
        )
        return self.answer

    async def emit_added(self) -> None:
        """Emit the messages that were recorded since the last time."""
        if self.emit is None:
            return
        emitted, self.emitted = self.emitted, len(self.state.added)
        for message in self.state.added[emitted:]:
            await self.emit(AgentUpdate("answer" if message.role == "assistant" else "result", message=message))

    async def write(
        self,
        *,
        before: Sequence[Intent] = (),
        then: Sequence[Intent] = (),
        expected_version: int | None = None,
        blobs: Sequence[Blob] = (),
        final: bool = False,
        successor: Successor | None = None,
    ) -> None:
        """Write the waiting steps, even if the caller is cancelled meanwhile; ``final`` releases the lease.

        The intents ``before`` and ``then`` are written in the same commit, and so is the start of the ``successor``,
        which gets the lease.

        Steps that could not be written are dropped. If the store was unavailable, those that report what happened
        are kept for the end of the run. Raises the errors of ``RunLog.record``, and RunTakenOverError
        if another process has taken over the run.
        """
        steps, self.steps = tuple(self.steps), []
        blob_count = len(self.blobs)
        if final:
            self.stop_renewing()  # a later renewal would hold the lease of a run that is over
        interrupted = await self._end_answer(steps) if self.answer is not None else None
        run_id = self.state.run_id
        if successor is not None:
            then, blobs = (*then, successor.begins), (*blobs, *successor.blobs)
        intents = (*before, Advance(run_id, self.attempt, steps, self.state.by), *then) if steps else before
        try:
            written, cancelled = await run_to_end(
                self.log.record(
                    intents,
                    actor=self._asking.name,
                    on_behalf_of=self._asking.on_behalf_of,
                    expected_version=expected_version,
                    blobs=(*blobs, *self.blobs),
                    holding=Holding(self.holder, 0 if final else LEASE_SECONDS, successor and successor.journal.holder),
                    drop_draft=run_id if self._drop_draft else None,
                    key=None if self.state.began else self.key,
                )
            )
        except RunInProgressError:
            if self.under_way:
                raise RunTakenOverError(self.log.thread_id, run_id) from None
            raise
        except StoreUnavailableError:
            self.steps = [*takewhile(lambda step: not isinstance(step, _INTENDED), steps), *self.steps]
            raise
        if steps and not written:
            raise RunRepeatedError
        del self.blobs[:blob_count]
        self._drop_draft = False
        self._over = final
        self._apply(written)
        if self.on_begun is not None:
            self.on_begun()
        if not final:
            self._schedule_renewal()
        if cancellation := cancelled or interrupted:
            raise cancellation

    async def withdraw(self) -> None:
        """Release the lease and drop the draft. For a thread that accepts no more events of the run."""
        await self.log.hold(Holding(self.holder, 0), drop_draft=self.state.run_id)

    async def resume(self, before: Sequence[Intent], blobs: Sequence[Blob]) -> None:
        """Write the waiting steps after the intents ``before``, and drop the draft of the earlier attempt."""
        self._drop_draft = True
        await self.write(before=before, blobs=blobs)

    async def _end_answer(self, steps: Sequence[RunStep]) -> asyncio.CancelledError | None:
        """Save no further drafts if ``steps`` end the answer; returns the cancellation of the caller, if any."""
        answer, cancelled = self.answer, None
        if answer is None or _ENDS_ANSWER.isdisjoint(map(type, steps)):
            return None
        self.answer = None
        if answer.stop():
            _, cancelled = await run_to_end(answer.drain())
        self._drop_draft = self._drop_draft or answer.drafted
        return cancelled

    async def take_over(self) -> None:
        """Continue from the first event of this run, which the run before it has written with its own last ones."""
        control = await self.log.control(fresh=True)
        if control.run is None or control.run.id != self.state.run_id:
            raise RunTakenOverError(self.log.thread_id, self.state.run_id)
        self._apply(await self.log.events(control.run.began - 1, control.run.began))
        self._schedule_renewal()

    def _apply(self, written: list[Event]) -> None:
        for event in written:
            if event.version != self.version + 1:
                self._history = None
            self.version = event.version
            if event.run_id == self.state.run_id:
                self.state = after(self.state, event)
            if event.type == MESSAGE_APPENDED and self._history is not None:
                message = as_message(event)
                if message is not None:
                    self._history.append(message)
            elif event.type in CONTEXT_STATE_EVENTS:
                self._context_events.append(event)

    # The lease, while nothing is written

    def stop_renewing(self) -> None:
        """Let the lease expire."""
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def _schedule_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = asyncio.get_running_loop().call_later(_RENEWAL_SECONDS, self._renew)

    def _renew(self) -> None:
        self._schedule_renewal()
        self._renewing = asyncio.ensure_future(self._hold())

    async def _hold(self) -> None:
        if self._renewal is None:
            return
        try:
            await self.log.hold(Holding(self.holder))
        except RunTakenOverError:
            self._lose()
        except (ConflictError, ClosedError):
            self.stop_renewing()
        except ClewError:
            pass  # the store may be busy: the next renewal tries again

    async def _put_draft(self, data: bytes) -> None:
        try:
            await self.log.put_draft(self.state.run_id, data, Holding(self.holder))
        except RunTakenOverError:
            self._lose()

    def _lose(self) -> None:
        """Note that another process has the run, unless this one is recording its end."""
        if self._renewal is not None:
            self.stop_renewing()
            if self.on_lost is not None:
                self.on_lost()
