"""A run: it asks the model, carries out what that wants done, and records each thing before the next one happens.

What waits to be recorded is written together right before something happens outside: before the model is asked, before
tools are called, and at the end. So a process that dies leaves a log from which any other can go on, and a run without
tools costs two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clew.agents.attempt import Attempt, failure
from clew.agents.model_calls import ModelCalls, Reason
from clew.agents.recording import Emit, Recording
from clew.agents.setup import Setup
from clew.agents.tool_calls import ToolCalls
from clew.domain.agent_ports import ThreadPort
from clew.domain.run_errors import RunInProgressError, RunLimitError, RunTakenOverError
from clew.domain.run_events import (
    AnswerInterrupted,
    ModelAnswered,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunFailed,
)
from clew.domain.run_state import CallState, RunState, calls_of, plan_calls


class Run:
    """One attempt of a run on a thread, from its first commit to its last.

    ``stopped`` is set by whoever leaves its stream, before ``task`` is cancelled.
    """

    def __init__(self, setup: Setup, thread: ThreadPort, state: RunState, emit: Emit | None, attempt: int = 1) -> None:
        self.recording = Recording(thread.runs, state, setup.actor, attempt)
        self.stopped = False
        self.task: asyncio.Task[Any] | None = None
        self._setup = setup
        self._attempt = Attempt(setup, thread, self.recording, emit)
        self._models = ModelCalls(self._attempt)
        self._tools = ToolCalls(self._attempt)

    @property
    def state(self) -> RunState:
        """What the run has done, as far as it is recorded."""
        return self.recording.state

    async def go(self, calls: Sequence[CallState] = ()) -> None:
        """Carry out the run to its end, or until it waits for somebody.

        ``calls`` are those of the newest answer that a run which is gone on with left undone; without any, the model is
        asked first.
        """
        self.task = asyncio.current_task()
        limit = self._setup.limits.seconds
        try:
            async with asyncio.timeout(limit) as scope:
                await self._rounds(calls)
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
            await self._close(RunAbandoned(reason=reason), reason)
            raise
        except (RunTakenOverError, RunInProgressError):
            await self._tools.stop()
            raise  # it is not this caller's to record any more
        except Exception as error:
            await self._fail(error)
            raise
        finally:
            self.recording.let_go()

    async def _rounds(self, calls: Sequence[CallState]) -> None:
        rules = self._setup.rules
        if calls and await self._tools.settle(plan_calls(calls, rules, orphaned=True), calls):
            return
        if self.state.answered:
            await self._complete(self.state.finish_reason)
            return
        if self._attempt.thread.kind == "remote":
            await self._models.open_service_thread()
        while True:
            answer = await self._models.ask(await self._models.call())
            message, place = self._models.record(answer)
            asked = calls_of(message, 0)
            if not asked:
                await self._complete(answer.finish_reason)
                return
            if await self._tools.settle(plan_calls(asked, rules), asked, place):
                return

    async def _complete(self, finish_reason: str | None) -> None:
        self.recording.add(RunCompleted(finish_reason=finish_reason))
        await self.recording.write(final=True)
        await self._attempt.tell_added()

    async def _fail(self, error: Exception) -> None:
        await self._close(RunFailed(error=failure(error)), "fault", error)

    async def _close(self, last: RunEvent, reason: Reason, error: Exception | None = None) -> None:
        """Record what was under way when the run ended, and that it did."""
        await self._tools.stop()
        if not self.state.began or self.state.ended:
            return  # it never began, or all of it is recorded
        told = any(isinstance(step, ModelAnswered | ModelFailed | AnswerInterrupted) for step in self.recording.steps)
        if self.state.called and not told:
            self._models.interrupt(reason, error)
        self.recording.add(last)
        await self.recording.write(final=True)
