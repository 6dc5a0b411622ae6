"""The guardrails of one run: when they check, and what the log and the history have of what they stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from clew.agents.guardrails import GuardrailContext, check_all
from clew.agents.journal import Journal
from clew.agents.response import AgentUpdate
from clew.agents.run_setup import RunSetup
from clew.domain.decider import Intent, Rewind
from clew.domain.errors import ConflictError
from clew.domain.messages import Message
from clew.domain.models.client import Answer
from clew.domain.runs.errors import GuardrailTrippedError
from clew.domain.runs.events import GuardrailStage, GuardrailTripped, RunEvent
from clew.domain.runs.ports import ThreadPort

_TRIES = 100
"""How often the end of a run is written again because other clients append."""


class Guard:
    """Carries out the checks of one attempt of a run.

    While something is unchecked, the updates of a stream wait here, and no part of an answer is saved: neither its
    reader nor one who follows the run on the log sees what a check stops.
    """

    def __init__(self, setup: RunSetup, thread: ThreadPort, journal: Journal) -> None:
        self._setup = setup
        self._thread = thread
        self._journal = journal
        self._inputs: tuple[Message, ...] = ()
        self._is_checked = False
        self._held: list[AgentUpdate] = []
        self._reader = journal.emit
        if journal.emit is not None:
            journal.emit = self._emit
        journal.keeps_drafts = False

    async def check_input(self, inputs: Sequence[Message]) -> None:
        """Check the input before the model is asked. Raises GuardrailTrippedError."""
        self._inputs = tuple(inputs)
        await self._check("before", self._inputs)

    async def beside(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The model's answer. Checks the input at the same time, until it was checked once."""
        if self._is_checked:
            return await ask()
        checking = asyncio.ensure_future(self._check("beside", self._inputs))
        asking = asyncio.ensure_future(ask())
        try:
            await asyncio.wait([checking, asking], return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()
            answer = await asking
            await checking
        finally:
            for task in (checking, asking):
                task.cancel()
            await asyncio.wait([checking, asking])
        self._is_checked = True
        if not self._setup.checks_answers:
            await self._release()
        return answer

    async def check_answer(self, message: Message) -> None:
        """Check an answer before its parts leave the run, and before its calls are carried out."""
        if self._setup.checks_answers:
            if message.text:
                await self._check("after", (message,))
            await self._release()

    async def record_trip(self, error: GuardrailTrippedError, last: RunEvent) -> None:
        """Record the trip and the end of the run, and rewind the thread to before what was stopped."""
        journal = self._journal
        tripped = GuardrailTripped(guardrail=error.guardrail, stage=error.stage, reason=error.reason)
        for _ in range(_TRIES):
            steps = [*journal.steps]
            journal.add(tripped, last)
            to = journal.version if error.stage == "after" else journal.state.since - 1
            try:
                rewind = await self._rewind(error.stage, to)
                await journal.write(expected_version=journal.version, then=rewind, final=True)
            except ConflictError:
                if not journal.under_way:
                    raise
                journal.steps = steps
                journal.discard_history()
                await journal.history()
            else:
                return
        raise error

    async def _rewind(self, stage: GuardrailStage, to: int) -> tuple[Intent, ...]:
        """The rewind to a version. None if a conversation of the service has what was stopped: it cannot go back."""
        log, state, id_ = self._journal.log, self._journal.state, None
        if self._thread.kind == "remote":
            bound = (await log.service_state(to)).bound
            is_sent = stage != "before" or state.handed_from is not None
            if bound and bound[-1].reference.kind == "conversation" and is_sent:
                return ()
            id_ = bound[-1].reference.id if bound else None
        return (Rewind(to, (await log.event(to)).messages, id_, state.by),)

    async def _check(self, stage: GuardrailStage, messages: tuple[Message, ...]) -> None:
        setup, state = self._setup, self._journal.state
        context = GuardrailContext(messages, self._thread.id, state.run_id, setup.actor, setup.deps)
        await check_all(setup.guardrails, stage, context)

    async def _emit(self, update: AgentUpdate) -> None:
        if (self._is_checked and not self._setup.checks_answers) or update.message is not None:
            await self._send(update)
        else:
            self._held.append(update)

    async def _release(self) -> None:
        held, self._held = self._held, []
        for update in held:
            await self._send(update)

    async def _send(self, update: AgentUpdate) -> None:
        if self._reader is not None:
            await self._reader(update)
