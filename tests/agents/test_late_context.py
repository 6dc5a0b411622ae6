"""Context that changes from run to run as late system messages: the beginning of requests stays the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.agents.run_checks import events_of

from clew import Agent, Context, ContextProvider, Engine, KeepLast, Message, ScriptedChatClient, tool
from clew.domain.context.events import ContextProvided
from clew.domain.runs.events import ModelCalled
from clew.domain.runs.request_construction import NO_LONGER, REPLACES
from clew.infrastructure.scripted_client import call

pytestmark = pytest.mark.anyio

REPLACED = REPLACES.format(provider="memory")
GONE = NO_LONGER.format(provider="memory")


class Memory(ContextProvider):
    """Gives one context after the other, and then the last one again and again."""

    id = "memory"

    def __init__(self, *given: Context | None, every_model_call: bool = False) -> None:
        self.given = list(given)
        self.every_model_call = every_model_call

    async def invoking(self, ctx: Any, messages: Any) -> Context | None:
        del ctx, messages
        return self.given.pop(0) if len(self.given) > 1 else self.given[0]


def known(text: str) -> Context:
    return Context(instructions=text)


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


def client_of(*lines: Any) -> Any:
    client = ScriptedChatClient(list(lines) or (lambda _: "Yes."))
    client.late_context = True  # type: ignore[attr-defined]  # a client says so
    return client


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


async def requests_of(thread: Any) -> list[list[str]]:
    """The texts of the messages of each request; each is on the log, byte for byte."""
    texts: list[list[str]] = []
    for event in await events_of(thread):
        if isinstance(event.data, ModelCalled):
            request = await thread.request(event.version)
            assert request.verified or request.redacted
            texts.append([str(message["content"]) for message in request.body["messages"]])
    return texts


async def run(engine: Engine, thread: Any, provider: ContextProvider | None, *texts: str, **more: Any) -> None:
    given = {"client": client_of(), **more}
    agent = Agent(engine=engine, instructions="Be brief.", context_providers=provider or (), **given)
    for text in texts:
        await agent.run(text, thread=thread)


async def test_changed_context_comes_before_the_new_message_and_stays_there(engine: Engine) -> None:
    thread = await engine.start_thread()
    memory = Memory(known("Units: miles."), known("Units: kilometres."))
    await run(engine, thread, memory, "One?", "Two?", "Three?")
    first = ["Be brief.", "Units: miles.", "One?"]
    second = [*first, "Yes.", f"{REPLACED}\n\nUnits: kilometres.", "Two?"]
    assert await requests_of(thread) == [first, second, [*second, "Yes.", "Three?"]], "the same context is not repeated"


async def test_messages_of_a_provider_stay_at_their_places(engine: Engine) -> None:
    thread = await engine.start_thread()
    memory = Memory(*(Context(messages=[Message.user(f"Source {number}.")]) for number in range(2)))
    await run(engine, thread, memory, "One?", "Two?")
    first = ["Be brief.", "Source 0.", "One?"]
    assert await requests_of(thread) == [first, [*first, "Yes.", REPLACED, "Source 1.", "Two?"]]


async def test_context_that_is_gone_is_said_to_be_gone(engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(engine, thread, Memory(known("Units: miles."), None), "One?", "Two?", "Three?")
    *_, last = await requests_of(thread)
    assert last == ["Be brief.", "Units: miles.", "One?", "Yes.", GONE, "Two?", "Yes.", "Three?"]


async def test_a_provider_that_fails_changes_nothing(engine: Engine) -> None:
    class Failing(Memory):
        on_failure = "continue"

        async def invoking(self, ctx: Any, messages: Any) -> Context | None:
            if len(self.given) == 1:
                raise TimeoutError
            return await super().invoking(ctx, messages)

    thread = await engine.start_thread()
    await run(engine, thread, Failing(known("Units: miles."), None), "One?", "Two?")
    assert (await requests_of(thread))[-1] == ["Be brief.", "Units: miles.", "One?", "Yes.", "Two?"]


async def test_context_for_each_call_comes_after_the_results(engine: Engine) -> None:
    thread = await engine.start_thread()
    memory = Memory(known("Now: 1."), known("Now: 2."), every_model_call=True)
    client = client_of(call("look_up", order=7), "Done.", "Again.")
    await run(engine, thread, memory, "One?", "Two?", client=client, tools=[look_up])
    before = ["Be brief.", "Now: 1.", "One?", "None", "Order 7 is on its way."]
    assert (await requests_of(thread))[1:] == [
        [*before, f"{REPLACED}\n\nNow: 2."],
        [*before, f"{REPLACED}\n\nNow: 2.", "Done.", "Two?"],
    ]


async def test_after_a_fork_a_rewind_and_in_another_store(engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(engine, thread, Memory(known("A."), known("B."), known("C.")), "One?", "Two?", "Three?")
    one, two, three = (each for each in await thread.history() if each.role == "assistant")
    begin = ["Be brief.", "A.", "One?", "Yes."]
    replaced = f"{REPLACED}\n\nD."
    branch = await thread.fork(at=one.version)
    await run(engine, branch, Memory(known("D.")), "Fork?")
    assert (await requests_of(branch))[-1] == [*begin, replaced, "Fork?"]
    await thread.rewind(to=two.version)
    await run(engine, thread, Memory(known("D.")), "Again?")
    longer = [*begin, f"{REPLACED}\n\nB.", "Two?", "Yes.", replaced, "Again?"]
    assert (await requests_of(thread))[-1] == longer
    assert three.version not in [each.version for each in await thread.history()]
    document = await thread.serialize()
    async with Engine.open("memory:") as there:
        agent = Agent(client_of(), engine=there, instructions="Be brief.", context_providers=Memory(known("D.")))
        moved = await agent.deserialize_thread(document)
        await agent.run("There?", thread=moved)
        assert (await requests_of(moved))[-1] == [*longer, "Yes.", "There?"]


@pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")
async def test_a_run_that_continues_in_another_agent_keeps_its_context(engine: Engine) -> None:
    thread = await engine.start_thread()
    asks = {"tools": [tool(look_up, approval="always")], "client": client_of(call("look_up", order=7), "Done.")}
    await run(engine, thread, Memory(known("A.")), "One?")
    await run(engine, thread, Memory(known("B.")), "Two?", **asks)
    (approval,) = await thread.approvals()
    await approval.approve()
    agent = Agent(
        asks["client"],
        engine=engine,
        instructions="Be brief.",
        context_providers=Memory(known("C.")),
        tools=asks["tools"],
    )
    await agent.continue_run(thread)
    _, asked, answered = await requests_of(thread)
    assert asked == ["Be brief.", "A.", "One?", "Yes.", f"{REPLACED}\n\nB.", "Two?"]
    assert answered == [*asked, "None", "Order 7 is on its way."]


async def test_redacted_context_is_not_sent_again(engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(engine, thread, Memory(known("My secret is 7."), known("B.")), "One?", "Two?")
    (given, *_) = [event for event in await events_of(thread) if isinstance(event.data, ContextProvided)]
    await thread.redact(given.version)
    await run(engine, thread, Memory(known("B.")), "Three?")
    assert (await requests_of(thread))[-1] == ["Be brief.", "One?", "Yes.", "B.", "Two?", "Yes.", "Three?"]
    calls = [event.version for event in await events_of(thread) if isinstance(event.data, ModelCalled)]
    requests = [await thread.request(version) for version in calls]
    assert [request.redacted for request in requests] == [(given.version,)] * 2 + [()]
    assert not any(b"secret" in request.content for request in requests)


async def test_a_reducer_leaves_the_newest_context_only(engine: Engine) -> None:
    thread = await engine.start_thread()
    memory = Memory(*(known(f"Known {number}.") for number in range(4)))
    await run(engine, thread, memory, "One?", "Two?", "Three?", "Four?", reducer=KeepLast(1))
    newest = f"{REPLACED}\n\nKnown 3."
    assert (await requests_of(thread))[-1] == ["Be brief.", "Known 2.", "Yes.", newest, "Four?"]


async def test_many_changes_are_left_out_by_half(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.agents.context_assembly.MOST_LATE", 4)
    thread = await engine.start_thread()
    await run(engine, thread, Memory(*(known(f"Known {n}.") for n in range(7))), *(f"{n}?" for n in range(7)))
    counts = [sum("Known" in text for text in request) for request in await requests_of(thread)]
    assert counts == [1, 2, 3, 4, 3, 4, 3]


@pytest.mark.filterwarnings("ignore::clew.errors.MissingProviderWarning")
async def test_an_agent_without_providers_is_not_given_earlier_context(engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(engine, thread, Memory(known("A.")), "One?")
    await run(engine, thread, None, "Two?")
    assert (await requests_of(thread))[-1] == ["Be brief.", "One?", "Yes.", "Two?"]


async def test_other_clients_get_context_with_the_instructions(engine: Engine) -> None:
    thread = await engine.start_thread()
    memory = Memory(known("A."), known("B."))
    await run(engine, thread, memory, "One?", "Two?", client=ScriptedChatClient(["Yes.", "Yes."]))
    assert (await requests_of(thread))[-1] == ["Be brief.\n\nB.", "One?", "Yes.", "Two?"]
    calls = [event.data for event in await events_of(thread) if isinstance(event.data, ModelCalled)]
    assert [each.late for each in calls] == [None, None]
