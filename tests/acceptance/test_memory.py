"""Context providers, memory scopes and documents in applications."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.components import Preferences
from tests.acceptance.models import KINDS, Model
from tests.acceptance.programs import json_output, requests, turns_in
from tests.servers.aimock_server import Aimock

from clew import (
    Agent,
    Document,
    Engine,
    HashingEmbedder,
    TextRetrieval,
    UserFacts,
    UserPreferences,
)
from clew.errors import (
    EmbeddingMismatchError,
    MissingProviderError,
    ModelUnavailableError,
    ScopeError,
    ThreadStatusError,
    UnknownThreadError,
)


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, aimock: Aimock) -> Model:
    return Model(aimock if request.param == "http" else None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clew.db"


def system(request: Any) -> str:
    """Return the instructions of a request."""
    return "\n".join(text or "" for role, text in turns_in(request) if role in {"system", "developer"})


async def events(thread: Any, *types: str) -> list[Any]:
    """Return the events of a thread of these types."""
    return [event async for event in thread.events() if event.type in types]


async def provided(thread: Any) -> list[str]:
    """Return the provider of each provided context."""
    return [event.data.provider for event in await events(thread, "context-provided")]


# A thread that a run creates, continued by its id

QUESTIONS = [
    "Has invoice 33-22-6324 from Fabrikam been paid yet?",
    "And invoice 33-22-6325?",
    "Which two did I ask about?",
]
CREDITORS: dict[str, Any] = {"name": "CreditorsAgent", "instructions": "You help pay creditors."}
THIRD_QUESTION = """
import asyncio, json, sys, warnings
from clew import Agent, Engine, OpenAIChatClient, ScriptedChatClient

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        client = ScriptedChatClient(["33-22-6324 and 33-22-6325."])
        if sys.argv[2]:
            client = OpenAIChatClient("gpt-4o", api_key="none", base_url=sys.argv[2])
        agent = Agent(client=client, engine=engine, name="CreditorsAgent", instructions="You help pay creditors.")
        thread = await agent.thread(sys.argv[1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            response = await agent.run("Which two did I ask about?", thread=thread)
        await thread.end()
        print(json.dumps([response.text, [[each.category.__name__, str(each.message)] for each in caught]]))

asyncio.run(main())
"""


def test_a_run_reports_a_missing_provider_and_keeps_its_facts(model: Model, url: str, tmp_path: Path) -> None:
    for words, text in zip(QUESTIONS, ["Yes.", "Not yet.", "33-22-6324 and 33-22-6325."], strict=True):
        model.says(words, text)

    async def two_questions() -> str:
        async with Engine.open(url) as engine:
            await (await engine.memory("user/42")).remember("in short", key="answers", kind="preference")
            agent = Agent(client=model.client(), engine=engine, **CREDITORS)
            first = await agent.run(QUESTIONS[0], context_providers=[UserPreferences(scope="user/42")])
            second = await agent.run(QUESTIONS[1], thread=first.thread)
            assert (first.text, second.text) == ("Yes.", "Not yet.")
            assert await provided(first.thread) == ["user-preferences"] * 2
            thread_id: str = first.thread.id
            return thread_id

    async def afterwards(thread_id: str) -> None:
        async with Engine.open(url, create=False) as engine:
            agent = Agent(client=model.client(), engine=engine, **CREDITORS)
            thread = await agent.thread(thread_id)
            assert len(await events(thread, "thread-started")) == 1
            sent = await requests(thread)
            assert [each.verified for each in sent] == [True] * 3
            assert ["in short" in system(each) for each in sent] == [True, True, False]
            assert [text for role, text in turns_in(sent[2]) if role == "user"] == QUESTIONS
            assert await provided(thread) == ["user-preferences"] * 2
            started = await events(thread, "run-started")
            assert [each.data.missing for each in started] == [(), (), ("user-preferences",)]
            (fact,) = await (await engine.memory("user/42")).facts()
            assert (fact.key, fact.text) == ("answers", "in short")
            version = await thread.version
            supplied = [UserPreferences(scope="user/42")]
            with pytest.raises(ThreadStatusError, match=f"Thread '{thread_id}' is ended: a run is refused"):
                await agent.run("One more?", thread=thread, context_providers=supplied)
            fork = await thread.fork(at=version - 1)
            strict = Agent(client=model.client(), engine=engine, on_missing_provider="raise", **CREDITORS)
            with pytest.raises(MissingProviderError, match="user-preferences"):
                await strict.run("One more?", thread=fork)
            assert (await fork.summary()).messages == 6
            with pytest.raises(UnknownThreadError, match="There is no thread 'missing'"):
                await agent.thread("missing")

    thread_id = asyncio.run(two_questions())
    text, ((warning, message),) = json_output(THIRD_QUESTION, tmp_path, thread_id, model.base_url)
    assert text == "33-22-6324 and 33-22-6325."
    assert warning == "MissingProviderWarning"
    assert "user-preferences" in message
    asyncio.run(afterwards(thread_id))


def test_a_thread_that_a_run_creates_keeps_the_providers_of_the_run(model: Model) -> None:
    model.says("6324", "Yes.")
    model.says("6325", "Not yet.")

    async def talk() -> None:
        agent = Agent(client=model.client(), **CREDITORS)
        first = await agent.run(QUESTIONS[0], context_providers=[UserPreferences(scope="user/42")])
        await agent.run(QUESTIONS[1], thread=first.thread)
        assert await provided(first.thread) == ["user-preferences"] * 2

    asyncio.run(talk())


# A preferences component with its state in the thread


def test_a_fork_has_the_provider_state_at_its_cut(model: Model, url: str) -> None:
    for words, text in (("Hello", "Hi."), ("I prefer", "Noted."), ("Cork", "Far.")):
        model.says(words, text)

    async def talk() -> None:
        async with Engine.open(url) as engine:
            preferences = Preferences()
            agent = Agent(client=model.client(), engine=engine, name="Guide", context_providers=preferences)
            thread = await engine.start_thread()
            await agent.run("Hello.", thread=thread)
            await thread.checkpoint("before")
            await agent.run("I prefer kilometres", thread=thread)
            await agent.run("How far is Cork?", thread=thread)
            branch = await thread.fork(at="before")
            await agent.run("How far is Cork?", thread=branch)

            sent = [*await requests(thread), *(await requests(branch))[1:]]
            assert all(each.verified for each in sent)
            assert ["units: kilometres" in system(each) for each in sent] == [False, False, True, False]
            assert not any("units:" in message.text for message in await thread.history())
            assert not any("units:" in str(text) for each in sent for role, text in turns_in(each) if role != "system")
            assert [each.body for each in sent] == model.asked()
            recorded = await events(thread, "context-state-recorded")
            assert [each.data.state for each in recorded if each.data.state] == [{"units": "kilometres"}]
            assert await events(branch, "context-state-recorded") == [each for each in recorded if not each.data.state]
            assert preferences.failures == [None] * 4

            other = await engine.start_thread()  # the same instance, without the state of the first thread
            await agent.run("How far is Cork?", thread=other)
            assert "kilometres" not in str((await requests(other))[0].body)

    asyncio.run(talk())


def test_a_provider_gets_the_models_error_and_the_question_is_kept(aimock: Aimock, url: str) -> None:
    aimock.fail(500)

    async def talk() -> None:
        async with Engine.open(url) as engine:
            preferences = Preferences()
            client = Model(aimock).client()
            agent = Agent(client=client, engine=engine, context_providers=preferences, retries=0)
            thread = await engine.start_thread()
            with pytest.raises(ModelUnavailableError):
                await agent.run("I prefer miles", thread=thread)
            (failure,) = preferences.failures
            assert isinstance(failure, ModelUnavailableError)
            assert [(each.role, each.text) for each in await thread.history()] == [("user", "I prefer miles")]
            assert (await events(thread, "context-state-recorded"))[-1].data.state == {"units": "miles"}

    asyncio.run(talk())


# One UserFacts component, two threads

LEARNED = {"facts": [{"text": "The user's name is Caoimhe.", "message": 1, "replaces": None}], "forget": []}


def test_a_fact_of_one_thread_is_available_in_another_of_the_same_user(model: Model, url: str) -> None:
    model.says('"said": "Hello, my name', json.dumps(LEARNED))  # the extractor's request
    model.says('"known"', json.dumps({"facts": [], "forget": []}))
    model.says("my name is Caoimhe", "Hello, Caoimhe.")
    model.says("What is my name?", "I looked it up.")

    async def talk() -> None:
        async with Engine.open(url) as engine:
            agent, extractor = Agent(client=model.client(), engine=engine), model.client()
            facts = UserFacts(scope="user/12345", client=extractor)
            one = await engine.start_thread(context_providers=[facts])
            await agent.run("Hello, my name is Caoimhe.", thread=one)
            two = await engine.start_thread(context_providers=[facts])
            await agent.run("What is my name?", thread=two)
            other = await engine.start_thread(context_providers=[UserFacts(scope="user/777", client=extractor)])
            await agent.run("What is my name?", thread=other)

            (sent,), (sent_for_other_user,) = await requests(two), await requests(other)
            assert "Caoimhe" in str(sent.body)
            assert "Caoimhe" not in str(sent_for_other_user.body)
            assert sent.body in model.asked()
            scope = await engine.memory("user/12345")
            (fact,) = await scope.facts()
            why = await scope.why(fact)
            assert why.message is not None
            first = (await one.history()).messages[0]
            assert (why.thread_id, why.version) == (one.id, first.version)
            assert why.message.text == "Hello, my name is Caoimhe."
            (use,) = await scope.used_by(fact)
            assert (use.thread_id, use.version) == (two.id, sent.version)
            assert await (await engine.memory("user/777")).facts() == []
            with pytest.raises(ScopeError):
                UserFacts(scope=None, client=extractor)

            # After the source is redacted, the fact stays and its provenance shows the redaction.
            await one.redact(first)
            redacted_source = await scope.why(fact)
            assert (redacted_source.redacted, redacted_source.message) == (True, None)

    asyncio.run(talk())


# Retrieval in a namespace

LINK = "https://www.consoso.com/reports/2023.pdf"
TEXT = "The financial results of Contoso Corp for 2023 is as follows:\nIncome EUR 174 000 000\nExpenses EUR 152 000 000"


def report(text: str = TEXT) -> Document:
    return Document(text, source_name="Contoso 2023 Financial Report", source_link=LINK, namespaces=["group/g2"])


def test_documents_are_retrieved_in_their_namespace_and_cited_in_answers(model: Model, url: str) -> None:
    model.says("income of Contoso", "EUR 174 000 000 [1].")
    question = "What was the income of Contoso for 2023"

    async def talk() -> None:
        async with Engine.open(url) as engine:
            embedder = HashingEmbedder(1536)
            store = await engine.documents("Memories", namespace="group/g2", embedder=embedder)
            await store.upsert([report()])
            agent = Agent(client=model.client(), engine=engine)
            thread = await engine.start_thread(context_providers=[TextRetrieval(store, when="before_run", top=3)])
            response = await agent.run(question, thread=thread)
            citations: Any = response.messages[-1].metadata["citations"]
            (citation,) = citations
            assert (citation["source_name"], citation["source_link"]) == ("Contoso 2023 Financial Report", LINK)
            (sent,) = await requests(thread)
            assert "174 000 000" in str(sent.body)
            assert sent.verified

            others = await engine.documents("Memories", namespace="group/g1", embedder=embedder)
            thread = await engine.start_thread(context_providers=[TextRetrieval(others, when="before_run", top=3)])
            response = await agent.run(question, thread=thread)
            assert "citations" not in response.messages[-1].metadata
            (sent,) = await requests(thread)
            assert turns_in(sent) == [("user", question)]

            await store.upsert([report(TEXT.replace("174", "175"))])
            (passage,) = await store.search("income")
            assert "175 000 000" in passage.text
            trail = [each.type async for each in engine.audit(scope="Memories")]
            assert trail == ["scope-opened", "document-added", "document-added"]
            await store.remove(LINK)
            assert await store.search("income") == []
            assert [each.document for each in await store.search("income", at=3)] == [passage.document]
            with pytest.raises(EmbeddingMismatchError):
                await engine.documents("Memories", namespace="group/g2", embedder=HashingEmbedder(384))

    asyncio.run(talk())
