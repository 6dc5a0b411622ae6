"""Agents: a model, instructions and tools that run on threads. An agent holds no conversation itself."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, Unpack, cast, overload

from clew.agents import background_loop
from clew.agents.admission import Admission
from clew.agents.agent_tools import agent_tool
from clew.agents.background_runs import BackgroundRun, begin_in_background
from clew.agents.guardrails import Guardrail, checked_guardrails
from clew.agents.handoffs import as_handoffs, find_handoff
from clew.agents.history_replication import HistoryStores
from clew.agents.journal import Emit
from clew.agents.left_runs import continue_left_runs
from clew.agents.middleware import Middleware, RunContext, compose
from clew.agents.response import AgentResponse, pending_approvals
from clew.agents.response_formats import response_format_of
from clew.agents.run_admission import CarriedOut, NewRun, begin_run, compare_with_last_run, resume_run
from clew.agents.run_setup import (
    ContinueOptions,
    Input,
    MissingReports,
    OnChangedAgent,
    OnExpiredServiceThread,
    OnMissingProvider,
    Providers,
    ReadFrom,
    RunOptions,
    RunSetup,
    ToolFunction,
    check_history_parts,
    check_mode,
    check_on_expired,
    check_options,
    check_parts,
    check_reports,
    checked_limits,
    input_messages,
    rules_of,
    split_tools,
)
from clew.agents.stream import AgentStream
from clew.agents.telemetry import Telemetry, run_span
from clew.agents.tool_use import ToolUseBehavior, checked_behavior
from clew.agents.tools import Approval, IsEnabled, Tool, as_tools
from clew.domain.context.provider import ContextProvider, ContextProviders, as_providers
from clew.domain.errors import InvalidContentError
from clew.domain.history_stores import StoreFactory
from clew.domain.json_values import Json, JsonObject, canonical, check_flags, check_text
from clew.domain.messages import Message
from clew.domain.models.client import ModelClient, ServiceReference, ThreadKind
from clew.domain.reducers.reducer import Reducer
from clew.domain.runs.errors import (
    AgentConfigurationError,
    NoOpenRunError,
    UnsupportedThreadError,
)
from clew.domain.runs.events import AgentIdentity, RunStarted
from clew.domain.runs.ports import EnginePort, LocalT_co, OnExisting, RemoteT_co, RunKey, ThreadPort, ThreadT
from clew.domain.runs.request_construction import Definitions, checked_options
from clew.domain.streams import check_id, check_idempotency_key, digest

_KEYED_ID = 26
"""Hex digits of the id of a thread that is derived from an idempotency key: two keys never have the same."""

_KEPT_OPTIONS = frozenset({"actor", "deps", "response_format", "max_rounds", "max_seconds", "strict_media"})
"""The options of a run that also hold for an agent to which it hands the conversation."""

_engine_factories: list[Callable[[], EnginePort[Any, Any]]] = []


def set_engine_factory(factory: Callable[[], EnginePort[Any, Any]]) -> None:
    """Set the function that creates the engine of an agent without one."""
    _engine_factories[:] = [factory]


class Agent(Generic[LocalT_co, RemoteT_co]):
    """The base of ``clew.Agent``, generic in its thread classes. ``clew.Agent`` documents the arguments."""

    def __init__(  # noqa: PLR0913  # named arguments, each documented at the front door
        self,
        client: ModelClient,
        *,
        engine: EnginePort[LocalT_co, RemoteT_co] | None = None,
        id: str | None = None,
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
        reset_tool_choice: bool = True,
        tool_use_behavior: ToolUseBehavior = "run_llm_again",
        guardrails: Sequence[Guardrail] = (),
        handoffs: Sequence[Any] = (),
        on_changed_agent: OnChangedAgent = "warn",
        on_missing_provider: OnMissingProvider = "warn",
        on_expired_service_thread: OnExpiredServiceThread = "raise",
        strict_media: bool = False,
    ) -> None:
        self.id = id or name or "agent"
        check_id(self.id, "agent id")
        for text, where in ((name, "name"), (description, "description"), (instructions, "instructions")):
            if text is not None:
                check_text(text, where)
        check_reports(on_changed_agent=on_changed_agent, on_missing_provider=on_missing_provider)
        check_on_expired(on_expired_service_thread)
        check_flags(reset_tool_choice=reset_tool_choice, strict_media=strict_media)
        check_parts(client, model, tuple(middleware))
        check_history_parts(reducer, history_store, read_history_from)
        self.client = client
        self.name = name
        self.description = description
        self.instructions = instructions
        self.tools, servers = split_tools(tools)
        self.context_providers = as_providers((*as_providers(context_providers), *servers))
        self.reducer = reducer
        self.model = model
        self._engine = engine
        self._options = checked_options(options)
        self._middleware = tuple(middleware)
        self._telemetry = Telemetry() if telemetry is None else telemetry
        self._limits = checked_limits(max_rounds, max_seconds, retries)
        self._stores = None if history_store is None else HistoryStores(history_store)
        self._read_from = read_history_from
        self._tool_use = checked_behavior(tool_use_behavior)
        self._resets_tool_choice = reset_tool_choice
        self._guardrails = checked_guardrails(guardrails)
        self.handoffs: Sequence[Any] = as_handoffs(handoffs)
        self._on_changed = on_changed_agent
        self._on_missing = on_missing_provider
        self._on_expired = on_expired_service_thread
        self._strict_media = strict_media
        self._reports = MissingReports()
        self._compared: dict[str, None] = {}
        self._parts: tuple[object, ...] = ()
        self._setup: RunSetup | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def identity(self) -> AgentIdentity:
        """The id, the name and the type of the agent, as events record them."""
        return AgentIdentity(id=self.id, name=self.name, type=type(self).__name__)

    # Threads

    @property
    def engine(self) -> EnginePort[LocalT_co, RemoteT_co]:
        """The engine on which the agent starts threads."""
        if self._engine is None:
            if not _engine_factories:
                raise AgentConfigurationError(
                    "The agent has no engine. Give Agent(engine=…), or import it: from clew import Agent."
                )
            self._engine = _engine_factories[0]()
        return self._engine

    async def get_local_thread(self, messages: Sequence[Message] | None = None) -> LocalT_co:
        """A new thread whose history Clew holds, with its first messages if there are any.

        Raises UnsupportedThreadError if the client cannot run on one.
        """
        self._check_kind("local")
        thread = (await self.engine.start_thread(messages=messages or ())).bound_to(self)
        await thread.notify("on_thread_created", list(messages or ()))
        return thread

    async def get_remote_thread(
        self, service_thread_id: str | ServiceReference | None = None, *, read_history: bool = False
    ) -> RemoteT_co:
        """A new thread whose history the client's service holds, or one that continues there.

        ``service_thread_id`` is the service's id of a response or a conversation; give a ``ServiceReference`` if the id
        does not begin with its kind, as OpenAI's ids do. With ``read_history`` the record begins with the messages that
        the service has; their metadata says that they come from it (``service``). Raises UnsupportedThreadError if the
        client cannot run on such a thread, and ModelError if they cannot be read.
        """
        self._check_kind("remote")
        held: tuple[Message, ...] = ()
        if isinstance(service_thread_id, str) and self.client.wire.has_tasks:
            service_thread_id = ServiceReference(kind="conversation", id=service_thread_id)
        if read_history:
            held = await self._held(service_thread_id)
        thread = (await self.engine.start_remote_thread(service_thread_id, held)).bound_to(self)
        await thread.notify("on_thread_created", [])
        return thread

    async def _held(self, service_thread_id: str | ServiceReference | None) -> tuple[Message, ...]:
        read = getattr(self.client, "service_history", None)
        if service_thread_id is None or read is None:
            raise AgentConfigurationError(
                "read_history: give service_thread_id=, the service's id of a response or a conversation, and a client "
                "that can read it."
            )
        reference = service_thread_id
        if not isinstance(reference, ServiceReference):
            reference = ServiceReference.named(reference)
        read_from: JsonObject = {"service": reference.model_dump()}
        return tuple([message.model_copy(update={"metadata": read_from}) for message in await read(reference)])

    async def thread(self, thread_id: str) -> LocalT_co | RemoteT_co:
        """The thread with that id, bound to the agent, so ``thread.run()`` runs it. Raises UnknownThreadError."""
        return await self._bind(await self.engine.thread(thread_id))

    async def deserialize_thread(
        self, document: JsonObject, *, on_existing: OnExisting = "raise", as_new: bool = False
    ) -> LocalT_co | RemoteT_co:
        """The thread in a document of ``thread.serialize()``, restored in the agent's engine and bound to the agent.

        See ``engine.restore_thread`` for the checks and the errors.
        """
        return await self._bind(await self.engine.restore_thread(document, on_existing=on_existing, as_new=as_new))

    async def _bind(self, thread: ThreadT) -> ThreadT:
        setup = self._own_setup()
        setup.compared.pop(thread.id, None)
        await compare_with_last_run(setup, thread)
        return thread.bound_to(self)

    def _check_thread(self, thread: ThreadPort) -> None:
        if not hasattr(thread, "runs"):
            kind = type(thread).__name__
            raise AgentConfigurationError(
                f"run: {kind} is not a thread of an Engine. Give one from engine.start_thread() or engine.thread(id)."
            )
        self._check_kind(thread.kind)

    def _check_kind(self, kind: ThreadKind) -> None:
        if kind not in self.client.thread_kinds:
            raise UnsupportedThreadError(type(self.client).__name__, kind, self.client.thread_kinds)
        if kind == "remote" and self.reducer is not None:
            raise AgentConfigurationError(
                f"reducer: the service that holds a remote thread limits its history, so {self.reducer.name} cannot "
                "reduce it. Leave it out, or run on a local thread."
            )

    # Running

    @overload
    def run(
        self,
        input: Input = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, AgentResponse[LocalT_co | RemoteT_co]]: ...
    @overload
    def run(
        self,
        input: Input = None,
        *,
        stream: Literal[True],
        **options: Unpack[RunOptions],
    ) -> AgentStream[LocalT_co | RemoteT_co]: ...
    @overload
    def run(
        self,
        input: Input = None,
        *,
        background: Literal[True],
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, BackgroundRun[LocalT_co | RemoteT_co]]: ...
    def run(
        self,
        input: Input = None,
        *,
        stream: bool = False,
        background: bool = False,
        **options: Unpack[RunOptions],
    ) -> (
        Coroutine[Any, Any, AgentResponse[LocalT_co | RemoteT_co]]
        | AgentStream[LocalT_co | RemoteT_co]
        | Coroutine[Any, Any, BackgroundRun[LocalT_co | RemoteT_co]]
    ):
        """Run the agent on some input. Everything it does is recorded on a thread as it happens.

        Without ``input`` it answers the messages on the thread; without a ``thread`` it starts one: see the ``thread``
        of the response. With ``stream`` it returns an AgentStream of updates instead of a coroutine. With
        ``background`` it returns a BackgroundRun when the run is on the log, and the run continues without its caller.
        RunOptions describes the options: thread, actor, fork, at, rewind_to, tools, context_providers, model, options,
        response_format, deps, on_conflict, abandon_run, idempotency_key, max_rounds, max_seconds,
        strict_media.

        Raises UnsupportedThreadError, RunInProgressError or ApprovalPendingError before anything is recorded; and
        ModelError, ToolFailedError or RunLimitError after the steps so far and the error are recorded.
        """
        check_options("run", options, RunOptions)
        messages = input_messages("run", input)
        if background or "rewind_to" in options:
            check_mode(options, stream=stream, background=background)
        setup = self._run_setup(options)
        key = None if options.get("idempotency_key") is None else self._run_key(messages, options)

        async def execute(emit: Emit | None, admission: Admission | None) -> AgentResponse[LocalT_co | RemoteT_co]:
            thread = await self._target(messages, options)
            on_conflict, abandon = options.get("on_conflict", "raise"), options.get("abandon_run", False)
            new = NewRun(uuid.uuid4().hex[:16], messages, on_conflict, abandon, key, options.get("rewind_to"))
            with_attached = self._with_attached(setup, thread, options)
            admit = partial(begin_run, with_attached, thread, new, emit=emit, admission=admission)
            if setup.is_observed:
                return await self._observe(setup, thread.id, new.run_id, messages, admit)
            return await self._response(await admit(), setup)

        if background:
            return begin_in_background(execute, self)
        return AgentStream(execute) if stream else execute(None, None)

    @overload
    def continue_run(
        self, thread: ThreadT, *, stream: Literal[False] = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[ThreadT]]: ...
    @overload
    def continue_run(
        self, thread: ThreadT, *, stream: Literal[True], **options: Unpack[ContinueOptions]
    ) -> AgentStream[ThreadT]: ...
    @overload
    def continue_run(
        self, thread: ThreadT, *, background: Literal[True], **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, BackgroundRun[ThreadT]]: ...
    def continue_run(
        self, thread: ThreadT, *, stream: bool = False, background: bool = False, **options: Unpack[ContinueOptions]
    ) -> (
        Coroutine[Any, Any, AgentResponse[ThreadT]] | AgentStream[ThreadT] | Coroutine[Any, Any, BackgroundRun[ThreadT]]
    ):
        """Continue the open run of a thread: after a crash, or when its approvals are decided.

        ``stream`` and ``background`` are as in ``run``.

        Steps that are on the log are not repeated. A tool that was running when the process died is called again if it
        is idempotent; for any other tool an approval is requested (``outcome-unknown``). The options are actor, deps,
        tools, context_providers, response_format and on_conflict (``raise`` or ``wait``). Raises NoOpenRunError,
        ApprovalPendingError, RunInProgressError, AgentChangedError and the errors of ``run``.
        """
        check_options("continue_run", options, ContinueOptions)
        check_mode({}, stream=stream, background=background)
        run_options: RunOptions = {
            "actor": options.get("actor"),
            "deps": options.get("deps"),
            "tools": options.get("tools", ()),
            "context_providers": options.get("context_providers"),
            "response_format": options.get("response_format"),
        }
        setup = self._run_setup(run_options)

        async def execute(emit: Emit | None, admission: Admission | None) -> AgentResponse[ThreadT]:
            self._check_thread(thread)
            open_run = (await thread.runs.control(fresh=True)).run
            if open_run is None:
                raise NoOpenRunError(thread.id)
            on_conflict = options.get("on_conflict", "raise")
            admit = partial(resume_run, setup, thread, on_conflict=on_conflict, emit=emit, admission=admission)
            if setup.is_observed:
                return await self._observe(setup, thread.id, open_run.id, (), admit)
            return await self._response(await admit(), setup)

        if background:
            return begin_in_background(execute, self)
        return AgentStream(execute) if stream else execute(None, None)

    async def continue_runs(self, **options: Unpack[ContinueOptions]) -> list[BackgroundRun[LocalT_co | RemoteT_co]]:
        """Continue, in the background, the runs of this agent whose process has ended. For services that start.

        It waits until no process executes them: up to thirty seconds after a process was killed, and not at all after
        one that has closed its engine. Runs whose approvals are decided continue, too; those that wait for approvals
        stay open, and those of calls of other agents continue with these. The options are those of
        ``continue_run``. Raises an ExceptionGroup of the errors of runs that cannot be continued, after the others
        continue.
        """
        waiting: ContinueOptions = {**options, "on_conflict": "wait"}

        def continue_run(
            thread: LocalT_co | RemoteT_co,
        ) -> Coroutine[Any, Any, BackgroundRun[LocalT_co | RemoteT_co]]:
            return self.continue_run(thread, background=True, **waiting)

        return await continue_left_runs(self.engine, self._runs, continue_run)

    def _runs(self, started: RunStarted) -> bool:
        """Whether a run is this agent's, or that of an agent to which it handed the conversation."""
        handed = started.handed_from is not None and find_handoff(self._own_setup().handoffs, started.agent.id)
        return started.agent.id == self.id or bool(handed)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval = "never",
        is_enabled: IsEnabled = True,
        input: Callable[..., Any] | None = None,
        result: Callable[[AgentResponse[Any]], Any] | None = None,
    ) -> Tool:
        """A tool with which another agent asks this one. Its name and description are those of the agent unless given.

        ``approval`` and ``is_enabled`` are as in ``tool``. ``input`` is a function, sync or async, whose parameters are
        those of the tool, in place of one text; it returns the input of the run. ``result`` gets the response, and
        returns the result of the tool, in place of the text or the value of the answer. Both must do the same when they
        are called again, after a crash.

        Each call runs this agent on a new thread. The thread is linked with the call on both logs, its tokens count in
        the response of the caller, and so do its approvals. If the process dies, ``continue_run`` of the caller also
        continues the run on that thread. Raises InvalidToolError.
        """
        return agent_tool(
            self,
            {"name": name, "description": description, "approval": approval, "is_enabled": is_enabled},
            input,
            result,
        )

    def run_sync(
        self,
        input: Input = None,
        **options: Unpack[RunOptions],
    ) -> AgentResponse[LocalT_co | RemoteT_co]:
        """The same as ``await agent.run(…)``, for scripts without an event loop."""
        return background_loop.run(self.run(input, **options))

    async def _target(self, messages: Sequence[Message], options: RunOptions) -> LocalT_co | RemoteT_co:
        """The thread to run on: the given one, a fork of it, or a new one."""
        thread, fork, at = options.get("thread"), options.get("fork", False), options.get("at")
        if thread is None:
            if fork or at is not None:
                raise AgentConfigurationError("fork= and at= need the thread to fork. Give thread=.")
            if not messages:
                raise InvalidContentError("run: there is nothing to answer. Give some input, or a thread= to answer.")
            return self.engine.unstarted_thread(self.client.thread_kinds[0], self._keyed_id(options))
        self._check_thread(thread)
        on_thread = cast("LocalT_co | RemoteT_co", thread)  # an engine has no other threads
        if not fork and at is None:
            return on_thread
        return await on_thread.branch(at, self._keyed_id(options, thread.id))

    def _run_key(self, messages: Sequence[Message], options: RunOptions) -> RunKey | None:
        """The idempotency key of a run, which stands for the agent and the input."""
        key = options.get("idempotency_key")
        if key is None:
            return None
        check_idempotency_key(key)
        if options.get("on_conflict") == "fork":
            raise AgentConfigurationError(
                "run: idempotency_key= and on_conflict='fork' exclude each other: the same key would name two threads."
            )
        content = [self.id, *(message.model_dump(mode="json") for message in messages)]
        if (to := options.get("rewind_to")) is not None:
            content.append({"rewind_to": str(to)})
        return RunKey(key, canonical(content).encode())

    def _keyed_id(self, options: RunOptions, parent: str = "") -> str | None:
        """The id of a thread that a run with a key starts: the same whenever the run is asked for again."""
        key = options.get("idempotency_key")
        if key is None:
            return None
        parts: list[Json] = [self.id, options.get("actor"), parent, key]
        return digest(canonical(parts).encode()).hex()[:_KEYED_ID]

    def _with_attached(self, setup: RunSetup, thread: ThreadPort, options: RunOptions) -> RunSetup:
        """Attach the providers of a run that starts its thread to that thread."""
        if not setup.providers.run or options.get("thread") is not None:
            return setup
        thread.context_providers.add(*setup.providers.run)
        return replace(setup, providers=setup.providers._replace(run=()))

    async def _observe(
        self,
        setup: RunSetup,
        thread_id: str,
        run_id: str,
        messages: Sequence[Message],
        admit: Callable[[], Awaitable[CarriedOut[ThreadT]]],
    ) -> AgentResponse[ThreadT]:
        """Carry out a run within a telemetry span and the middleware."""
        with run_span(
            self._telemetry,
            agent_id=self.id,
            agent_name=self.name,
            thread_id=thread_id,
            run_id=run_id,
            description=self.description,
            messages=messages,
        ) as span:
            if self._middleware:

                async def carry_out() -> AgentResponse[ThreadT]:
                    return await self._response(await admit(), setup)

                context = RunContext(**setup.about(thread_id, run_id), messages=tuple(messages))
                response = await compose(self._middleware, "run", context, carry_out)
            else:
                response = await self._response(await admit(), setup)
            added = [each.message for each in response.messages if each.message is not None]
            span.answered(added, usage=response.usage, cost=response.cost, finish_reason=response.finish_reason)
            return response

    async def _response(self, done: CarriedOut[ThreadT], setup: RunSetup) -> AgentResponse[ThreadT]:
        state, thread = done.state, done.thread
        if done.response is not None:
            return replace(done.response, thread=thread.bound_to(self))
        return AgentResponse(
            run_id=done.run_id,
            thread=thread.bound_to(self),
            messages=list(state.added),
            usage=state.usage,
            cost=state.cost,
            finish_reason=state.finish_reason,
            approvals=await pending_approvals(thread.runs, state) if state.calls else [],
            response_format=setup.response_format,
            agent=done.agent or self,
        )

    def _own_setup(self) -> RunSetup:
        """The setup of a run without options. It is built once, and again after a public attribute changes."""
        parts = (
            self.client,
            self.client.model,
            self.client.options,
            self.id,
            self.name,
            self.instructions,
            self.tools,
            self.context_providers,
            self.reducer,
            self.model,
            tuple(self.handoffs),
        )
        if self._setup is None or self._parts != parts:
            self._parts = parts
            handoffs = as_handoffs(self.handoffs)
            tools = as_tools((*self.tools, *(each.as_tool() for each in handoffs))) if handoffs else self.tools
            self._setup = RunSetup(
                identity=self.identity,
                client=self.client,
                model=self.model or self.client.model,
                definitions=Definitions(
                    self.instructions,
                    tuple(tool.schema for tool in tools),
                    None,
                    len(tools),
                    self.identity.name,
                ),
                tools=tools,
                options={**self.client.options, **self._options},
                limits=self._limits,
                telemetry=self._telemetry,
                middleware=self._middleware,
                rules=rules_of(tools),
                providers=Providers(self.context_providers),
                tool_use=self._tool_use,
                resets_tool_choice=self._resets_tool_choice,
                guardrails=self._guardrails,
                handoffs=handoffs,
                on_changed=self._on_changed,
                compared=self._compared,
                on_missing=self._on_missing,
                on_expired=self._on_expired,
                strict_media=self._strict_media,
                reports=self._reports,
                reducer=self.reducer,
                stores=self._stores,
                read_from=self._read_from,
            )
        return self._setup

    def _run_setup(self, options: RunOptions) -> RunSetup:
        """The setup of a run with these options."""
        actor = options.get("actor")
        if actor is not None:
            check_id(actor, "actor")
        own = self._own_setup()
        changes: dict[str, Any] = {}
        servers: tuple[ContextProvider, ...] = ()
        format_ = options.get("response_format")
        if format_ is not None or options.get("tools"):
            of_run, servers = split_tools(options.get("tools", ()))
            tools = as_tools((*own.tools, *of_run))
            changes["tools"] = tools
            changes["rules"] = rules_of(tools)
            changes["definitions"] = Definitions(
                self.instructions,
                tuple(tool.schema for tool in tools),
                response_format_of(format_),
                len(own.tools),
                self.identity.name,
            )
        if options.get("options") is not None:
            changes["options"] = {**own.options, **checked_options(options.get("options"))}
        rounds, seconds = options.get("max_rounds"), options.get("max_seconds")
        if rounds is not None or seconds is not None:
            limits = self._limits
            changes["limits"] = checked_limits(
                limits.rounds if rounds is None else rounds,
                limits.seconds if seconds is None else seconds,
                limits.retries,
            )
        given = options.get("context_providers")
        if given is not None or servers:
            changes["providers"] = own.providers._replace(run=as_providers((*as_providers(given), *servers)))
        if options.get("model"):
            changes["model"] = options["model"]
        strict = options.get("strict_media")
        if strict is not None:
            check_flags(strict_media=strict)
            changes["strict_media"] = strict
        for name in ("actor", "deps", "response_format"):
            if options.get(name) is not None:
                changes[name] = options.get(name)
        changes |= _kept(options) if own.handoffs else {}
        return replace(own, **changes) if changes else own


def _kept(options: RunOptions) -> dict[str, Any]:
    """The change of a setup for the options that also hold for agents to which the run hands the conversation."""
    return {"kept_options": {name: value for name, value in options.items() if name in _KEPT_OPTIONS}}
