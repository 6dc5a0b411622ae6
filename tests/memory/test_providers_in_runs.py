"""The shipped providers on real threads: facts of one thread are known in the user's next thread and in no other."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.aimock_server import Aimock

from clew import (
    Agent,
    AgentLessons,
    ConversationSummaries,
    Engine,
    OpenAIChatClient,
    OpenAIResponsesClient,
    ScriptedChatClient,
    UserFacts,
    UserPreferences,
    Whiteboard,
)
from clew.domain.context.provider import ContextProvider
from clew.domain.json_values import JsonObject
from clew.domain.runs.errors import ContextProviderError
from clew.testing import call, fault

pytestmark = pytest.mark.anyio

NAME = "The user's name is Caoimhe."
MARK = re.compile(r"mark \w*q\w+")


def learned(*facts: str) -> str:
    """Return the answer of an extractor that finds these facts."""
    return json.dumps({"facts": [{"text": each} for each in facts], "forget": []})


async def sent(thread: Any) -> list[Any]:
    """Return the requests, rebuilt from the log."""
    return [await thread.request(event.version) async for event in thread.events() if event.type == "model-called"]


async def types(thread: Any) -> list[str]:
    """Return the types of a thread's events."""
    return [event.type async for event in thread.events()]


def instructions(body: JsonObject) -> str:
    """Return the system message of a request."""
    messages: Any = body["messages"]
    return str(messages[0]["content"])


@pytest.mark.parametrize("made", [OpenAIChatClient, OpenAIResponsesClient])
async def test_two_threads_of_a_user_share_facts_with_no_other_user(aimock: Aimock, shared_url: str, made: Any) -> None:
    aimock.reply('"said": "Hello, my name is Caoimhe."', text=f"```json\n{learned(NAME)}\n```")
    aimock.reply('"said": "What is my name?"', text=learned())
    aimock.reply(text="Hello.")
    client, extractor = (made("m-1", api_key="sk-unused", base_url=aimock.base_url) for _ in range(2))
    async with Engine.open(shared_url) as engine:
        agent = Agent(client=client, engine=engine, name="Guide", instructions="Be kind.")
        facts = UserFacts(scope="user/12345", client=extractor)
        one, two = [await engine.start_thread(context_providers=[facts]) for _ in range(2)]
        others = UserFacts(scope="user/777", client=extractor)
        other = await engine.start_thread(context_providers=[others])
        await agent.run("Hello, my name is Caoimhe.", thread=one)
        await agent.run("What is my name?", thread=two)
        await agent.run("What is my name?", thread=other)
        sent_bodies = [json.dumps(each.body, ensure_ascii=False) for each in aimock.journal()]
        answers = [
            each for each in sent_bodies if '\\"said\\"' not in each
        ]  # the other requests belong to the extractor
        assert [NAME in each for each in answers] == [False, True, False]
        requests = [(await sent(thread))[0] for thread in (one, two, other)]
        assert [NAME in json.dumps(each.body) for each in requests] == [False, True, False]
        assert [each.verified for each in requests] == [True, True, True]
        memory = await engine.memory("user/12345")
        (fact,) = await memory.facts()
        why = await memory.why(fact)
        assert why.message is not None
        assert (why.thread_id, why.version, why.message.text) == (one.id, 3, "Hello, my name is Caoimhe.")
        (use,) = await memory.used_by(fact)
        assert (use.thread_id, use.version) == (two.id, (await sent(two))[0].version)
        assert await (await engine.memory("user/777")).facts() == []
    for each in (client, extractor):
        await each.aclose()


@pytest.mark.parametrize("kind", ["local", "remote"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_facts_are_learned_and_provided_on_threads_of_both_kinds(any_url: str, kind: Any, streamed: Any) -> None:
    client = ScriptedChatClient("Hello.", thread_kinds=[kind], loop=True)
    async with Engine.open(any_url) as engine:
        facts = UserFacts("user/42", ScriptedChatClient([learned(NAME), learned()]))
        agent = Agent(client=client, engine=engine, context_providers=facts)
        for _ in range(2):
            running = agent.run("I am Caoimhe.", actor="user:42", stream=streamed)
            await (running.get_final_response() if streamed else running)
        assert [NAME in json.dumps(body) for body in client.requests] == [False, True]
        (fact,) = await (await engine.memory("user/42")).facts()
        assert fact.actor == "agent"  # it learned the fact for the user


class _NotifiedTwice(UserFacts):
    """Gets the end of each run twice, as after a crash."""

    async def invoked(self, *args: Any, **kwargs: Any) -> None:
        await super().invoked(*args, **kwargs)
        await super().invoked(*args, **kwargs)


class _NotifiedTwiceWithoutKnownFacts(_NotifiedTwice):
    """Also does not see the facts that it has just learned."""

    async def _known(self, ctx: Any) -> list[Any]:
        del ctx
        return []


@pytest.mark.parametrize("made", [_NotifiedTwice, _NotifiedTwiceWithoutKnownFacts])
async def test_a_repeated_end_of_a_run_learns_once(any_url: str, made: type[UserFacts]) -> None:
    async with Engine.open(any_url) as engine:
        facts = made("user/42", ScriptedChatClient(learned(NAME), loop=True))
        agent = Agent(client=ScriptedChatClient("Hello.", loop=True), engine=engine, context_providers=facts)
        await agent.run("I am Caoimhe.")
        assert len(await (await engine.memory("user/42")).facts(history=True)) == 1


async def test_preferences_set_by_the_model_are_provided_from_the_next_run(any_url: str) -> None:
    script: list[Any] = [call("set_preference", name="units", value="kilometres"), "Noted.", "250 km.", "Hello."]
    client = ScriptedChatClient(script)
    async with Engine.open(any_url) as engine:
        agent = Agent(client=client, engine=engine, instructions="Be a guide.")
        preferences = UserPreferences(scope="user/42")
        first = await agent.run("Kilometres, please.", context_providers=[preferences])
        again = await agent.run("How far is Cork?", thread=first.thread)
        await agent.run("Hello.", context_providers=[preferences])
        assert ["- units: kilometres" in instructions(body) for body in client.requests] == [False, False, True, True]
        assert all("set_preference" in json.dumps(body["tools"]) for body in client.requests)
        assert again.thread.id == first.thread.id
        memory = await engine.memory("user/42")
        (fact,) = await memory.facts()
        why = await memory.why(fact)
        assert why.message is not None
        assert (why.thread_id, why.message.text) == (first.thread.id, "Kilometres, please.")


async def test_an_ended_thread_is_summarised_with_its_last_message_as_source(any_url: str) -> None:
    summariser = ScriptedChatClient(json.dumps({"summary": "A slogan for lamps was chosen."}))
    summaries = ConversationSummaries(scope="group/lamps", client=summariser)
    async with Engine.open(any_url) as engine:
        client = ScriptedChatClient(["Bark up the right tree.", "That one."])
        agent = Agent(client=client, engine=engine, instructions="You write copy.")
        first = await agent.run("A slogan for lamps?", context_providers=[summaries])
        await first.thread.end()
        memory = await engine.memory("group/lamps")
        (fact,) = await memory.facts()
        why = await memory.why(fact)
        assert why.message is not None
        assert (why.thread_id, why.message.text) == (first.thread.id, "Bark up the right tree.")
        await agent.run("Which slogan was chosen?", context_providers=[summaries])
        assert "A slogan for lamps was chosen." in instructions(client.requests[-1])


async def test_a_failing_summary_prevents_ending_only_with_the_policy_fail(
    any_url: str,
) -> None:
    async with Engine.open(any_url) as engine:
        agent = Agent(client=ScriptedChatClient("Hello.", loop=True), engine=engine)
        for policy, status in (("continue", "ended"), ("fail", "active")):
            broken = ScriptedChatClient(fault("server-error"))
            summaries = ConversationSummaries("group/lamps", broken, on_failure=policy)  # type: ignore[arg-type]
            thread = (await agent.run("Hello?", context_providers=[summaries])).thread
            if policy == "fail":
                with pytest.raises(ContextProviderError, match="conversation-summaries"):
                    await thread.end()
            else:
                await thread.end()
            assert (await thread.state()).status == status
            assert (await types(thread)).count("context-failed") == 1


async def test_a_whiteboard_is_recorded_only_if_it_changed(any_url: str) -> None:
    empty: JsonObject = {"requirements": [], "proposals": [], "decisions": [], "actions": []}
    drawn = json.dumps(empty | {"decisions": ["Red."]})
    async with Engine.open(any_url) as engine:
        board = Whiteboard(ScriptedChatClient([json.dumps(empty), drawn, drawn]))
        agent = Agent(client=ScriptedChatClient("Fine.", loop=True), engine=engine, context_providers=board)
        thread = await agent.get_local_thread()
        for recorded in (0, 1, 1):
            await agent.run("Red?", thread=thread)
            assert (await types(thread)).count("context-state-recorded") == recorded


async def test_a_whiteboard_follows_forks_and_rewinds_of_its_thread(any_url: str) -> None:
    def draw(body: JsonObject) -> str:
        messages: Any = body["messages"]
        request = json.loads(messages[-1]["content"])
        decisions = [*request["board"]["decisions"], request["messages"][0]["said"]]
        return json.dumps({"requirements": [], "proposals": [], "decisions": decisions, "actions": []})

    async with Engine.open(any_url) as engine:
        client = ScriptedChatClient("Fine.", loop=True)
        agent = Agent(client=client, engine=engine, context_providers=Whiteboard(ScriptedChatClient(draw)))
        thread = await agent.get_local_thread()
        await agent.run("Red.", thread=thread)
        await thread.checkpoint("red")
        await agent.run("And blue.", thread=thread)
        branch = await thread.fork(at="red")
        await agent.run("And green.", thread=branch)
        assert "- Red." in instructions(client.requests[-1])
        assert "blue" not in json.dumps(client.requests[-1])
        await agent.run("Well?", thread=branch)
        assert "- And green." in instructions(client.requests[-1])
        await thread.rewind(to="red")
        await agent.run("Well?", thread=thread)
        assert "- Red." in instructions(client.requests[-1])
        assert "blue" not in json.dumps(client.requests[-1])


async def test_a_lesson_of_one_run_is_provided_in_another(any_url: str) -> None:
    lesson = {"title": "Refund lamps", "when": "a lamp is broken", "steps": ["Ask for the order."], "replaces": None}
    teacher = ScriptedChatClient([json.dumps({"lessons": [lesson]}), json.dumps({"lessons": []})])
    async with Engine.open(any_url) as engine:
        client = ScriptedChatClient("Here is your money.", loop=True)
        lessons = AgentLessons("agent/desk", teacher)
        agent = Agent(client=client, engine=engine, name="Desk", context_providers=lessons)
        for _ in range(2):
            await agent.run("My lamp is broken.")
        assert "- Refund lamps. When: a lamp is broken. Steps: (1) Ask for the order." in instructions(
            client.requests[-1]
        )


@pytest.mark.parametrize("answer", ["I remember nothing.", fault("server-error")], ids=["invalid", "unavailable"])
async def test_a_failing_extractor_is_recorded_and_the_policy_decides_about_the_run(any_url: str, answer: Any) -> None:
    async with Engine.open(any_url) as engine:
        agent = Agent(client=ScriptedChatClient("Hello.", loop=True), engine=engine)
        continuing = UserFacts("user/42", ScriptedChatClient(answer))
        response = await agent.run("I am Ann.", context_providers=[continuing])
        assert response.text == "Hello."
        assert (await types(response.thread)).count("context-failed") == 1
        failing = UserFacts("user/42", ScriptedChatClient(answer), on_failure="fail")
        thread = await engine.start_thread(context_providers=[failing])
        with pytest.raises(ContextProviderError, match="user-facts"):
            await agent.run("I am Ann.", thread=thread)
        assert (await types(thread)).count("context-failed") == 1
        assert await (await engine.memory("user/42")).facts() == []


def echo(body: JsonObject) -> str:
    """Learn each mark in the request, in the requested form."""
    shown: Any = body["messages"]
    marks = MARK.findall(shown[-1]["content"])
    return json.dumps(
        {
            "facts": [{"text": mark} for mark in marks],
            "preferences": [{"name": mark, "value": mark} for mark in marks],
            "summary": " ".join(marks),
            "lessons": [{"title": mark, "when": mark, "steps": [mark]} for mark in marks],
        }
    )


def providers_of(scope: str) -> list[ContextProvider]:
    """Return the providers that store facts, in one scope."""
    client = ScriptedChatClient(echo)
    return [
        UserFacts(scope, client),
        UserPreferences(scope, client),
        ConversationSummaries(scope, client),
        AgentLessons(scope, client),
    ]


TENANTS = ("default", "acme")
SCOPES = ("user/1", "user/2", "user/1/lamps")
turns = st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from(SCOPES), st.integers(0, 3)), max_size=8)


@settings(max_examples=max(5, settings().max_examples // 10))
@given(turns=turns)
def test_no_request_contains_data_of_another_scope_or_tenant(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str, int]]
) -> None:
    async def talk() -> None:
        url = f"sqlite:///{tmp_path_factory.mktemp('tenants')}/clew.db"
        providers = {scope: providers_of(scope) for scope in SCOPES}  # one set for all tenants and threads
        async with Engine.open(url, tenant="default") as one, Engine.open(url, tenant="acme") as two:
            engines = {"default": one, "acme": two}
            for number, (tenant, scope, kind) in enumerate(turns):
                client = ScriptedChatClient("Fine.")
                own = f"mark {TENANTS.index(tenant)}q{SCOPES.index(scope)}q"
                agent = Agent(client=client, engine=engines[tenant], context_providers=providers[scope][kind])
                response = await agent.run(f"My {own}{number} and all.")
                await response.thread.end()
                assert {mark[: len(own)] for mark in MARK.findall(json.dumps(client.requests))} == {own}

    asyncio.run(talk())
