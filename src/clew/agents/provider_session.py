"""A context provider in one run, or in one call outside a run: its hook context, its state and its contributions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, ValidationError

from clew.agents.provided_tools import as_tool
from clew.agents.tools import Tool, as_tools, tool
from clew.domain.context.events import ContextProvided, ContextStateRecorded
from clew.domain.context.provider import Context, ContextProvider, ProvidedTool
from clew.domain.context.state import ProviderState
from clew.domain.decider import Actor
from clew.domain.errors import InvalidContentError, ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import MAX_BYTES, JsonObject, check_json, check_text
from clew.domain.memory.events import ScopeRead
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import MemoryPort
from clew.domain.messages import Message, check_message, explain
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import ToolNameTakenError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.request_construction import Definitions

_NO_STATE = "null"
_EMPTY_STATES = frozenset({_NO_STATE, "{}", "[]", '""'})
"""Initial states that are not worth recording."""

_MAX_SIZE = MAX_BYTES - 1024**2
"""Bytes of a state, and of a contribution: an event must hold it together with its other fields."""


class ThreadView:
    """A thread, as its providers see it."""

    def __init__(self, thread: ThreadPort) -> None:
        self._thread = thread

    @property
    def id(self) -> str:
        """The id of the thread."""
        return self._thread.id

    @property
    def kind(self) -> ThreadKind:
        """Who holds the history."""
        return self._thread.kind

    async def history(self, *, last: int | None = None, before: HistoryMessage | None = None) -> list[HistoryMessage]:
        """The messages on its path, as of now; of those ``before`` a message, the ``last`` ones."""
        log = self._thread.runs
        history = await (log.history() if last is None and before is None else log.history_part(last, before))
        return list(history.messages)


class HookContext:
    """The first argument of a provider's hooks, in one run or in one call outside a run."""

    def __init__(
        self,
        thread: ThreadPort,
        provider: ContextProvider,
        *,
        agent: AgentIdentity | None,
        actor: str | None,
        run_id: str | None,
        by: Actor | None,
    ) -> None:
        self.state: Any = None
        self.thread = ThreadView(thread)
        self.agent = agent
        self.actor = actor or thread.runs.actor
        self.tenant = thread.runs.tenant
        self.run_id = run_id
        self.citations: list[JsonObject] = []
        self._thread = thread
        self._provider = provider
        self._by = by or Actor(self.actor)
        self._scopes: dict[str, MemoryPort] = {}

    @property
    def scope(self) -> MemoryPort:
        """The memory scope that the provider declares as its own. Raises ScopeError if it declares none."""
        if self._provider.scope is None:
            raise ScopeError(
                f"{self._provider.id!r} has no scope of its own, and an unset one is nobody's. Give scope='user/42'."
            )
        return self.memory(self._provider.scope)

    def memory(self, name: str) -> MemoryPort:
        """A memory scope, read as the thread reads it."""
        if name not in self._scopes:
            self._scopes[name] = self._thread.scope(
                name,
                run_id=self.run_id,
                actor=self._by.name,
                on_behalf_of=self._by.on_behalf_of,
                provider=self._provider.id,
                reads_only=name != self._provider.scope,
            )
        return self._scopes[name]

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        """The scopes that were read, and at which versions."""
        return tuple(read for scope in self._scopes.values() for read in scope.reads)

    async def reads_at(self, name: str) -> int | None:
        """The version at which the thread reads a scope or a document store, None for the newest."""
        return await self._thread.runs.reads_at(name)

    def cite(self, citation: JsonObject) -> None:
        """Add a source of the answer."""
        check_json(citation, "citation")
        if citation not in self.citations:
            self.citations.append(deepcopy(citation))


class ProviderSession:
    """A provider with its state. ``seen`` is the version of the last message that it was shown.

    States are held as JSON text. So a hook cannot change a recorded state by accident, and values that are equal in
    Python but not in JSON, such as 1 and true, are different states.
    """

    def __init__(self, provider: ContextProvider, context: HookContext) -> None:
        self.provider = provider
        self.context = context
        self.watches = type(provider).on_message is not ContextProvider.on_message
        self.tools: tuple[Tool, ...] = ()
        self.returned: Context | None = None
        self.broken = False
        """Whether its state could not be loaded. Then its hooks are not called, and its state does not change."""
        self.loaded = False
        self.ended = False
        """Whether its ``invoked`` hook was called."""
        self.seen = 0
        self.state_text = _NO_STATE
        """The state after the last hook that did not fail."""
        self._seen_recorded = 0
        self._version = 0
        self._provided = ContextProvided(provider=provider.id)
        self._recorded = _NO_STATE
        self._has_record = False

    @property
    def asks_again(self) -> bool:
        """Whether the provider is asked again before a later model call of the run."""
        provider, returned = self.provider, self.returned
        return provider.every_model_call or (returned is not None and provider.outdated(returned))

    # State

    def load(self, recorded: ProviderState | None, seen: int) -> None:
        """Load the recorded state, if any. Raises InvalidContentError if the provider's model does not accept it."""
        self.seen = self._seen_recorded = seen
        if recorded is not None:
            self._load(recorded)

    def reload(self, recorded: ProviderState | None) -> None:
        """Load a state that was recorded since: by a hook outside the run, such as that of a checkpoint."""
        if self.loaded and not self.broken and recorded is not None and recorded.version > self._version:
            self.seen = max(self.seen, recorded.seen)
            self._load(recorded)

    def _load(self, recorded: ProviderState) -> None:
        self._has_record, self._version = True, recorded.version
        self._recorded = self.state_text = _as_text(recorded.state)
        self.restore()

    def save(self) -> None:
        """Keep the state as a hook left it. Raises InvalidContentError if it is not JSON, or too large."""
        state, where = self.context.state, f"state of {self.provider.id}"
        dumped = state.model_dump(mode="json", by_alias=True) if isinstance(state, BaseModel) else state
        check_json(dumped, where)
        now = _as_text(dumped)
        if now != self.state_text:
            _check_size(now, where)
            self._parsed(now)
            self.state_text = now

    def restore(self) -> None:
        """Discard the changes that a hook made to the state."""
        self.context.state = self._parsed(self.state_text)

    def _parsed(self, text: str) -> Any:
        """A state as hooks get it. Raises InvalidContentError if the provider's model does not accept it."""
        model = self.provider.state_model
        if model is None or text == _NO_STATE:
            return json.loads(text)
        try:
            return model.model_validate_json(text)
        except ValidationError as error:
            problem = explain(model.__name__, error)
            raise InvalidContentError(
                f"The state of {self.provider.id!r} is not a {model.__name__}: {problem}"
            ) from None

    def unrecorded_state(self, *, with_seen: bool) -> ContextStateRecorded | None:
        """The event for a changed state, else None; ``with_seen`` also counts newly shown messages as a change."""
        changed = self.state_text != self._recorded if self._has_record else self.state_text not in _EMPTY_STATES
        if self.broken:
            return None
        if not changed and not (with_seen and self.watches and self.seen > self._seen_recorded):
            return None
        self._has_record, self._recorded, self._seen_recorded = True, self.state_text, self.seen
        return ContextStateRecorded(provider=self.provider.id, state=json.loads(self.state_text), seen=self.seen)

    # Contributions

    def accept(self, returned: object, before: int, others: Sequence[Tool]) -> ContextProvided | None:
        """Check what ``invoking`` returned, and return the event for it; None if it gave nothing.

        ``before`` is the version that its messages come before; ``others`` are tools whose names are taken. Raises
        InvalidContentError or AgentConfigurationError for an invalid context; then nothing of it counts.
        """
        context = _checked_context(returned)
        tools = self._tools_of(context, others)
        citations = tuple(deepcopy(dict(citation)) for citation in context.citations)
        provided = ContextProvided(
            provider=self.provider.id,
            instructions=context.instructions or None,
            messages=() if context.persist else tuple(context.messages),
            before=before if context.messages and not context.persist else 0,
            tools=tuple(blob.digest.hex() for blob in _definitions(tools).blobs),
            reads=self.context.reads,
            facts=tuple(fact.reference for fact in context.facts),
            citations=citations,
        )
        where = f"what {self.provider.id} gives"
        for citation in citations:
            check_json(citation, f"a citation in {where}")
        for each in (provided, *persisted_messages(returned)):
            _check_size(each.model_dump_json(), where)
        same, self._provided = provided == self._provided, provided
        self.returned, self.tools = context, tools
        for citation in citations:
            self.context.cite(citation)
        return None if same and not self.provider.every_model_call else provided

    def accept_tools(self, returned: object, others: Sequence[Tool]) -> None:
        """Use only the tools of what ``invoking`` returned: the rest is on the log."""
        context = _checked_context(returned)
        self.tools = self._tools_of(context, others)
        self.returned = context

    @property
    def definitions(self) -> Definitions:
        """Its tools as definitions."""
        return _definitions(self.tools)

    def _tools_of(self, context: Context, others: Sequence[Tool]) -> tuple[Tool, ...]:
        tools = as_tools([self._as_tool(each) for each in context.tools])
        taken = {tool.name for tool in others}
        for each in tools:
            if each.name in taken:
                raise ToolNameTakenError(each.name)
        return tools

    def _as_tool(self, given: Any) -> Any:
        if isinstance(given, ProvidedTool):
            return as_tool(given)
        is_function = callable(given) and not isinstance(given, Tool)
        return tool(given, idempotent=self.provider.idempotent_tools) if is_function else given


def persisted_messages(returned: object) -> tuple[Message, ...]:
    """The messages of a context that become messages of the thread."""
    return tuple(returned.messages) if isinstance(returned, Context) and returned.persist else ()


def _checked_context(returned: object) -> Context:
    if returned is None:
        return Context()
    if not isinstance(returned, Context):
        raise InvalidContentError(f"invoking gave {type(returned).__name__}, which is not a Context.")
    if returned.instructions is not None:
        check_text(returned.instructions, "instructions")
    for message in _checked_list(returned.messages, Message, "messages"):
        check_message(message)
    _checked_list(returned.facts, Fact, "facts")
    return returned


def _checked_list(values: object, of: type, where: str) -> Sequence[Message]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(each, of) for each in values):
        raise InvalidContentError(f"{where} of a Context must be a list of {of.__name__}s.")
    return values


def _definitions(tools: Sequence[Tool]) -> Definitions:
    return Definitions(None, tuple(tool.schema for tool in tools))


def _as_text(state: Any) -> str:
    return json.dumps(state, ensure_ascii=False)


def _check_size(text: str, where: str) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > _MAX_SIZE:
        raise InvalidContentError(f"{where}: {size:,} bytes, but it may be at most {_MAX_SIZE:,}.")
