"""One context provider in one run: what it keeps of the thread, what it was shown, and what it gave."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from pydantic import BaseModel, ValidationError

from clew.agents.context.hook_context import HookContext
from clew.agents.tools import Tool, as_tools, tool
from clew.domain.context.events import ContextProvided, ContextStateRecorded
from clew.domain.context.kept import KeptState
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, check_json, check_text
from clew.domain.memory.facts import Fact
from clew.domain.messages import Message, check_message
from clew.domain.runs.definitions import Definitions, blobs
from clew.domain.values import explain

_EMPTY: tuple[Json, ...] = (None, {}, [], "")
"""States that say nothing: one that a provider begins with is not recorded."""


class Slot:
    """A provider with its state. ``seen`` is the version of the last message that it was shown."""

    def __init__(self, provider: ContextProvider, context: HookContext) -> None:
        self.provider = provider
        self.context = context
        self.watches = type(provider).on_message is not ContextProvider.on_message
        self.tools: tuple[Tool, ...] = ()
        self.given: Context | None = None
        self.broken = False
        """Whether its state could not be had: then it takes no part in the run, and its state stays as it is."""
        self.seen = 0
        self._seen_recorded = 0
        self._recorded: Json = None
        self._kept = False
        self._now: Json = None

    # State

    def load(self, kept: KeptState | None, seen: int) -> None:
        """Take up what is kept of the thread, if anything is. Raises InvalidContentError for what is no such state."""
        self.seen = self._seen_recorded = max(seen, 0 if kept is None else kept.seen)
        if kept is not None:
            self._kept, self._recorded, self._now = True, kept.state, kept.state
            self.restore()

    def look(self) -> None:
        """Take in what a hook made of the state. Raises InvalidContentError for what is no JSON."""
        state = self.context.state
        dumped = state.model_dump(mode="json") if isinstance(state, BaseModel) else state
        check_json(dumped, f"state of {self.provider.id}")
        self._now = deepcopy(dumped)

    def restore(self) -> None:
        """Forget what a hook made of the state."""
        model = self.provider.state_model
        if model is None or self._now is None:
            self.context.state = deepcopy(self._now)
            return
        try:
            self.context.state = model.model_validate(self._now)
        except ValidationError as error:
            said = explain(model.__name__, error)
            raise InvalidContentError(f"The state of {self.provider.id!r} is no {model.__name__}: {said}") from None

    def state(self, *, shown: bool) -> ContextStateRecorded | None:
        """What is to be recorded of the state, None when it is on the log; ``shown`` counts what was shown, too."""
        changed = self._now != self._recorded if self._kept else self._now not in _EMPTY
        if self.broken:
            return None
        if not changed and not (shown and self.watches and self.seen > self._seen_recorded):
            return None
        self._kept, self._recorded, self._seen_recorded = True, self._now, self.seen
        return ContextStateRecorded(provider=self.provider.id, state=deepcopy(self._now), seen=self.seen)

    # What it gives

    def give(self, found: object, before: int, others: Sequence[Tool]) -> ContextProvided | None:
        """What it gives, checked, as what is to be recorded of it; None for nothing.

        ``before`` is the version that its messages go before, ``others`` are tools whose names are taken. Raises
        InvalidContentError or AgentConfigurationError for what is no context.
        """
        context = self._context(found)
        self._take_tools(context, others)
        self.given = context
        for citation in context.citations:
            self.context.cite(citation)
        provided = ContextProvided(
            provider=self.provider.id,
            instructions=context.instructions or None,
            messages=() if context.persist else tuple(context.messages),
            before=before if context.messages and not context.persist else 0,
            tools=tuple(blob.digest.hex() for blob in blobs(self.definitions)),
            reads=self.context.reads,
            facts=tuple(fact.reference for fact in context.facts),
            citations=tuple(dict(citation) for citation in context.citations),
        )
        says_nothing = provided == ContextProvided(provider=self.provider.id)
        return None if says_nothing and not self.provider.every_model_call else provided

    def give_tools(self, found: object, others: Sequence[Tool]) -> None:
        """Take the tools of what it gives, and no more: the rest is on the log."""
        self._take_tools(self._context(found), others)

    @property
    def definitions(self) -> Definitions:
        """Its tools as definitions."""
        return Definitions(None, tuple(tool.schema for tool in self.tools))

    def _take_tools(self, context: Context, others: Sequence[Tool]) -> None:
        idempotent = self.provider.idempotent_tools
        tools = as_tools(
            [
                tool(each, idempotent=idempotent) if callable(each) and not isinstance(each, Tool) else each
                for each in context.tools
            ]
        )
        as_tools((*others, *tools))  # no two may have one name
        self.tools = tools

    def _context(self, found: object) -> Context:
        if found is None:
            return Context()
        if not isinstance(found, Context):
            raise InvalidContentError(f"invoking gave {type(found).__name__}, which is no Context.")
        if found.instructions is not None:
            check_text(found.instructions, "instructions")
        for message in _each(found.messages, Message, "messages"):
            check_message(message)
        _each(found.facts, Fact, "facts")
        return found


def persisted(found: object) -> tuple[Message, ...]:
    """The messages of a context that become real ones."""
    return tuple(found.messages) if isinstance(found, Context) and found.persist else ()


def _each(values: object, of: type, where: str) -> Sequence[Message]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(each, of) for each in values):
        raise InvalidContentError(f"{where} of a Context must be a list of {of.__name__}s.")
    return values
