"""What a run has to record: gathered until something happens outside, then written together, and then it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from clew.agents.partial_answer import Arriving
from clew.domain.context.provider_state import KEEPS, NOTHING_KEPT, Kept, kept_after
from clew.domain.decider import Advance, Intent, RunStep
from clew.domain.errors import ClewError, ClosedError, ConflictError, StoreUnavailableError
from clew.domain.events import Event
from clew.domain.history import HistoryMessage, as_message
from clew.domain.messages import Message
from clew.domain.ports import Blob
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalRequested,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunCompleted,
    RunResumed,
    RunStarted,
    ToolStarted,
)
from clew.domain.runs.open_run import OpenRun, holder_of
from clew.domain.runs.ports import LEASE_SECONDS, Holding, RunLog
from clew.domain.runs.state import RunState, after

T = TypeVar("T")

Step = RunStep

_AHEAD = RunStarted | RunResumed | ModelCalled | ToolStarted | ApprovalRequested | RunCompleted
"""What says that something comes next, or that nothing does: it is not true of a run that could not write it."""

_BEAT_SECONDS = LEASE_SECONDS / 3
"""Seconds between two renewals of the lease while nothing is written."""


async def seen_through(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """The outcome of work that goes on to its end, though its caller is cancelled; and that cancellation, if any.

    When the work fails and its caller was cancelled, the cancellation is raised.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001, S110  # it is raised below, by result()
            pass
    if cancelled is not None and not task.cancelled() and task.exception() is not None:
        raise cancelled from task.exception()
    return task.result(), cancelled


class Recording:
    """The steps of one attempt of a run: those that wait, and the state that those written have led to.

    ``version`` is that of the thread as far as the run has seen it, and ``history`` its path, None when somebody else
    wrote meanwhile and it is to be read again. ``kept`` is what was kept for components when it was read, and ``blobs``
    are those that the steps name.
    """

    def __init__(self, log: RunLog, state: RunState, actor: str | None, attempt: int) -> None:
        self.log = log
        self.state = state
        self.attempt = attempt
        self.steps: list[Step] = []
        self.blobs: list[Blob] = []
        self.kept: Kept = NOTHING_KEPT
        self.version = 0
        self._over = False
        self._drop_draft = False
        self._history: list[HistoryMessage] | None = None
        self._actor = actor
        self._arriving: Arriving | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def holder(self) -> str:
        """Who holds the lease: this attempt of the run."""
        return holder_of(OpenRun(self.state.run_id, self.state.began, self.attempt))

    @property
    def under_way(self) -> bool:
        """Whether this attempt is on the log, and neither is the run over there nor does it wait for somebody."""
        return bool(self.state.began) and self.state.attempt == self.attempt and not self._over

    def add(self, *steps: Step) -> int:
        """Let steps wait to be written; returns the place of the first among those that wait."""
        place = len(self.steps)
        self.steps += steps
        return place

    def back(self, place: int) -> int:
        """What the next step calls the one at a place: it counts back."""
        return place - len(self.steps)

    async def history(self) -> list[HistoryMessage]:
        """The path of the thread with the messages that wait."""
        if self._history is None:
            found = await self.log.history()
            self.version, self._history, self.kept = found.version, list(found.messages), found.kept
        waiting = [step for step in self.steps if isinstance(step, Message)]
        ahead = (
            HistoryMessage(self.version + number, message.role, message, "", 0)
            for number, message in enumerate(waiting, start=1)
        )
        return [*self._history, *ahead]

    def lose_history(self) -> None:
        """Read it again when it is asked for."""
        self._history = None

    def arriving(self, author: str | None) -> Arriving:
        """A new answer of ``author`` begins to arrive."""
        self._arriving = Arriving(
            self.state.called, author, lambda data: self.log.put_draft(self.state.run_id, data, Holding(self.holder))
        )
        return self._arriving

    @property
    def arrived(self) -> Arriving | None:
        """The answer that is arriving, None when there is none."""
        return self._arriving

    async def write(
        self,
        *,
        before: Sequence[Intent] = (),
        expected_version: int | None = None,
        blobs: Sequence[Blob] = (),
        final: bool = False,
    ) -> None:
        """Write what waits, whether or not the caller is cancelled meanwhile; ``final`` lets go of the lease.

        What could not be written waits no more, but what had happened when the store could not be reached is kept for
        the end of the run. Raises what the port does, and RunTakenOverError when it was this attempt's to write and is
        not any more.
        """
        steps, self.steps = tuple(self.steps), []
        own = len(self.blobs)
        named = (*blobs, *self.blobs)
        if final:
            self.let_go()  # a renewal that came after it would hold the lease for nobody
        over = any(isinstance(step, ModelAnswered | ModelFailed | AnswerInterrupted) for step in steps)
        early = await self._rest() if over else None
        run_id = self.state.run_id
        intents = (*before, *([Advance(run_id, self.attempt, steps)] if steps else []))
        try:
            written, cancelled = await seen_through(
                self.log.record(
                    intents,
                    actor=self._actor,
                    expected_version=expected_version,
                    blobs=named,
                    holding=Holding(self.holder, 0 if final else LEASE_SECONDS),
                    drop_draft=run_id if self._drop_draft else None,
                )
            )
        except RunInProgressError:
            if self.under_way:
                raise RunTakenOverError(self.log.thread_id, run_id) from None
            raise
        except StoreUnavailableError:
            self.steps = [*takewhile(lambda step: not isinstance(step, _AHEAD), steps), *self.steps]
            raise
        del self.blobs[:own]
        self._drop_draft = False
        self._over = final
        self._take(written)
        self._keep(final=final)
        if cancelled or early:
            raise cancelled or early or asyncio.CancelledError

    async def withdraw(self) -> None:
        """Let go of the lease and of what was written down, on a thread that takes nothing more of the run."""
        await self.log.hold(Holding(self.holder, 0), drop_draft=self.state.run_id)

    async def take_up(self, before: Sequence[Intent], blobs: Sequence[Blob]) -> None:
        """Write what waits after the intents ``before``; the draft of the attempt before this one goes."""
        self._drop_draft = True
        await self.write(before=before, blobs=blobs)

    async def _rest(self) -> asyncio.CancelledError | None:
        """Nothing of the answer that arrived is written down any more."""
        if self._arriving is None:
            return None
        arriving, self._arriving = self._arriving, None
        cancelled = None
        if arriving.stop():
            _, cancelled = await seen_through(arriving.rest())
        self._drop_draft = self._drop_draft or arriving.drafted
        return cancelled

    def _take(self, written: list[Event]) -> None:
        for event in written:
            if self._history is not None and event.version != self.version + 1:
                self._history = None
            if event.run_id == self.state.run_id:
                self.state = after(self.state, event)
            self.version = event.version
            if event.type in KEEPS:
                self.kept = kept_after(self.kept, event)
            said = as_message(event)
            if said is not None and self._history is not None:
                self._history.append(said)

    # The lease, while nothing is written

    def _keep(self, *, final: bool) -> None:
        self.let_go()
        if not final:
            self._beat = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._renew)

    def let_go(self) -> None:
        """Renew the lease no more."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _renew(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._renew)
        self._beating = asyncio.ensure_future(self._hold())

    async def _hold(self) -> None:
        if self._beat is None:
            return
        try:
            await self.log.hold(Holding(self.holder))
        except (ConflictError, ClosedError):
            self.let_go()  # the run is somebody else's: the next thing to be written will say so
        except ClewError:
            pass  # the store was busy, perhaps: the next beat tries again


Emit = Callable[[Any], Coroutine[Any, Any, None]]
"""Hands something to whoever follows a run as it goes."""
