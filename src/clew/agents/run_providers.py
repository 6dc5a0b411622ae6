"""What is around the model calls of a run: its context providers, and what its agent's requests are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clew.agents.journal import Recording
from clew.agents.model_history import ModelHistory
from clew.agents.provider_hooks import Serving
from clew.agents.run_setup import Setup, rules_of
from clew.agents.tools import Tool
from clew.domain.context.contributions import NO_CONTRIBUTIONS, Contributions, new_messages, with_newest
from clew.domain.context.events import ContextProvided, HistoryReduced
from clew.domain.errors import ConflictError, InvalidContentError, StoreError
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.model_view import model_view
from clew.domain.runs.definitions import blobs
from clew.domain.runs.errors import ContextProviderError, RunInProgressError, RunTakenOverError
from clew.domain.runs.events import RunAbandoned, RunCompleted
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.request_building import unsent
from clew.domain.runs.state import Rule

_TRIES = 100
"""How often the end of a run is put off because somebody says something: a hook may answer whatever it is shown."""


class RunContext:
    """The context of one attempt of a run, from before its first commit to right before its last."""

    def __init__(self, setup: Setup, thread: ThreadPort, recording: Recording) -> None:
        self._setup = setup
        self._thread = thread
        self._recording = recording
        self._history = ModelHistory(setup, recording)
        self._serving = Serving(
            thread, setup.providers.all, agent=setup.identity, actor=setup.actor, run_id=recording.state.run_id
        )

    @property
    def reduction(self) -> HistoryReduced | None:
        """What of the history the requests are made of, None for all of it."""
        return self._history.reduction

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools of the run: the agent's, and those that providers gave."""
        return (*self._setup.tools, *self._serving.tools) if self._serving else self._setup.tools

    @property
    def rules(self) -> dict[str, Rule]:
        """What the tools say of themselves, as far as the order of things depends on it."""
        return rules_of(self.tools) if self._serving else self._setup.rules

    def tool(self, name: str) -> Tool | None:
        """The tool that the model calls so."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def citations(self) -> list[dict[str, object]]:
        """What the answer rests on."""
        return [dict(citation) for citation in self._serving.citations]

    def given(self) -> Contributions:
        """What providers gave to the run, with what of that waits to be recorded."""
        if not self._serving and not self._recording.state.provided:
            return NO_CONTRIBUTIONS
        provided = self._provided()
        return Contributions(provided, self._serving.schemas(provided))

    async def begin(self, inputs: Sequence[Message]) -> None:
        """Have the run begin on the log, and all that is to come before its first model call wait to be recorded."""
        if self._serving:
            await self._begin(inputs)
            return
        try:
            await self._history.prepare()
        except (Exception, asyncio.CancelledError):
            if not self._recording.state.began:  # what was said is not lost with it
                await self._recording.write(blobs=blobs(self._setup.definitions))
            raise

    async def _begin(self, inputs: Sequence[Message]) -> None:
        recording, failed = self._recording, None
        begins = recording.log.begins
        if not any(message.text for message in inputs):
            await self._check_asked()
        if begins:
            try:
                await self._serving.load(recording.kept)
                await self._serving.created(inputs)
            except ContextProviderError as error:
                failed = error  # it fails a run that is on the log
        self._leave()
        await recording.write(
            expected_version=None if begins else recording.version, blobs=blobs(self._setup.definitions)
        )
        if failed is not None:
            raise failed
        if not begins:
            await self._serving.load(recording.kept)
        await self._prepare()

    async def _check_asked(self) -> None:
        """Nothing is recorded of a run that would ask nothing."""
        recording = self._recording
        service = (await self._thread.runs.service_side()).call if self._thread.kind == "remote" else None
        if not unsent(model_view(await recording.history()), service):
            raise InvalidContentError(
                f"run: there is nothing to answer on thread {recording.log.thread_id!r}. Give some input."
            )

    async def resume(self) -> None:
        """Take up what a run was given that is gone on with; one that had not come so far is given it now."""
        recording = self._recording
        await recording.history()
        await self._serving.load(recording.kept)
        if recording.state.asked is None:
            await self._prepare()
            return
        await self._history.prepare()
        await self._serving.shown(await recording.history())
        await self._serving.invoke_again(await self.request(), recording.state.provided, self._setup.tools)
        self._leave()

    async def before_call(self) -> None:
        """Before each model call but the first: show what was said, and ask those who give context to each."""
        await self._history.feed()
        await self._history.look_again()
        self._leave()
        if not self._serving.watches and not self._serving.asked_again:
            return
        if self._recording.steps:
            await self._recording.write()
        history = await self._read()
        await self._serving.shown(history)
        await self._invoke(new_messages(history), first=False)
        self._leave()

    async def finish(self) -> None:
        """The model has answered: record that, and have everybody told before the run is over."""
        if not self._serving and not self._history.feeds and not self._history.looks_after:
            return
        await self._recording.write()
        await self._history.feed()
        await self._serving.shown(await self._read())
        await self._serving.invoked(await self.request(), self._recording.state.added)
        await self._history.look_after()
        self._leave()

    async def rest(self) -> None:
        """The run waits for somebody, or is over: give the store what it has not had."""
        await self._history.feed()

    async def end(self, last: RunCompleted) -> None:
        """Record that the run is over, and how; what others say until then is shown to who watches."""
        recording = self._recording
        for _ in range(_TRIES if self._serving.watches else 0):
            waiting = list(recording.steps)
            recording.add(last)
            try:
                await recording.write(final=True, expected_version=recording.version)
            except (RunInProgressError, RunTakenOverError):
                raise
            except ConflictError:
                recording.steps = waiting
                recording.lose_history()
                await self._serving.shown(await recording.history())
                self._leave()
            else:
                return
        recording.add(last)
        await recording.write(final=True)

    def pause(self) -> None:
        """The run waits for somebody: whoever goes on with it shows only what is said from here on."""
        self._leave(shown=True)

    async def close(self, error: BaseException) -> None:
        """The run ends without an answer: have everybody told, unless they were."""
        if self._serving:
            await self._tell(error)
            self._leave(shown=True)

    async def given_up(self, error: BaseException) -> None:
        """The run is not this attempt's any more. When somebody went back and ended it, nobody else tells of that.

        What the providers keep of it then is no part of the thread any more.
        """
        state, log = self._recording.state, self._recording.log
        if not self._serving or not state.began:
            return
        ended = (event.data for event in await log.events(state.began) if event.run_id == state.run_id)
        if any(isinstance(data, RunAbandoned) and data.reason == "asked" for data in ended):
            await self._tell(error)

    async def _tell(self, error: BaseException) -> None:
        self._serving.raises = False
        try:
            request = await self.request()
        except StoreError:
            return  # it cannot be told what was asked, and nothing could be recorded of it
        await self._serving.load(self._recording.kept)  # for those whose turn had not come
        await self._serving.invoked(request, self._recording.state.added or None, error)

    async def request(self) -> list[HistoryMessage]:
        """The messages that the run was to answer."""
        first = self._recording.state.added[0].version if self._recording.state.added else None
        history = await self._recording.history()
        return new_messages([each for each in history if first is None or each.version < first])

    async def _prepare(self) -> None:
        history = await self._recording.history()
        await self._serving.shown(history)
        await self._history.prepare()
        await self._invoke(new_messages(history), first=True)
        self._leave()

    async def _invoke(self, messages: Sequence[HistoryMessage], *, first: bool) -> None:
        before = messages[0].version if messages else 0
        await self._serving.invoke(messages, before, self._setup.tools, first=first)

    def _provided(self) -> tuple[ContextProvided, ...]:
        provided = self._recording.state.provided
        for step in self._recording.steps:
            if isinstance(step, ContextProvided):
                provided = with_newest(provided, step)
        return provided

    async def _read(self) -> list[HistoryMessage]:
        """The history, and what others have recorded of the providers' states since it was read last."""
        history = await self._recording.history()
        self._serving.adopt(self._recording.kept)
        return history

    def _leave(self, *, shown: bool = False) -> None:
        """Let wait what the providers left; ``shown`` counts what they were shown, too."""
        serving = self._serving
        self._recording.add(*serving.steps, *serving.states(shown=shown))
        self._recording.blobs += serving.blobs
        serving.steps, serving.blobs = [], []
        self._recording.add(*serving.cited(self._provided()))
