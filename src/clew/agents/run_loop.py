"""A run: it asks the model, carries out what that wants done, and records each thing before the next one happens.

What waits to be recorded is written together right before something happens outside: before the model is asked, before
tools are called, and at the end. So a process that dies leaves a log from which any other can go on, and a run without
tools costs two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from clew.agents.attempt import Attempt
from clew.agents.failing import failure
from clew.agents.journal import Emit, Recording, seen_through
from clew.agents.model_calls import ModelCalls, Reason
from clew.agents.run_providers import RunContext
from clew.agents.run_setup import Setup
from clew.agents.tool_calls import ToolCalls
from clew.domain.decider import Intent
from clew.domain.errors import ThreadStatusError
from clew.domain.messages import Message
from clew.domain.runs.definitions import blobs
from clew.domain.runs.errors import RunLimitError, RunTakenOverError
from clew.domain.runs.events import (
    AnswerInterrupted,
    ModelAnswered,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunFailed,
)
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import CallState, RunState, calls_of, plan_calls

_inside: ContextVar[tuple[str, ...]] = ContextVar("clew_inside_runs", default=())
"""Who holds the leases of the runs that the code at hand is a part of: their tools and middleware."""


class Run:
    """One attempt of a run on a thread, from its first commit to its last.

    ``stopped`` is set by whoever leaves its stream, before ``task`` is cancelled. ``over`` is set when nothing more is
    recorded.
    """

    def __init__(self, setup: Setup, thread: ThreadPort, state: RunState, emit: Emit | None, attempt: int = 1) -> None:
        self.recording = Recording(thread.runs, state, setup.actor, attempt)
        self.stopped = False
        self.task: asyncio.Task[Any] | None = None
        self.over = asyncio.Event()
        self._cancelled_before = 0
        self._setup = setup
        self._context = RunContext(setup, thread, self.recording)
        self._attempt = Attempt(setup, thread, self.recording, emit, self._context)
        self._models = ModelCalls(self._attempt)
        self._tools = ToolCalls(self._attempt)

    @property
    def state(self) -> RunState:
        """What the run has done, as far as it is recorded."""
        return self.recording.state

    @property
    def resumed(self) -> bool:
        """Whether it is on the log that this attempt began."""
        return self.state.attempt == self.recording.attempt

    @property
    def ending(self) -> bool:
        """Whether it was stopped or cancelled, and all that is left to do is to record that."""
        return self.stopped or (self.task is not None and self.task.cancelling() > self._cancelled_before)

    @property
    def waits_for_caller(self) -> bool:
        """Whether who asks is a part of the run, which cannot end before that does."""
        return self.recording.holder in _inside.get()

    async def go(self, taking_up: Sequence[Intent] | None = None) -> None:
        """Carry out the run to its end, or until it waits for somebody.

        ``taking_up`` is what is to be recorded before a run that is gone on with; None for one that begins, and whose
        beginning waits to be written.
        """
        self.task = asyncio.current_task()
        self._cancelled_before = 0 if self.task is None else self.task.cancelling()
        limit = self._setup.limits.seconds
        outside = _inside.set((*_inside.get(), self.recording.holder))
        try:
            async with asyncio.timeout(limit) as scope:
                await self._rounds(await (self._begin() if taking_up is None else self._take_up(taking_up)))
        except TimeoutError as error:
            if not scope.expired():
                await self._fail(error)
                raise
            too_long = RunLimitError(
                f"The run took longer than {limit:g} s, the most that it may (max_seconds). What it did is on the log."
            )
            await self._fail(too_long)
            raise too_long from None
        except asyncio.CancelledError:
            reason: Reason = "stopped" if self.stopped else "cancelled"
            await self._end(RunAbandoned(reason=reason), reason)
            raise
        except RunTakenOverError as error:
            await self._tools.stop()
            await self._context.given_up(error)
            raise  # it is not this caller's to record any more
        except Exception as error:
            await self._fail(error)
            raise
        finally:
            self.recording.let_go()
            self.over.set()
            _inside.reset(outside)

    async def _begin(self) -> list[CallState]:
        await self._context.begin([step for step in self.recording.steps if isinstance(step, Message)])
        return []

    async def _take_up(self, before: Sequence[Intent]) -> list[CallState]:
        """Record that the run is gone on with; returns the calls of its newest answer that were left undone."""
        await self.recording.take_up(before, blobs(self._setup.definitions))
        await self._context.resume()
        return [call for call in self.state.calls if call.status != "done"]

    async def _rounds(self, calls: Sequence[CallState]) -> None:
        rules = self._context.rules
        if calls and await self._tools.settle(plan_calls(calls, rules, orphaned=True), calls):
            await self._context.rest()
            return
        if self.state.answered:
            await self._complete(self.state.finish_reason)
            return
        if self._attempt.thread.kind == "remote":
            await self._models.open_service_thread()
        if self.state.asked is not None:
            await self._context.before_call()
        while True:
            answer = await self._models.ask(await self._models.call())
            message, place = self._models.record(answer)
            asked = calls_of(message, 0)
            if not asked:
                await self._complete(answer.finish_reason)
                return
            if await self._tools.settle(plan_calls(asked, self._context.rules), asked, place):
                await self._context.rest()
                return
            await self._context.before_call()

    async def _complete(self, finish_reason: str | None) -> None:
        await self._context.finish()
        await self._context.end(RunCompleted(finish_reason=finish_reason))
        await self._attempt.tell_added()

    async def _fail(self, error: Exception) -> None:
        if self.state.began:  # whoever gave no thread learns here on which one it was
            error.add_note(f"It is on the log: run {self.state.run_id} of thread {self.recording.log.thread_id!r}.")
        await self._end(RunFailed(error=failure(error)), "fault", error)

    async def _end(self, last: RunEvent, reason: Reason, error: Exception | None = None) -> None:
        """See that the end is recorded, though whoever waits for the run is cancelled, perhaps once more."""
        _, cancelled = await seen_through(self._close(last, reason, error))
        if cancelled is not None:
            raise cancelled

    async def _close(self, last: RunEvent, reason: Reason, error: Exception | None = None) -> None:
        """Record what was under way when the run ended, and that it did."""
        await self._tools.stop()
        if not self.recording.under_way:
            return  # it never began, or all of it is recorded
        told = any(isinstance(step, ModelAnswered | ModelFailed | AnswerInterrupted) for step in self.recording.steps)
        if self.state.called and not told:
            self._models.interrupt(reason, error)
        await self._context.close(error or asyncio.CancelledError())
        self.recording.add(last)
        try:
            await self.recording.write(final=True)
        except ThreadStatusError:
            await self.recording.withdraw()
            raise
        await self._context.rest()
