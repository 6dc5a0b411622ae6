"""Agents: a model, instructions and tools, that run on threads and hold no conversation themselves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, cast, overload

from clew.agents import background_loop
from clew.agents.agent_compatibility import OnChangedAgent, as_it_was, compare
from clew.agents.agent_threads import AgentThreads
from clew.agents.answer_format import response_format_of
from clew.agents.approvals import pending
from clew.agents.inputs import Input, inputs
from clew.agents.journal import Emit
from clew.agents.middleware import Middleware, RunContext, compose
from clew.agents.provider_config import (
    Missed,
    OnMissingProvider,
    Providers,
    ReadFrom,
    Stores,
    check_history,
    check_reports,
)
from clew.agents.response import AgentResponse
from clew.agents.run_admission import begin_run, resume_run
from clew.agents.run_loop import Run
from clew.agents.run_options import ContinueOptions, RunOptions, ToolFunction, check_names
from clew.agents.run_setup import Setup, check_parts, checked_limits, rules_of
from clew.agents.stream import AgentStream, Stop
from clew.agents.telemetry import Telemetry
from clew.agents.tools import as_tools
from clew.domain.context.provider import ContextProviders
from clew.domain.context.thread_providers import as_providers
from clew.domain.errors import InvalidContentError
from clew.domain.history_stores import StoreFactory
from clew.domain.json_values import check_text
from clew.domain.messages import Message
from clew.domain.models.client import ModelClient
from clew.domain.models.requests import checked_options
from clew.domain.names import check_id
from clew.domain.reducers.reducer import Reducer
from clew.domain.runs.definitions import Definitions
from clew.domain.runs.errors import AgentConfigurationError, NoOpenRunError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import EnginePort, LocalT_co, RemoteT_co, ThreadPort, ThreadT
from clew.domain.runs.state import RunState


class Agent(AgentThreads[LocalT_co, RemoteT_co]):
    """What ``clew.Agent`` is, whatever an engine's threads are: the front door says that, and what it is made with."""

    def __init__(  # noqa: PLR0913  # each says something of its own, by name
        self,
        client: ModelClient,
        *,
        engine: EnginePort[LocalT_co, RemoteT_co] | None = None,
        id: str | None = None,  # noqa: A002  # what it is called in the event
        name: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        tools: Sequence[ToolFunction] = (),
        context_providers: ContextProviders | None = None,
        reducer: Reducer | None = None,
        history_store: StoreFactory | None = None,
        read_history_from: ReadFrom = "log",
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        middleware: Sequence[Middleware] = (),
        telemetry: Telemetry | None = None,
        max_rounds: int = 20,
        max_seconds: float | None = None,
        retries: int = 2,
        on_changed_agent: OnChangedAgent = "warn",
        on_missing_provider: OnMissingProvider = "warn",
    ) -> None:
        self.id = id or name or "agent"
        check_id(self.id, "agent id")
        for text, where in ((name, "name"), (description, "description"), (instructions, "instructions")):
            if text is not None:
                check_text(text, where)
        super().__init__(engine, on_changed_agent)
        check_reports(on_changed_agent=on_changed_agent, on_missing_provider=on_missing_provider)
        check_parts(client, model, tuple(middleware))
        self.client = client
        self.name = name
        self.description = description
        self.instructions = instructions
        self.tools = as_tools(tools)
        self.context_providers = as_providers(context_providers)
        check_history(reducer, history_store, read_history_from)
        self.reducer = reducer
        self._stores = None if history_store is None else Stores(history_store)
        self._read_from = read_history_from
        self.model = model
        self._options = checked_options(options)
        self._middleware = tuple(middleware)
        self._telemetry = Telemetry() if telemetry is None else telemetry
        self._limits = checked_limits(max_rounds, max_seconds, retries)
        self._on_missing = on_missing_provider
        self._missed = Missed()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def identity(self) -> AgentIdentity:
        """Who it is, to the log."""
        return AgentIdentity(id=self.id, name=self.name, type=type(self).__name__)

    # Running

    @overload
    def run(
        self,
        input: Input = None,  # the word of the field
        *,
        stream: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, AgentResponse[LocalT_co | RemoteT_co]]: ...
    @overload
    def run(
        self,
        input: Input = None,  # the same
        *,
        stream: Literal[True],
        **options: Unpack[RunOptions],
    ) -> AgentStream[LocalT_co | RemoteT_co]: ...
    def run(
        self,
        input: Input = None,  # noqa: A002  # the same
        *,
        stream: bool = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, AgentResponse[LocalT_co | RemoteT_co]] | AgentStream[LocalT_co | RemoteT_co]:
        """Say something to the agent, and have what it does recorded on a thread as it happens.

        Without ``input`` it answers what was appended to the thread; without a ``thread`` it starts one, which the
        response has. With ``stream`` it gives an AgentStream of updates instead of being awaited. RunOptions says what
        else a run may be given: thread, actor, fork, at, tools, model, options, response_format, deps, on_conflict,
        abandon_run, max_rounds, max_seconds.

        Raises UnsupportedThreadError, RunInProgressError or ApprovalPendingError before anything is recorded; and
        ModelError, ToolFailedError or RunLimitError when all until then is recorded, and what went wrong.
        """
        check_names("run", options, RunOptions)
        messages = inputs("run", input)
        setup = self._setup(options)

        async def work(
            emit: Emit | None, stopper: Callable[[Stop], None] | None
        ) -> AgentResponse[LocalT_co | RemoteT_co]:
            where = await self._where(messages, options)
            run_id = uuid.uuid4().hex[:16]
            context = self._context(where, run_id, setup.actor, messages)
            serving = self._attached(setup, where, options)

            async def innermost() -> AgentResponse[LocalT_co | RemoteT_co]:
                await self._take_up(where)
                run, ran_on = await begin_run(
                    serving,
                    where,
                    run_id,
                    messages,
                    on_conflict=options.get("on_conflict", "raise"),
                    abandon=options.get("abandon_run", False),
                    emit=emit,
                    started=_stops(stopper),
                )
                return self._response(run, ran_on, setup)

            return await self._within(context, innermost)

        return AgentStream(work) if stream else work(None, None)

    @overload
    def continue_run(
        self, thread: ThreadT, *, stream: Literal[False] = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[ThreadT]]: ...
    @overload
    def continue_run(
        self, thread: ThreadT, *, stream: Literal[True], **options: Unpack[ContinueOptions]
    ) -> AgentStream[ThreadT]: ...
    def continue_run(
        self, thread: ThreadT, *, stream: bool = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[ThreadT]] | AgentStream[ThreadT]:
        """Go on with the run that a thread is in the middle of: after a crash, or when its approvals are decided.

        What is on the log is not done again. A tool that had been started when the process died is called again if it
        is idempotent; about any other somebody is asked (``outcome-unknown``). The options are actor, deps and
        on_conflict (``raise`` or ``wait``). Raises NoOpenRunError, ApprovalPendingError, RunInProgressError,
        AgentChangedError and what ``run`` raises.
        """
        check_names("continue_run", options, ContinueOptions)
        given: RunOptions = {
            "actor": options.get("actor"),
            "deps": options.get("deps"),
            "tools": options.get("tools", ()),
            "context_providers": options.get("context_providers"),
            "response_format": options.get("response_format"),
        }
        setup = self._setup(given)

        async def prepare(state: RunState) -> Setup:
            compare(thread.id, state.fingerprint, setup.serving(thread), self._on_changed)
            return await as_it_was(thread.runs, state, setup)

        async def work(emit: Emit | None, stopper: Callable[[Stop], None] | None) -> AgentResponse[ThreadT]:
            self._check_thread(thread)
            open_run = (await thread.runs.control(fresh=True)).run
            if open_run is None:
                raise NoOpenRunError(thread.id)
            context = self._context(thread, open_run.id, setup.actor, ())

            async def innermost() -> AgentResponse[ThreadT]:
                run = await resume_run(
                    thread,
                    on_conflict=options.get("on_conflict", "raise"),
                    emit=emit,
                    started=_stops(stopper),
                    prepare=prepare,
                )
                return self._response(run, thread, setup)

            return await self._within(context, innermost)

        return AgentStream(work) if stream else work(None, None)

    def run_sync(
        self,
        input: Input = None,  # noqa: A002  # the same
        **options: Unpack[RunOptions],
    ) -> AgentResponse[LocalT_co | RemoteT_co]:
        """The same as ``await agent.run(…)``, for scripts that have no event loop."""
        return background_loop.run(self.run(input, **options))

    def _made_of(self) -> Setup:
        return self._setup({})

    def _setup(self, options: RunOptions) -> Setup:
        actor = options.get("actor")
        if actor is not None:
            check_id(actor, "actor")
        tools = as_tools((*self.tools, *options.get("tools", ())))
        format_ = options.get("response_format")
        limits = self._limits
        rounds, seconds = options.get("max_rounds"), options.get("max_seconds")
        return Setup(
            identity=self.identity,
            client=self.client,
            model=options.get("model") or self.model or self.client.model,
            definitions=Definitions(
                self.instructions,
                tuple(tool.schema for tool in tools),
                response_format_of(format_),
                len(self.tools),
            ),
            tools=tools,
            options={**self.client.options, **self._options, **checked_options(options.get("options"))},
            limits=checked_limits(
                limits.rounds if rounds is None else rounds,
                limits.seconds if seconds is None else seconds,
                limits.retries,
            ),
            telemetry=self._telemetry,
            middleware=self._middleware,
            actor=actor,
            deps=options.get("deps"),
            response_format=format_,
            rules=rules_of(tools),
            providers=Providers(self.context_providers, (), as_providers(options.get("context_providers"))),
            on_missing=self._on_missing,
            missed=self._missed,
            reducer=self.reducer,
            stores=self._stores,
            read_from=self._read_from,
        )

    async def _where(self, messages: Sequence[Message], options: RunOptions) -> LocalT_co | RemoteT_co:
        thread, fork, at = options.get("thread"), options.get("fork", False), options.get("at")
        if thread is None:
            if fork or at is not None:
                raise AgentConfigurationError("fork= and at= need the thread to fork. Give thread=.")
            if not messages:
                raise InvalidContentError("run: there is nothing to answer. Give some input, or a thread= to answer.")
            return self.engine.beginning(self.client.thread_kinds[0])
        self._check_thread(thread)
        found = cast("LocalT_co | RemoteT_co", thread)  # what it runs on are the threads of such an engine
        return await found.branch(at) if fork or at is not None else found

    def _attached(self, setup: Setup, thread: ThreadPort, options: RunOptions) -> Setup:
        """Providers that are given to a run which starts its thread are the thread's from then on."""
        if options.get("thread") is not None or not setup.providers.run:
            return setup
        thread.context_providers.add(*setup.providers.run)
        return replace(setup, providers=setup.providers._replace(run=()))

    def _context(self, thread: ThreadPort, run_id: str, actor: str | None, messages: Sequence[Message]) -> RunContext:
        return RunContext(
            agent_id=self.id,
            agent_name=self.name,
            thread_id=thread.id,
            run_id=run_id,
            actor=actor,
            messages=tuple(messages),
        )

    async def _within(
        self, context: RunContext, innermost: Callable[[], Coroutine[Any, Any, AgentResponse[ThreadT]]]
    ) -> AgentResponse[ThreadT]:
        """Within the application's middleware, and what is told to OpenTelemetry."""
        with self._telemetry.run(
            agent_id=self.id,
            agent_name=self.name,
            thread_id=context.thread_id,
            run_id=context.run_id,
            description=self.description,
            messages=context.messages,
        ) as span:
            response = await compose(self._middleware, "run", context, innermost)
            added = [each.message for each in response.messages if each.message is not None]
            span.answered(added, usage=response.usage, finish_reason=response.finish_reason)
            return response

    def _response(self, run: Run, thread: ThreadT, setup: Setup) -> AgentResponse[ThreadT]:
        state = run.state
        return AgentResponse(
            run_id=state.run_id,
            thread=thread.bound_to(self),
            messages=list(state.added),
            usage=state.usage,
            finish_reason=state.finish_reason,
            approvals=pending(thread.runs, state),
            response_format=setup.response_format,
        )


def _stops(stopper: Callable[[Stop], None] | None) -> Callable[[Run], None]:
    """Tells a stream how the run that it follows is stopped."""

    def started(run: Run) -> None:
        def stop() -> None:
            run.stopped = True

        if stopper is not None:
            stopper(stop)

    return started
