"""Memories that applications share between threads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, ConversationSummaries, Engine, ScriptedChatClient, UserFacts, UserPreferences
from clew.errors import ScopeError, ThreadStatusError, UnknownThreadError
from clew.testing import call

QUESTIONS = ["Has invoice 33-22-6324 from Fabrikam been paid yet?", "And invoice 33-22-6325?"]


async def sent(thread: Any) -> list[Any]:
    """Return the requests, rebuilt from the events."""
    return [await thread.request(event.version) async for event in thread.events() if event.type == "model-called"]


def system(request: Any) -> str:
    """Return the instructions of a request."""
    return str(request.body["messages"][0]["content"])


def test_one_user_facts_component_serves_two_threads_of_a_user() -> None:
    def extract_name(body: Any) -> str:
        known = "name is Caoimhe" in json.loads(body["messages"][-1]["content"])["messages"][0]["said"]
        return json.dumps({"facts": [{"text": "The user's name is Caoimhe."}] if known else [], "forget": []})

    async def talk() -> None:
        async with Engine.open("memory:") as engine:
            extractor = ScriptedChatClient(extract_name)
            agent = Agent(client=ScriptedChatClient("Hello.", loop=True), engine=engine, instructions="Be kind.")
            facts = UserFacts(scope="user/12345", client=extractor)
            one = await engine.start_thread(context_providers=[facts])
            await agent.run("Hello, my name is Caoimhe.", thread=one)
            two = await engine.start_thread(context_providers=[facts])
            await agent.run("What is my name?", thread=two)
            others = UserFacts(scope="user/777", client=extractor)
            other = await engine.start_thread(context_providers=[others])
            await agent.run("What is my name?", thread=other)
            assert "Caoimhe" in system((await sent(two))[0])
            assert "Caoimhe" not in system((await sent(other))[0])
            assert "Caoimhe" not in json.dumps([message.text for message in await two.history()])

            memory = await engine.memory("user/12345")
            (fact,) = await memory.facts()
            why = await memory.why(fact)
            (question, _) = await one.history()
            assert (why.thread_id, why.version) == (one.id, question.version)
            (use,) = await memory.used_by(fact)
            assert (use.thread_id, use.version) == (two.id, (await sent(two))[0].version)

    asyncio.run(talk())
    for scope in (None, ""):
        with pytest.raises(ScopeError):
            UserFacts(scope=scope)


THIRD_QUESTION = """
import asyncio, json, sys, warnings
from clew import Agent, Engine, ScriptedChatClient

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        client = ScriptedChatClient(lambda body: " and ".join(
            word.rstrip("?") for each in body["messages"] for word in str(each["content"]).split() if word[0] == "3"))
        agent = Agent(client=client, engine=engine, name="CreditorsAgent", instructions="You help pay creditors.")
        thread = await agent.thread(sys.argv[1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            response = await agent.run("Which two did I ask about?", thread=thread)
        await thread.end()
        print(json.dumps([response.text, [str(each.message) for each in caught]]))

asyncio.run(main())
"""


def test_preferences_apply_to_their_thread_and_a_run_without_them_warns(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"

    async def before() -> str:
        async with Engine.open(url) as engine:
            client = ScriptedChatClient([call("set_preference", name="tone", value="short"), "Yes.", "Not yet."])
            agent = Agent(client=client, engine=engine, name="CreditorsAgent", instructions="You help pay creditors.")
            first = await agent.run(QUESTIONS[0], context_providers=[UserPreferences(scope="user/42")])
            again = await agent.run(QUESTIONS[1], thread=first.thread)
            assert again.thread.id == first.thread.id
            assert ["- tone: short" in system(request) for request in await sent(first.thread)] == [False, False, True]
            assert all("set_preference" in json.dumps(request.body) for request in await sent(first.thread))
            provided: list[Any] = [
                event.data async for event in first.thread.events() if event.type == "context-provided"
            ]
            assert [each.provider for each in provided] == ["user-preferences", "user-preferences"]
            thread_id: str = first.thread.id
            return thread_id

    async def afterwards(thread_id: str) -> None:
        async with Engine.open(url, create=False) as engine:
            supplied = UserPreferences(scope="user/42")
            agent = Agent(ScriptedChatClient("Late."), engine=engine, name="Creditors", context_providers=supplied)
            with pytest.raises(UnknownThreadError):
                await agent.thread("missing")
            thread = await engine.thread(thread_id)
            events = [event async for event in thread.events()]
            assert [event.type for event in events].count("thread-started") == 1
            started_runs: list[Any] = [event.data for event in events if event.type == "run-started"]
            assert [each.missing for each in started_runs] == [(), (), ("user-preferences",)]
            third = (await sent(thread))[-1]
            assert third.verified
            assert all(question in json.dumps(third.body) for question in QUESTIONS)
            assert "tone" not in system(third)
            (fact,) = await (await engine.memory("user/42")).facts()
            assert (fact.key, fact.text) == ("tone", "short")
            with pytest.raises(ThreadStatusError, match="is ended"):
                await agent.run("One more?", thread=thread)

    thread_id = asyncio.run(before())
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", THIRD_QUESTION, thread_id],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text, warnings = json.loads(done.stdout)
    assert text == "33-22-6324 and 33-22-6325"
    assert len(warnings) == 1
    assert "user-preferences" in warnings[0]
    asyncio.run(afterwards(thread_id))


def test_preferences_work_without_an_engine() -> None:
    client = ScriptedChatClient([call("set_preference", name="tone", value="short"), "Yes.", "Yes."])
    agent = Agent(client=client, instructions="Be kind.", context_providers=UserPreferences("user/42"))
    for _ in range(2):
        agent.run_sync("Be short.")
    assert "- tone: short" in json.dumps(client.requests[-1])


def test_an_ended_thread_has_one_summary_with_its_provenance() -> None:
    async def talk() -> None:
        async with Engine.open("memory:") as engine:
            summariser = ScriptedChatClient(json.dumps({"summary": "Lamps: Bark up the right tree."}))
            summaries = ConversationSummaries(scope="group/lamps", client=summariser)
            agent = Agent(client=ScriptedChatClient("Bark up the right tree."), engine=engine, name="Copywriter")
            thread = await engine.start_thread(context_providers=[summaries])
            await agent.run("Write a slogan for lamps made with tree bark.", thread=thread)
            await thread.end()
            memory = await engine.memory("group/lamps")
            (summary,) = await memory.facts()
            assert summary.text == "Lamps: Bark up the right tree."
            why = await memory.why(summary)
            assert (why.thread_id, why.version) == (thread.id, (await thread.history()).messages[-1].version)

    asyncio.run(talk())
