"""Thinking models with tools against each service's strict rules, whatever happened to the thread in between.

Each situation runs with each provider. The service refuses nothing, the answer arrives, each request is on the log byte
for byte, and the log names exactly the messages whose signed parts were not sent.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.agents.run_checks import events_of
from tests.servers.strict_anthropic import StrictAnthropic
from tests.servers.strict_bedrock import StrictBedrock
from tests.servers.strict_gemini import StrictGemini
from tests.servers.strict_reasoning import StrictReasoning
from tests.servers.strict_responses import StrictResponses

from clew import (
    Agent,
    AnthropicClient,
    BedrockClient,
    Context,
    ContextProvider,
    Engine,
    GeminiClient,
    KeepLast,
    Message,
    Middleware,
    OpenAIChatClient,
    OpenAIResponsesClient,
    ScriptedChatClient,
    Summarise,
)
from clew.agents.middleware import ModelCallContext
from clew.domain.call_pairing import model_view
from clew.domain.json_values import JsonObject
from clew.domain.reducers.history_reduction import reduced
from clew.domain.runs.events import ModelCalled
from clew.domain.runs.request_construction import unsent
from clew.infrastructure.scripted_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]

KEY = "sk-canary0123456789"
THINKS: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@dataclass(frozen=True)
class Provider:
    """A provider: its strict server, and a client of a model there.

    ``bound``: thinking is bound to what came before. ``is_late``: changing context is sent as late system messages.
    ``is_remote``: the service holds the history.
    """

    server: Callable[[int], Any]
    client: Callable[[Any, str], Any]
    bound: bool = False
    is_late: bool = False
    is_remote: bool = False


PROVIDERS = {
    "anthropic": Provider(
        StrictAnthropic,
        lambda server, model: AnthropicClient(model, api_key=KEY, base_url=server.url, options=THINKS),
        bound=True,
        is_late=True,
    ),
    "gemini": Provider(StrictGemini, lambda server, model: GeminiClient(model, api_key=KEY, base_url=server.url)),
    "bedrock": Provider(
        StrictBedrock,
        lambda server, model: BedrockClient(model, api_key=KEY, region="us-east-1", base_url=server.url),
        bound=True,
    ),
    "responses": Provider(
        StrictResponses, lambda server, model: OpenAIResponsesClient(model, api_key=KEY, base_url=server.url)
    ),
    "responses-stored": Provider(
        StrictResponses,
        lambda server, model: OpenAIResponsesClient(model, store=True, api_key=KEY, base_url=server.url),
        is_remote=True,
    ),
    "reasoning": Provider(
        StrictReasoning,
        lambda server, model: OpenAIChatClient(
            model, api_key=KEY, base_url=server.url, options={"thinking": {"type": "enabled"}}
        ),
    ),
}


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


def refund(order: int) -> str:
    """Refund an order."""
    return f"Order {order} is refunded."


@dataclass
class Bench:
    """A provider with its running server, and a store."""

    provider: Provider
    server: Any
    engine: Engine
    streams: bool
    stack: ExitStack
    servers: list[Any] = field(default_factory=list)
    clients: list[Any] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """The model calls of a run."""
        return int(self.server.rounds) + 1

    def agent(self, model: str = "model-1", engine: Engine | None = None, **more: Any) -> Agent:
        client = self.client(self.provider, self.server, model)
        given = {"name": "Desk", "instructions": "Be brief.", "tools": [look_up], **more}
        return Agent(client, engine=engine or self.engine, **given)

    def other(self) -> Agent:
        """An agent of another provider."""
        other = PROVIDERS["gemini" if self.provider is PROVIDERS["anthropic"] else "anthropic"]
        server = self.stack.enter_context(other.server(1))
        self.servers.append(server)
        client = self.client(other, server, "model-9")
        return Agent(client, engine=self.engine, instructions="Be brief.", tools=[look_up])

    def client(self, provider: Provider, server: Any, model: str) -> Any:
        made = provider.client(server, model)
        self.clients.append(made)
        return made

    async def thread(self) -> Any:
        return await (self.agent().get_remote_thread() if self.provider.is_remote else self.engine.start_thread())

    async def run(self, agent: Agent, text: str | None, thread: Any) -> str:
        inputs = () if text is None else (text,)
        if self.streams:
            answer = (await agent.run(*inputs, thread=thread, stream=True).get_final_response()).text
        else:
            answer = (await agent.run(*inputs, thread=thread)).text
        assert "Done" in answer
        return answer

    async def check(self, thread: Any) -> list[tuple[int, ...]]:
        """Check the record of each model call of a thread; returns what each left out."""
        assert [server.refused for server in self.servers] == [[] for _ in self.servers]
        received = [content for server in self.servers for content in server.requests]
        calls: list[tuple[int, ...]] = []
        for event in await events_of(thread):
            if not isinstance(event.data, ModelCalled):
                continue
            request = await thread.request(event.version)
            assert request.verified or request.redacted
            assert request.content in received or request.redacted or event.data.client == "scripted"
            assert event.data.prefix is not None, "the prefix is a fact of every model call"
            if not request.redacted:
                sent = await messages_of(thread, event)
                missing = [n for n, message in enumerate(sent) if not is_sent(message, request.content.decode())]
                assert len(event.data.left_out) == len(missing), (event.version, event.data.left_out, missing)
            calls.append(event.data.left_out)
        return calls


async def messages_of(thread: Any, event: Any) -> list[Message]:
    """The messages of the history that a model call is about."""
    past = await thread.history(at=event.version)
    start: Any = next(each for each in await events_of(thread) if each.version == event.data.definitions)
    reduction = past.context.reductions.get(start.data.agent.id) if start.data.fingerprint.reducer else None
    view = model_view(past if reduction is None else reduced(past, reduction[1], 0))
    return [message for _, message in unsent(view, event.data.service)]


SIGNATURES = {"signature", "thoughtSignature", "encrypted_content", "redactedContent"}


def signatures(value: Any) -> Iterator[str]:
    """What only the model that made an answer accepts, anywhere in the answer."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from signatures(each)
    elif isinstance(value, dict):
        path = str(value.get("path", "")).rpartition("/")[2]
        if path in SIGNATURES:
            yield str(value["value"])
        if value.get("type") == "redacted_thinking":
            yield value["data"]
        for name, each in value.items():
            if name in SIGNATURES and each:
                yield str(each)
            else:
                yield from signatures(each)


def is_sent(message: Message, content: str) -> bool:
    return all(each in content for each in signatures(message.model_dump()))


class Counting(ContextProvider):
    """A memory whose instructions and messages are others in each run."""

    id = "counting"

    def initial_state(self, ctx: Any) -> Any:
        del ctx
        return 0

    async def invoking(self, ctx: Any, messages: Any) -> Context:
        del messages
        ctx.state += 1
        return Context(instructions=f"This is run {ctx.state}.")


class Telling(Counting):
    """A memory that also gives messages."""

    id = "telling"

    async def invoking(self, ctx: Any, messages: Any) -> Context:
        given = await super().invoking(ctx, messages)
        return Context(instructions=given.instructions, messages=[Message.user(f"Known in run {ctx.state}.")])


class Rewriting(Middleware):
    """Changes the beginning of each request, so that all later signatures are bound to something else."""

    async def model_request(self, context: ModelCallContext) -> JsonObject:
        text = json.dumps(context.body).replace("Be brief.", f"Be brief {context.round}.")
        changed: JsonObject = json.loads(text)
        return changed


async def rounds(bench: Bench) -> None:
    thread, agent = await bench.thread(), bench.agent()
    await bench.run(agent, "Where is it?", thread)
    await bench.run(agent, "And now?", thread)
    assert await bench.check(thread) == [()] * 2 * bench.calls, "nothing changed, so all was sent"


async def fork(bench: Bench) -> None:
    thread, agent = await bench.thread(), bench.agent()
    await bench.run(agent, "Where is it?", thread)
    for cut in (await thread.history()).messages[1:5] if not bench.provider.is_remote else ():
        branch = await thread.fork(at=cut.version)
        await bench.run(agent, None if cut.role == "tool" else "And on the fork?", branch)
        assert not any(await bench.check(branch))
    branch = await thread.fork()
    await bench.run(agent, "And at the end?", branch)
    assert not any(await bench.check(branch))


async def rewind(bench: Bench) -> None:
    thread, agent = await bench.thread(), bench.agent()
    await bench.run(agent, "Where is it?", thread)
    await bench.run(agent, "And then?", thread)
    messages = (await thread.history()).messages
    half = len(messages) // 2
    places = [half - 1] if bench.provider.is_remote else [half + 2, 3, 1]
    for place in places:
        await thread.rewind(to=messages[place].version)
        await bench.run(agent, "Again?", thread)
    assert not any(await bench.check(thread))


async def keeping_the_last(bench: Bench) -> None:
    thread, agent = await bench.thread(), bench.agent(reducer=KeepLast(6))
    for text in ("Where is it?", "And now?", "And then?"):
        await bench.run(agent, text, thread)
    assert any(await bench.check(thread)) == bench.provider.bound


async def summarising(bench: Bench) -> None:
    summaries = ScriptedChatClient([json.dumps({"summary": f"Summary {number}."}) for number in range(3)])
    thread, agent = await bench.thread(), bench.agent(reducer=Summarise(summaries, keep_last=4))
    for text in ("Where is it?", "And now?", "And then?"):
        await bench.run(agent, text, thread)
    assert any(await bench.check(thread)) == bench.provider.bound


def redacting(role: str, place: int) -> Callable[[Bench], Awaitable[None]]:
    async def redact(bench: Bench) -> None:
        thread, agent = await bench.thread(), bench.agent()
        await bench.run(agent, "My secret is 7.", thread)
        await thread.redact([each.version for each in await thread.history() if each.role == role][place])
        await bench.run(agent, "And now?", thread)
        calls = (await bench.check(thread))[bench.calls :]
        assert any(calls) == bench.provider.bound

    return redact


def remembering(memory: type[ContextProvider]) -> Callable[[Bench], Awaitable[None]]:
    async def remember(bench: Bench) -> None:
        thread, agent = await bench.thread(), bench.agent(context_providers=memory())
        for text in ("Where is it?", "And now?", "And then?"):
            await bench.run(agent, text, thread)
        calls = await bench.check(thread)
        assert not any(calls[: bench.calls]), "context does not change within a run"
        assert any(calls) == (bench.provider.bound and not bench.provider.is_late)

    return remember


async def another_model(bench: Bench) -> None:
    thread, agent, second = await bench.thread(), bench.agent(), bench.agent("model-2")
    for each, text in ((second, "Before?"), (agent, "Where is it?"), (second, "And now?"), (agent, "And then?")):
        await bench.run(each, text, thread)
    calls = await bench.check(thread)
    is_signed = not isinstance(bench.server, StrictReasoning) and not bench.provider.is_remote
    assert all(calls[bench.calls :]) == is_signed


async def another_provider(bench: Bench) -> None:
    thread, agent, second = await bench.thread(), bench.agent(), bench.other()
    scripted = ScriptedChatClient([call("look_up", order=7), "On its way. Done."])
    third = Agent(scripted, engine=bench.engine, tools=[look_up], instructions="Be brief.")
    for each in (third, second, agent, second, third, agent):
        scripted_again = ScriptedChatClient([call("look_up", order=7), "On its way. Done."])
        each.client = scripted_again if each is third else each.client
        await bench.run(each, "Where is it?", thread)
    await bench.check(thread)


async def going_on_from_another(bench: Bench) -> None:
    """Another model's rounds are continued in the middle: after its results, before its answer."""
    for first in (bench.other(), bench.agent("model-2")):
        thread, agent = await bench.thread(), bench.agent()
        await bench.run(first, "Where is it?", thread)
        results = [each for each in await thread.history() if each.role == "tool"]
        branch = await thread.fork(at=results[-1].version)
        await bench.run(agent, None, branch)
        await bench.run(agent, "And now?", branch)
        await bench.check(branch)


async def another_store(bench: Bench) -> None:
    thread = await bench.thread()
    await bench.run(bench.agent(), "Where is it?", thread)
    document = json.loads(json.dumps(await thread.serialize()))
    async with Engine.open("memory:") as there:
        agent = bench.agent(engine=there)
        moved = await agent.deserialize_thread(document)
        await bench.run(agent, "And now?", moved)
        assert not any(await bench.check(moved))


async def middleware(bench: Bench) -> None:
    thread = await bench.thread()
    await bench.run(bench.agent(), "Where is it?", thread)
    await bench.run(bench.agent(middleware=[Rewriting()]), "And now?", thread)
    await bench.run(bench.agent(), "And then?", thread)
    calls = await bench.check(thread)
    assert any(calls[bench.calls : 2 * bench.calls]) == bench.provider.bound


async def other_tools(bench: Bench) -> None:
    thread = await bench.thread()
    await bench.run(bench.agent(), "Where is it?", thread)
    await bench.run(bench.agent(tools=[refund]), "Refund it.", thread)
    await bench.run(bench.agent(tools=[look_up, refund]), "And now?", thread)
    calls = await bench.check(thread)
    assert all(calls[bench.calls :]) == bench.provider.bound


ANYWHERE = {
    "rounds": rounds,
    "fork": fork,
    "rewind": rewind,
    "redacted-user": redacting("user", 0),
    "redacted-result": redacting("tool", 0),
    "redacted-answer": redacting("assistant", 1),
    "memory": remembering(Counting),
    "memory-messages": remembering(Telling),
    "another-model": another_model,
    "another-store": another_store,
    "middleware": middleware,
    "other-tools": other_tools,
}
LOCALLY = {
    "keep-last": keeping_the_last,
    "summarise": summarising,
    "another-provider": another_provider,
    "going-on": going_on_from_another,
}
"""Situations that a thread whose service holds the history cannot be in."""

BOTH_WAYS = {"rounds", "another-provider"}


def cases() -> Iterator[Any]:
    """Each situation with each provider: a few streamed and whole, the others in turn."""
    number = 0
    for provider, of in PROVIDERS.items():
        for name, situation in {**ANYWHERE, **({} if of.is_remote else LOCALLY)}.items():
            number += 1
            for streams in (False, True) if name in BOTH_WAYS else (number % 2 == 0,):
                how = "streamed" if streams else "whole"
                yield pytest.param(provider, situation, streams, id=f"{provider}-{name}-{how}")


@pytest.mark.parametrize(("provider", "situation", "streams"), list(cases()))
async def test_a_thinking_model_goes_on(
    provider: str,
    situation: Callable[[Bench], Awaitable[None]],
    streams: bool,  # noqa: FBT001  # pytest passes it
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(PROVIDERS[provider].server(3 if situation is rounds else 2))
        async with Engine.open("memory:") as engine:
            bench = Bench(PROVIDERS[provider], server, engine, streams, stack, [server])
            try:
                await situation(bench)
            finally:
                for client in bench.clients:
                    await client.aclose()
