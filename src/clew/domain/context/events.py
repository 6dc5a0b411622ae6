"""The events of components: their contributions, failures, states and history reductions."""

from __future__ import annotations

from operator import not_
from typing import Literal, TypeAlias

from pydantic import Field

from clew.domain import event_sentences
from clew.domain.event_types import UNDELETED, event_type, without
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.events import FactReference, ScopeRead
from clew.domain.messages import Message, Value, is_none
from clew.domain.runs.events import Failure, without_quotes

Hook: TypeAlias = Literal[
    "initial_state",
    "on_thread_created",
    "on_message",
    "invoking",
    "invoked",
    "on_checkpoint",
    "on_suspend",
    "on_resume",
    "on_thread_ended",
    "on_thread_deleted",
    "reduce",
    "history_store",
    "add_messages",
    "list_messages",
    "serialize",
    "update_from_state",
]
"""The hook or method of a component."""


@event_type(
    "context-provided",
    headline="A context provider gave to the run",
    sentence=event_sentences.context_provided,
    sample={"provider": "user-facts", "instructions": "Known: metric units"},
    remains=without("instructions", "messages", "citations"),
    statuses=UNDELETED,
)
class ContextProvided(Value):
    """A context provider contributed to the run. A contribution is for this run only, and not part of the history.

    ``messages`` come before the message at version ``before`` in the requests, at the end if that is 0. ``tools`` are
    the digests of tool schemas. ``reads`` are the scopes that it read, ``facts`` the facts that it used, and
    ``citations`` its sources.
    """

    provider: str
    instructions: str | None = Field(default=None, exclude_if=is_none)
    messages: tuple[Message, ...] = Field(default=(), exclude_if=not_)
    before: int = Field(default=0, exclude_if=not_)
    tools: tuple[str, ...] = Field(default=(), exclude_if=not_)
    reads: tuple[ScopeRead, ...] = Field(default=(), exclude_if=not_)
    facts: tuple[FactReference, ...] = Field(default=(), exclude_if=not_)
    citations: tuple[JsonObject, ...] = Field(default=(), exclude_if=not_)


@event_type(
    "context-failed",
    headline="A component failed",
    sentence=event_sentences.context_failed,
    sample={"provider": "mem0", "hook": "invoking", "error": {"kind": "TimeoutError"}},
    remains=without_quotes,
    statuses=UNDELETED,
)
class ContextFailed(Value):
    """A component failed or was too slow. The run continued without it, or failed, as its policy says."""

    provider: str
    hook: Hook
    error: Failure


@event_type(
    "context-state-recorded",
    headline="The state of a component was recorded",
    sentence=event_sentences.context_state_recorded,
    sample={"provider": "preferences", "state": {"units": "km"}},
    remains=without("state"),
    statuses=UNDELETED,
)
class ContextStateRecorded(Value):
    """The state of a component in this thread. ``seen`` is the version of the last message that it received."""

    provider: str
    state: Json = None
    seen: int = Field(default=0, exclude_if=not_)


@event_type(
    "history-reduced",
    headline="The history was reduced for the model",
    sentence=event_sentences.history_reduced,
    sample={"agent": "joker", "reducer": "keep-last(2)", "upto": 9, "left_out": [[2, 5]]},
    remains=without("summary"),
    statuses=UNDELETED,
)
class HistoryReduced(Value):
    """The part of the history that requests of an agent contain from now on; the history itself does not change.

    ``left_out`` are spans of versions, both ends included. ``summary`` is sent in their place, before the other
    messages. ``trimmed`` has versions of messages and the characters that their results are cut to. ``upto`` is the
    last version that the reducer saw: later messages are sent. ``over_budget`` is true if the messages that must be
    sent exceed the budget.
    """

    agent: str
    reducer: str
    upto: int
    left_out: tuple[tuple[int, int], ...] = ()
    summary: Message | None = Field(default=None, exclude_if=is_none)
    trimmed: tuple[tuple[int, int], ...] = Field(default=(), exclude_if=not_)
    over_budget: bool = Field(default=False, exclude_if=not_)


ContextEvent: TypeAlias = ContextProvided | ContextFailed | ContextStateRecorded | HistoryReduced
