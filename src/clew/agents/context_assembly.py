"""The context of a run: it calls the provider hooks and shapes the history around the run's model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from clew.agents.journal import Journal, Successor
from clew.agents.model_history import ModelHistory
from clew.agents.provider_hooks import ProviderHooks
from clew.agents.run_setup import RunSetup, rules_of
from clew.agents.tools import Tool, ToolContext, enabled
from clew.domain.call_pairing import model_view
from clew.domain.context.events import ContextFailed, ContextProvided, HistoryReduced
from clew.domain.errors import ConflictError, InvalidContentError, StoreError
from clew.domain.history import HistoryMessage, new_messages
from clew.domain.messages import Message
from clew.domain.runs.errors import ContextProviderError, RunInProgressError, RunTakenOverError
from clew.domain.runs.events import ModelCalled, RunAbandoned, RunCompleted
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.request_construction import NO_CONTRIBUTIONS, Contributions, unsent
from clew.domain.runs.state import Rule, with_newest

_COMPLETION_TRIES = 100
"""How often the end of a run is delayed because other clients append: a hook may append to every message it gets."""


MOST_LATE = 64
"""How many late messages of context a request has at most. With more, the older half is left out, and all that came
after it has another beginning."""

_ANSWERS, _STEPS = 3, 4
"""How many answers are looked at, and how many events before each of them, to find the last model call."""


_REDACTED = ContextProvided(provider="")
"""In place of what was redacted since."""


def _is_same(one: ContextProvided, two: ContextProvided) -> bool:
    return (one.instructions, one.messages) == (two.instructions, two.messages)


class ContextAssembly:
    """The context of one attempt of a run, from before its first commit to right before its last.

    Without providers, a reducer and a history store it is ``idle``: there is nothing to call.
    """

    def __init__(self, setup: RunSetup, thread: ThreadPort, journal: Journal) -> None:
        self._setup = setup
        self._thread = thread
        self._journal = journal
        self._providers = setup.providers.all
        self._has_providers = bool(self._providers)
        self.idle = not self._providers and setup.reducer is None and setup.stores is None
        self._is_late = self._has_providers and setup.late_context and thread.kind == "local"
        self._late: list[tuple[int, ContextProvided]] = []  # with its version, 0 if it is not recorded yet

    @cached_property
    def _hooks(self) -> ProviderHooks:
        setup, state = self._setup, self._journal.state
        about: dict[str, Any] = {"agent": setup.identity, "actor": setup.actor, "run_id": state.run_id, "by": state.by}
        return ProviderHooks(self._thread, self._providers, **about)

    @cached_property
    def _history(self) -> ModelHistory:
        return ModelHistory(self._setup, self._journal)

    @property
    def reduction(self) -> HistoryReduced | None:
        """The current reduction of the history, None if requests hold all of it."""
        return None if self.idle else self._history.reduction

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools of the run: the agent's, and those that providers gave."""
        return (*self._setup.tools, *self._hooks.tools) if self._has_providers else self._setup.tools

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the last request offered to the model."""
        call, tools = self._journal.state.model_call, self.tools
        if call is None or not call.disabled:
            return tools
        return tuple([each for each in tools if each.name not in call.disabled])

    async def disabled(self) -> tuple[str, ...]:
        """The names of the tools that the next request does not offer. Raises what the tools' functions raise."""
        setup = self._setup
        if not self._has_providers and not setup.has_conditional_tools:
            return ()
        context = ToolContext(setup.deps, self._thread, setup.actor, self._journal.state.run_id)
        return tuple([each.name for each in self.tools if not await enabled(each, context)])

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules of all tools of the run, by name."""
        return rules_of(self.tools) if self._has_providers else self._setup.rules

    @property
    def changed_tools(self) -> frozenset[str]:
        """The tools of providers that have changed since the model called them, before this attempt of the run."""
        return self._hooks.changed_tools if self._has_providers else frozenset()

    @property
    def citations(self) -> list[dict[str, object]]:
        """The sources of the answer."""
        return [dict(citation) for citation in self._hooks.citations] if self._has_providers else []

    def contributions(self) -> Contributions:
        """What providers gave to the run, including what waits to be recorded."""
        if not self._has_providers and not self._journal.state.provided:
            return NO_CONTRIBUTIONS
        provided = self._provided()
        late = tuple(each for _, each in self._late if each is not _REDACTED) if self._is_late else None
        return Contributions(provided, self._hooks.schemas(provided), late)

    def late_versions(self) -> tuple[int, ...] | None:
        """The versions of the late context of the next request, those that wait to be recorded as references.

        None if what providers gave goes with the instructions of the agent.
        """
        if not self._is_late:
            return None
        last = self._journal.state.model_call
        recorded = () if last is None or last.late is None else last.late
        waiting = {id(step): self._journal.reference(index) for index, step in enumerate(self._journal.steps)}
        return (*recorded, *(version or waiting[id(each)] for version, each in self._late[len(recorded) :]))

    async def begin(self, inputs: Sequence[Message]) -> None:
        """Queue what must be recorded before the first model call; with providers, write the start of the run."""
        if self._has_providers:
            await self._begin(inputs)
            return
        try:
            await self._history.prepare()
        except (Exception, asyncio.CancelledError):
            if not self._journal.state.began:  # keep the input
                await self._journal.write(blobs=self._setup.definitions.blobs)
            raise

    async def _begin(self, inputs: Sequence[Message]) -> None:
        journal, failed = self._journal, None
        begins = journal.log.begins
        if not any(message.text for message in inputs):
            await self._check_unanswered_messages()
        if begins:
            try:
                await self._hooks.load(journal.context_state)
                await self._hooks.call_all("on_thread_created", list(inputs))
            except ContextProviderError as error:
                failed = error  # raised below, when the run is on the log
        self._collect()
        await journal.write(expected_version=None if begins else journal.version, blobs=self._setup.definitions.blobs)
        if failed is not None:
            raise failed
        if not begins:
            await self._hooks.load(journal.context_state)
        await self._prepare()

    async def _check_unanswered_messages(self) -> None:
        """Raise InvalidContentError, and record nothing, if no message waits for an answer."""
        journal = self._journal
        service = (await self._thread.runs.service_state()).call if self._thread.kind == "remote" else None
        if not unsent(model_view(await journal.history()), service):
            raise InvalidContentError(
                f"run: there is nothing to answer on thread {journal.log.thread_id!r}. Give some input."
            )

    async def resume(self) -> None:
        """Load the context of a run that continues. If it had none yet, the providers are asked now."""
        journal = self._journal
        await journal.history()
        await self._hooks.load(journal.context_state)
        if journal.state.model_call is None:
            await self._prepare()
            return
        if self._is_late:
            self._late = await self._recorded_late(journal.state.model_call.late or ())
        await self._history.prepare()
        await self._hooks.show(await journal.history(after=self._hooks.seen))
        await self._hooks.invoke_again(await self.request(), journal.state.provided, self._setup.tools)
        self._collect()

    async def before_next_call(self) -> None:
        """Before a later model call: show new messages, and ask the providers that give context to every call."""
        if self.idle:
            return
        await self._history.feed()
        await self._history.reduce_again()
        self._collect()
        if not self._hooks.watches and not self._hooks.asks_again:
            return
        if self._journal.steps:
            await self._journal.write()
        history = await self._reloaded()
        await self._hooks.show(history)
        await self._invoke(new_messages(history), first=False)
        self._collect()

    async def complete(self, last: RunCompleted, successor: Successor | None = None) -> None:
        """The model has answered: record that, call the last hooks, and record ``last``, the end of the run.

        The ``successor`` begins in the same commit.
        """
        if self._has_providers or (not self.idle and (self._history.has_store or self._history.reduces_after)):
            await self._journal.write()
            await self._history.feed()
            await self._hooks.show(await self._reloaded())
            await self._hooks.invoked(await self.request(), self._journal.state.added)
            await self._history.complete()
            self._collect()
        if self._has_providers and self._hooks.watches:
            await self._end_after_others(last, successor)
            return
        self._journal.add(last)
        await self._journal.write(final=True, successor=successor)

    async def _end_after_others(self, last: RunCompleted, successor: Successor | None) -> None:
        """Record the end of the run; until then, providers that watch messages receive those that others append."""
        journal = self._journal
        for _ in range(_COMPLETION_TRIES):
            waiting = list(journal.steps)
            journal.add(last)
            try:
                await journal.write(final=True, expected_version=journal.version, successor=successor)
            except (RunInProgressError, RunTakenOverError):
                raise
            except ConflictError:
                journal.steps = waiting
                journal.discard_history()
                await self._hooks.show(await journal.history(after=self._hooks.seen))
                self._collect()
            else:
                return
        journal.add(last)
        await journal.write(final=True, successor=successor)

    async def feed_store(self) -> None:
        """The run pauses or is over: add the missing messages to the history store."""
        if not self.idle:
            await self._history.feed()

    def pause(self) -> None:
        """The run waits for approvals: the process that continues it shows providers only newer messages."""
        self._collect(with_seen=True)

    async def fail(self, error: BaseException) -> None:
        """The run ends without an answer: call ``invoked`` where it was not called yet."""
        if self._has_providers:
            await self._notify_failed(error)
            self._collect(with_seen=True)

    async def handle_takeover(self, error: BaseException) -> None:
        """This attempt has lost the run.

        If a rewind ended the run, no other process calls ``invoked``, so this one does. The states are then not
        recorded: the run is no longer on the path.
        """
        state, log = self._journal.state, self._journal.log
        if not self._has_providers or not state.began:
            return
        ended = (event.data for event in await log.events(state.began) if event.run_id == state.run_id)
        if any(isinstance(data, RunAbandoned) and data.reason == "asked" for data in ended):
            await self._notify_failed(error)

    async def _notify_failed(self, error: BaseException) -> None:
        self._hooks.raises = False
        try:
            request = await self.request()
        except StoreError:
            return  # the request cannot be read, and nothing could be recorded
        await self._hooks.load(self._journal.context_state)  # of providers that have had no hook yet
        await self._hooks.invoked(request, self._journal.state.added or None, error)

    async def request(self) -> list[HistoryMessage]:
        """The messages that the run answers."""
        added = self._journal.state.added
        history = await self._journal.history()
        return self._input([each for each in history if not added or each.version < added[0].version])

    def _input(self, history: Sequence[HistoryMessage]) -> list[HistoryMessage]:
        """The messages without an answer; in a conversation that was handed over, those that it began with."""
        if self._journal.state.handed_from is None:
            return new_messages(history)
        since = self._journal.state.since
        return [each for each in history if each.version > since and each.role not in {"assistant", "tool"}]

    async def _prepare(self) -> None:
        history = await self._journal.history(after=self._hooks.seen)
        await self._hooks.show(history)
        await self._history.prepare()
        if self._is_late:
            late = await self._recorded_late(await self._earlier_late(history))
            self._late = late if len(late) < MOST_LATE else late[-MOST_LATE // 2 :]
        await self._invoke(self._input(history), first=True)
        self._collect()

    async def _invoke(self, messages: Sequence[HistoryMessage], *, first: bool) -> None:
        before = messages[0].version if messages else 0
        await self._hooks.invoke(messages, before, self._setup.tools, first=first)
        if self._is_late:
            self._place_late(before or self._journal.version + 1, first=first)

    def _place_late(self, before: int, *, first: bool) -> None:
        """Put what providers have just given before a message, unless it is what the model has from them already."""
        newest = {each.provider: each for _, each in self._late if each is not _REDACTED}
        steps = self._hooks.steps
        for place, step in enumerate(steps):
            if isinstance(step, ContextProvided):
                before_it = newest.pop(step.provider, ContextProvided(provider=step.provider))
                steps[place] = given = step.model_copy(update={"before": before})
                if not _is_same(given, before_it):
                    self._late.append((0, given))
            elif isinstance(step, ContextFailed):
                newest.pop(step.provider, None)
        for provider, each in newest.items() if first else ():
            gone = ContextProvided(provider=provider, before=before)
            if not _is_same(gone, each):
                steps.append(gone)
                self._late.append((0, gone))

    async def _earlier_late(self, history: Sequence[HistoryMessage]) -> tuple[int, ...]:
        """The versions of the context that the last request on the path had at its places."""
        answers = [each.version for each in history if each.role == "assistant"]
        for answer in reversed(answers[-_ANSWERS:]):
            for version in range(answer - 1, max(answer - 1 - _STEPS, 0), -1):
                data = (await self._journal.log.event(version)).data
                if isinstance(data, ModelCalled):
                    return data.late or ()
        return ()

    async def _recorded_late(self, versions: Sequence[int]) -> list[tuple[int, ContextProvided]]:
        """What providers gave at these versions."""
        events = [await self._journal.log.event(version) for version in versions]
        return [
            (event.version, event.data if isinstance(event.data, ContextProvided) and not event.redacted else _REDACTED)
            for event in events
        ]

    def _provided(self) -> tuple[ContextProvided, ...]:
        provided = self._journal.state.provided
        for step in self._journal.steps:
            if isinstance(step, ContextProvided):
                provided = with_newest(provided, step)
        return provided

    async def _reloaded(self) -> list[HistoryMessage]:
        """The history; provider states that others recorded since the last read are loaded."""
        history = await self._journal.history(after=self._hooks.seen)
        self._hooks.reload(self._journal.context_state)
        return history

    def _collect(self, *, with_seen: bool = False) -> None:
        """Queue the outcomes of the hooks; ``with_seen`` also records which messages were shown."""
        hooks, journal = self._hooks, self._journal
        journal.add(*hooks.steps, *hooks.unrecorded_states(with_seen=with_seen))
        journal.blobs += hooks.blobs
        hooks.steps, hooks.blobs = [], []
        journal.add(*hooks.newly_cited(self._provided()))
