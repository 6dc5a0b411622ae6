"""One context provider in one run: what it keeps of the thread, what it was shown, and what it gave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, ValidationError

from clew.agents.hook_context import HookContext
from clew.agents.tools import Tool, as_tools, tool
from clew.domain.context.events import ContextProvided, ContextStateRecorded
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.context.provider_state import KeptState
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import MAX_BYTES, check_json, check_text
from clew.domain.memory.facts import Fact
from clew.domain.messages import Message, check_message
from clew.domain.runs.definitions import Definitions, blobs
from clew.domain.values import explain

_NOTHING = "null"
_EMPTY = frozenset({_NOTHING, "{}", "[]", '""'})
"""States that say nothing: one that a provider begins with is not recorded."""

_MOST = MAX_BYTES - 1024**2
"""Bytes of what a provider keeps, and of what it gives: an event has to hold it, with what is around it."""


class Slot:
    """A provider with its state. ``seen`` is the version of the last message that it was shown.

    States are held as JSON text: so none shares anything with what a hook may change, and two that are alike to Python
    but not to a reader of JSON, such as 1 and true, are two.
    """

    def __init__(self, provider: ContextProvider, context: HookContext) -> None:
        self.provider = provider
        self.context = context
        self.watches = type(provider).on_message is not ContextProvider.on_message
        self.tools: tuple[Tool, ...] = ()
        self.given: Context | None = None
        self.broken = False
        """Whether its state could not be had: then it takes no part in the run, and its state stays as it is."""
        self.loaded = False
        self.told = False
        """Whether it was told of the end of the run."""
        self.seen = 0
        self._seen_recorded = 0
        self._version = 0
        self._recorded = _NOTHING
        self._kept = False
        self.now = _NOTHING
        """The state as the last hook that did not fail has left it."""

    # State

    def load(self, kept: KeptState | None, seen: int) -> None:
        """Take up what is kept of the thread, if anything is. Raises InvalidContentError for what is no such state."""
        self.seen = self._seen_recorded = max(seen, 0 if kept is None else kept.seen)
        if kept is not None:
            self._take(kept)

    def adopt(self, kept: KeptState | None) -> None:
        """Take up what others have recorded since: a hook outside the run, such as that of a checkpoint."""
        if self.loaded and not self.broken and kept is not None and kept.version > self._version:
            self.seen = max(self.seen, kept.seen)
            self._take(kept)

    def _take(self, kept: KeptState) -> None:
        self._kept, self._version = True, kept.version
        self._recorded = self.now = _text(kept.state)
        self.restore()

    def look(self) -> None:
        """Take in what a hook made of the state. Raises InvalidContentError for what is no JSON, and too much of it."""
        state, where = self.context.state, f"state of {self.provider.id}"
        dumped = state.model_dump(mode="json", by_alias=True) if isinstance(state, BaseModel) else state
        check_json(dumped, where)
        now = _text(dumped)
        if now != self.now:
            _check_size(now, where)
            self._of(now)
            self.now = now

    def restore(self) -> None:
        """Forget what a hook made of the state."""
        self.context.state = self._of(self.now)

    def _of(self, text: str) -> Any:
        """What a hook is shown of a state. Raises InvalidContentError for one that the provider's model is not."""
        model = self.provider.state_model
        if model is None or text == _NOTHING:
            return json.loads(text)
        try:
            return model.model_validate_json(text)
        except ValidationError as error:
            said = explain(model.__name__, error)
            raise InvalidContentError(f"The state of {self.provider.id!r} is no {model.__name__}: {said}") from None

    def state(self, *, shown: bool) -> ContextStateRecorded | None:
        """What is to be recorded of the state, None when it is on the log; ``shown`` counts what was shown, too."""
        changed = self.now != self._recorded if self._kept else self.now not in _EMPTY
        if self.broken:
            return None
        if not changed and not (shown and self.watches and self.seen > self._seen_recorded):
            return None
        self._kept, self._recorded, self._seen_recorded = True, self.now, self.seen
        return ContextStateRecorded(provider=self.provider.id, state=json.loads(self.now), seen=self.seen)

    # What it gives

    def give(self, found: object, before: int, others: Sequence[Tool]) -> ContextProvided | None:
        """What it gives, checked, as what is to be recorded of it; None for nothing.

        ``before`` is the version that its messages go before, ``others`` are tools whose names are taken. Raises
        InvalidContentError or AgentConfigurationError for what is no context; then nothing of it counts.
        """
        context = self._context(found)
        tools = self._tools_of(context, others)
        citations = tuple(deepcopy(dict(citation)) for citation in context.citations)
        provided = ContextProvided(
            provider=self.provider.id,
            instructions=context.instructions or None,
            messages=() if context.persist else tuple(context.messages),
            before=before if context.messages and not context.persist else 0,
            tools=tuple(blob.digest.hex() for blob in blobs(_definitions(tools))),
            reads=self.context.reads,
            facts=tuple(fact.reference for fact in context.facts),
            citations=citations,
        )
        where = f"what {self.provider.id} gives"
        for citation in citations:
            check_json(citation, f"a citation in {where}")
        for each in (provided, *persisted(found)):
            _check_size(each.model_dump_json(), where)
        self.given, self.tools = context, tools
        for citation in citations:
            self.context.cite(citation)
        says_nothing = provided == ContextProvided(provider=self.provider.id)
        return None if says_nothing and not self.provider.every_model_call else provided

    def give_tools(self, found: object, others: Sequence[Tool]) -> None:
        """Take the tools of what it gives, and no more: the rest is on the log."""
        self.tools = self._tools_of(self._context(found), others)

    @property
    def definitions(self) -> Definitions:
        """Its tools as definitions."""
        return _definitions(self.tools)

    def _tools_of(self, context: Context, others: Sequence[Tool]) -> tuple[Tool, ...]:
        idempotent = self.provider.idempotent_tools
        tools = as_tools(
            [
                tool(each, idempotent=idempotent) if callable(each) and not isinstance(each, Tool) else each
                for each in context.tools
            ]
        )
        as_tools((*others, *tools))  # no two may have one name
        return tools

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


def _definitions(tools: Sequence[Tool]) -> Definitions:
    return Definitions(None, tuple(tool.schema for tool in tools))


def _text(state: Any) -> str:
    return json.dumps(state, ensure_ascii=False)


def _check_size(text: str, where: str) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > _MOST:
        raise InvalidContentError(f"{where}: {size:,} bytes, but it may be at most {_MOST:,}.")


def persisted(found: object) -> tuple[Message, ...]:
    """The messages of a context that become real ones."""
    return tuple(found.messages) if isinstance(found, Context) and found.persist else ()


def _each(values: object, of: type, where: str) -> Sequence[Message]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(each, of) for each in values):
        raise InvalidContentError(f"{where} of a Context must be a list of {of.__name__}s.")
    return values
