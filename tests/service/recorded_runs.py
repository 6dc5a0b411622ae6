"""Recorded runs as agents leave them on a thread, built from intents alone: no agent executes."""

from __future__ import annotations

from clew.conversations import Conversations
from clew.domain.decider import Advance, RunStep
from clew.domain.messages import FunctionCall, Message
from clew.domain.models.client import TokenUsage
from clew.domain.runs.events import (
    AgentIdentity,
    AnswerInterrupted,
    ApprovalRequested,
    Failure,
    Fingerprint,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)
from clew.service.core import CommitOptions, commit
from clew.service.effects import run

JOKER = RunStarted(
    agent=AgentIdentity(id="joker", name="Joker"),
    fingerprint=Fingerprint(client="openai-chat", instructions="ab" * 32, tools=("cd" * 32, "ef" * 32)),
)
OVERLOADED = Failure(kind="ModelOverloadedError", message="Too many requests", status=429, code="rate_limit")


def record(
    conversations: Conversations, thread_id: str, run_id: str, *steps: RunStep, attempt: int = 1
) -> tuple[int, ...]:
    """Record the steps of a run and return their versions."""
    intent = Advance(run_id, attempt, steps)
    return run(commit(conversations._core, thread_id, intent, CommitOptions(actor="user:42"))).versions


def called(definitions: int, attempt: int = 1) -> ModelCalled:
    return ModelCalled(
        definitions=definitions,
        client="openai-chat",
        wire="openai-chat",
        model="gpt-x",
        digest="12" * 32,
        streamed=True,
        attempt=attempt,
    )


def answered(call: int, reason: str, tokens: tuple[int, int], ms: int) -> ModelAnswered:
    """Return the event for the answer in the previous message."""
    usage = TokenUsage(input_tokens=tokens[0], output_tokens=tokens[1])
    return ModelAnswered(call=call, message=-1, finish_reason=reason, usage=usage, first_ms=210, ms=ms)


def calling(name: str, arguments: str = "{}") -> Message:
    return Message(role="assistant", contents=(FunctionCall(call_id="c1", name=name, arguments=arguments),))


def with_a_tool(word: str = "W-1") -> tuple[RunEvent | Message, ...]:
    """Return a complete run of 14 events: one tool call, and a model that fails once before its last answer."""
    return (
        JOKER,
        Message.user(f"Where is {word}?"),
        called(-2),
        calling("look_up", f'{{"id": "{word}"}}'),
        answered(-2, "tool_calls", (120, 45), 830),
        ToolStarted(message=-2, index=0),
        Message.tool("c1", {"found": word}),
        ToolFinished(message=-4, index=0, result=-1, ms=12),
        called(-8),
        ModelFailed(call=-1, error=OVERLOADED, retry_in=2, ms=30),
        called(-10, attempt=2),
        Message.assistant(f"{word} is on its way."),
        answered(-2, "stop", (1_200, 10), 1_270),
        RunCompleted(finish_reason="stop"),
    )


def waiting(word: str = "W-1") -> tuple[RunEvent | Message, ...]:
    """Return the first 6 events of a run that waits for an approval."""
    return (
        JOKER,
        Message.user(f"Refund {word}."),
        called(-2),
        calling("refund", f'{{"id": "{word}"}}'),
        answered(-2, "tool_calls", (90, 9), 400),
        ApprovalRequested(message=-2, index=0, reason="approval"),
    )


def cut_short(word: str = "W-1") -> tuple[RunEvent | Message, ...]:
    """Return a run of 6 events that its caller cancelled."""
    return (
        JOKER,
        Message.user(f"Tell me about {word}."),
        called(-2),
        Message.assistant(f"{word} is"),
        AnswerInterrupted(call=-2, message=-1, reason="cancelled"),
        RunAbandoned(reason="cancelled"),
    )


def failing(word: str = "W-1") -> tuple[RunEvent | Message, ...]:
    """Return a run of 9 events in which a tool fails, then the model."""
    return (
        JOKER,
        called(-1),
        calling("look_up", f'{{"id": "{word}"}}'),
        answered(-2, "tool_calls", (10, 2), 90),
        Message.tool("c1", "error: invalid arguments"),
        ToolFailed(message=-3, index=0, result=-1, reason="invalid-arguments", kind="ValidationError"),
        called(-6),
        ModelFailed(call=-1, error=OVERLOADED, ms=15),
        RunFailed(error=OVERLOADED),
    )
