"""The loop of a run: ask the model, carry out the calls in its answer, ask again, until it answers without calls.

Steps wait in the journal and are written together right before an external call (before the model is asked, before
tools are called) and at the end. If the process dies, any other process can continue the run from the log. A run
without tools costs two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from clew.agents.context_assembly import ContextAssembly
from clew.agents.journal import Emit, Journal, failure, run_to_end
from clew.agents.model_calls import InterruptReason, ModelCalls
from clew.agents.run_setup import RunSetup
from clew.agents.tool_calls import ToolCalls
from clew.domain.decider import Intent
from clew.domain.errors import StoreError, ThreadStatusError
from clew.domain.messages import Message
from clew.domain.runs.errors import RunLimitError, RunTakenOverError
from clew.domain.runs.events import RunAbandoned, RunCompleted, RunEvent, RunFailed
from clew.domain.runs.ports import RunLog, ThreadPort
from clew.domain.runs.state import CallState, RunState, calls_of

live_runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of this process, by the names under which they hold their leases."""

unrecorded_ends: set[str] = set()
"""Lease holders of runs of this process that are over, and whose end the store did not record."""

_enclosing: ContextVar[tuple[str, ...]] = ContextVar("clew_enclosing_runs", default=())
"""The lease holders of the runs that the current code is called by, as a tool or as middleware."""


class Run:
    """One attempt of a run on a thread, from its first commit to its last. ``over`` is set when all is recorded."""

    def __init__(
        self, setup: RunSetup, thread: ThreadPort, state: RunState, emit: Emit | None, attempt: int = 1
    ) -> None:
        self.journal = Journal(thread.runs, state, setup.actor, attempt, emit)
        self.over = asyncio.Event()
        self._stopped = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._setup = setup
        self._thread = thread
        self._providers = ContextAssembly(setup, thread, self.journal)
        self._models = ModelCalls(setup, thread, self.journal, self._providers)
        self._tools = ToolCalls(setup, thread, self.journal, self._providers)

    @property
    def state(self) -> RunState:
        """What the run has done, as far as it is recorded."""
        return self.journal.state

    @property
    def resumed(self) -> bool:
        """Whether the start of this attempt is recorded."""
        return self.state.attempt == self.journal.attempt

    @property
    def ending(self) -> bool:
        """Whether the run was stopped or cancelled, and only has to record that."""
        return self._stopped or (self._task is not None and self._task.cancelling() > self._cancelled_before)

    @property
    def encloses_caller(self) -> bool:
        """Whether the calling code runs inside this run. Then the run cannot end before that code does."""
        return self.journal.holder in _enclosing.get()

    @property
    def in_this_loop(self) -> bool:
        """Whether the run belongs to the running event loop."""
        return self._task is not None and self._task.get_loop() is asyncio.get_running_loop()

    def stop(self) -> None:
        """Note that the reader has left the stream; the task of the run is cancelled next."""
        self._stopped = True

    async def carry_out(self, on_start: Callable[[Run], None] | None, resuming: Sequence[Intent] | None = None) -> None:
        """Carry out the run until it ends or waits for approvals, and record the end of one that fails or is cancelled.

        ``resuming`` is what is recorded first of a run that continues; None for a new run.
        """
        with self._live(on_start):
            limit = self._setup.limits.seconds
            try:
                async with asyncio.timeout(limit) as scope:
                    await self._rounds(await self._first_calls(resuming))
            except TimeoutError as error:
                if not scope.expired():
                    await self._fail(error)
                    raise
                too_long = RunLimitError(
                    f"The run took longer than {limit:g} s, the most that it may (max_seconds). "
                    "What it did is on the log."
                )
                await self._fail(too_long)
                raise too_long from None
            except asyncio.CancelledError:
                reason: InterruptReason = "stopped" if self._stopped else "cancelled"
                await self._end(RunAbandoned(reason=reason), reason)
                raise
            except RunTakenOverError as error:
                await self._tools.stop()
                await self._providers.taken_over(error)
                raise  # the end of the run is not this attempt's to record
            except Exception as error:
                await self._fail(error)
                raise

    @contextmanager
    def _live(self, on_start: Callable[[Run], None] | None) -> Iterator[None]:
        """List the run among those of this process until all of it is recorded."""
        holder = self.journal.holder
        live_runs[holder] = self
        if on_start is not None:
            on_start(self)
        self._task = asyncio.current_task()
        self._cancelled_before = 0 if self._task is None else self._task.cancelling()
        outside = _enclosing.set((*_enclosing.get(), holder))
        try:
            yield
        except StoreError:
            unrecorded_ends.add(holder)
            raise
        finally:
            self.journal.stop_renewing()
            self.over.set()
            _enclosing.reset(outside)

    async def _first_calls(self, resuming: Sequence[Intent] | None) -> list[CallState]:
        """Prepare the context; returns the calls that a run which continues has left open."""
        if resuming is None:
            if not self._providers.idle:
                await self._providers.begin([step for step in self.journal.steps if isinstance(step, Message)])
            return []
        await self.journal.resume(resuming, self._setup.definitions.blobs)
        await self._providers.resume()
        return [call for call in self.state.calls if call.status != "done"]

    async def _rounds(self, calls: Sequence[CallState]) -> None:
        if calls and await self._tools.handle(calls, orphaned=True):
            await self._providers.feed_store()
            return
        state = self.journal.state
        if state.answered:
            await self._complete(state.finish_reason)
            return
        if self._thread.kind == "remote":
            await self._models.open_service_thread()
        if state.asked is not None:
            await self._providers.before_next_call()
        while True:
            answer = await self._models.ask()
            message, index = self._models.record(answer)
            calls = calls_of(message, 0)
            if not calls:
                await self._complete(answer.finish_reason)
                return
            if await self._tools.handle(calls, answer=index):
                await self._providers.feed_store()
                return
            await self._providers.before_next_call()

    async def _complete(self, finish_reason: str | None) -> None:
        await self._providers.complete(RunCompleted(finish_reason=finish_reason))
        await self.journal.emit_added()

    async def _fail(self, error: Exception) -> None:
        if self.state.began:  # the caller may not have given a thread
            error.add_note(f"It is on the log: run {self.state.run_id} of thread {self.journal.log.thread_id!r}.")
        await self._end(RunFailed(error=failure(error)), "fault", error)

    async def _end(self, last: RunEvent, reason: InterruptReason, error: Exception | None = None) -> None:
        """Record the end of the run, even if the caller is cancelled once more."""
        _, cancelled = await run_to_end(self._record_end(last, reason, error))
        if cancelled is not None:
            raise cancelled

    async def _record_end(self, last: RunEvent, reason: InterruptReason, error: Exception | None) -> None:
        """Record what was under way when the run ended, and ``last``."""
        await self._tools.stop()
        if not self.journal.under_way:
            return  # it never began, or all of it is recorded
        self._models.interrupt(reason, error)
        await self._providers.fail(error or asyncio.CancelledError())
        self.journal.add(last)
        try:
            await self.journal.write(final=True)
        except ThreadStatusError:
            await self.journal.withdraw()
            raise
        await self._providers.feed_store()


async def ends_recorded(selected: Callable[[RunLog], bool]) -> None:
    """Wait until the ending runs of this event loop on ``selected`` logs have recorded their ends."""
    for run in list(live_runs.values()):
        if run.in_this_loop and run.ending and selected(run.journal.log):
            await run.over.wait()
