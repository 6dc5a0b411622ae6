"""Faults of llmock, a third-party server, and the requests in its journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.agents.run_checks import check_requests, check_store, events_of, short_history
from tests.agents.scripted_wires import CANARY
from tests.servers.llmock_server import CONTEXT_WINDOW, UNKNOWN_TOOL, Fault, Llmock

from clew.domain.models.client import ModelClient
from clew.domain.runs.errors import ContextWindowError, ModelError, ModelStreamError, ModelUnavailableError
from clew.engine import Agent, Engine
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient


class Case(NamedTuple):
    """A fault, the events that record it, and the error that the run raises."""

    fault: Fault | None
    events: tuple[str, ...]
    error: type[ModelError] | None = None
    streams: bool = True
    words: str = "What now?"


BROKEN = ("answer-interrupted", "run-failed")
CASES = [
    *(Case("rate limit", ("model-failed", "run-completed"), None, streams) for streams in (False, True)),
    *(Case("server error", ("model-failed", "run-failed"), ModelUnavailableError, each) for each in (False, True)),
    Case("cut", BROKEN, ModelStreamError),
    Case("stall", BROKEN, ModelStreamError),
    Case("malformed chunk", BROKEN, ModelStreamError),
    Case("early end", BROKEN, ModelStreamError),
    *(Case("invalid arguments", ("tool-failed", "run-completed"), None, streams) for streams in (False, True)),
    *(Case("unknown tool", ("tool-failed", "run-completed"), None, streams) for streams in (False, True)),
    *(
        Case(None, ("model-failed", "run-failed"), ContextWindowError, streams, "word " * CONTEXT_WINDOW)
        for streams in (False, True)
    ),
]
RECORDED_TYPES = {"model-failed", "answer-interrupted", "tool-failed", "run-failed", "run-completed"}


def weather(city: str) -> str:
    """Return the weather."""
    return f"fine in {city}"


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.fault or 'overflow'}{' (stream)' * case.streams}" for case in CASES]
)
def test_a_fault_is_on_the_log_and_the_next_run_works(llmock: Llmock, kind: str, case: Case, tmp_path: Path) -> None:
    asyncio.run(run_with_fault(llmock, kind, case, f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"))
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert CANARY.encode() not in stored


async def run_with_fault(llmock: Llmock, kind: str, case: Case, url: str) -> None:
    async with Engine.open(url) as engine:

        def agent(**options: Any) -> Agent:
            tools = [weather] if case.fault in {"invalid arguments", "unknown tool"} else []
            retries = 1 if case.fault == "rate limit" else 0
            return Agent(client_of(kind, llmock, **options), engine=engine, name="Clerk", tools=tools, retries=retries)

        clerk = agent()
        thread = await clerk.get_local_thread()
        if case.fault is not None:
            llmock.fault(case.fault, after_chunks=5)
        hasty = agent(timeout=2.0) if case.fault == "stall" else clerk
        error = await run_through(hasty, thread, case)
        assert error is None if case.error is None else type(error) is case.error
        events = await events_of(thread)
        assert tuple(event.type for event in events if event.type in RECORDED_TYPES) == case.events
        assert (await short_history(thread))[0] == ("user", case.words)
        partial = [text for role, text in await short_history(thread) if role == "assistant"]
        assert bool(partial) == (case.error is None or case.events == BROKEN)
        requests = await check_requests(thread, events)
        if isinstance(error, ContextWindowError):
            assert error.limit == CONTEXT_WINDOW
            assert error.tokens is not None
            assert error.tokens > CONTEXT_WINDOW
            thread = await thread.fork(at_message=0)  # the history would stay too long

        response = await clerk.run("And now?", thread=thread)
        assert response.text
        later = [each for each in await events_of(thread) if each.run_id == response.run_id]
        requests += await check_requests(thread, later)
        assert [each.body for each in llmock.journal()] == [each.body for each in requests]
        await check_store(engine, thread, await events_of(thread))
        if case.fault == "unknown tool":
            assert UNKNOWN_TOOL in str(requests[1].body)


def client_of(kind: str, llmock: Llmock, *, timeout: float = 60.0) -> ModelClient:
    made = OpenAIChatClient if kind == "chat" else OpenAIResponsesClient
    return made("gpt-4o", api_key=CANARY, base_url=llmock.base_url, timeout=timeout)


async def run_through(agent: Agent, thread: Any, case: Case) -> Exception | None:
    try:
        if case.streams:
            await agent.run(case.words, thread=thread, stream=True).get_final_response()
        else:
            await agent.run(case.words, thread=thread)
    except ModelError as error:
        return error
    return None
