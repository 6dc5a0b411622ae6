"""Runs with the client of Gemini's Interactions against a strict server that stores them, on both kinds of threads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.agents.run_checks import check_store, events_of
from tests.servers.strict_interactions import StrictInteractions

from clew import Agent, Engine, GeminiClient, GeminiInteractionsClient, KeepLast, Message, ScriptedChatClient
from clew.domain.messages import Media, Reasoning, Text
from clew.domain.models.client import Question
from clew.domain.runs.events import ModelAnswered, ModelCalled, ModelFailed
from clew.errors import ServiceThreadExpiredError
from clew.infrastructure.scripted_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]

KEY = "AIza-canary0123456789"
both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def look_up(order: int) -> dict[str, Any]:
    """Look up an order."""
    return {"order": order, "on its way": True}


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.fixture
def strict() -> Iterator[StrictInteractions]:
    with StrictInteractions() as server:
        yield server


def client_of(strict: StrictInteractions, model: str = "gemini-3-pro", **more: Any) -> GeminiInteractionsClient:
    return GeminiInteractionsClient(model, api_key=KEY, base_url=strict.url, options={"temperature": 1}, **more)


def agent_of(strict: StrictInteractions, engine: Engine, model: str = "gemini-3-pro", **more: Any) -> Agent:
    settings = {"instructions": "Be brief.", "tools": [look_up], **more}
    return Agent(client_of(strict, model), engine=engine, **settings)


async def run(agent: Agent, text: str, thread: Any, *, streams: bool = False) -> str:
    if streams:
        return (await agent.run(text, thread=thread, stream=True).get_final_response()).text
    return (await agent.run(text, thread=thread)).text


async def requests_of(thread: Any) -> list[Any]:
    return [
        await thread.request(event.version) for event in await events_of(thread) if isinstance(event.data, ModelCalled)
    ]


async def left_out(thread: Any) -> list[tuple[int, ...]]:
    return [event.data.left_out for event in await events_of(thread) if isinstance(event.data, ModelCalled)]


def sent(strict: StrictInteractions) -> list[Any]:
    return [json.loads(request) for request in strict.requests]


@both_ways
@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_three_rounds_of_parallel_calls(
    strict: StrictInteractions,
    engine: Engine,
    kind: str,
    streams: bool,  # noqa: FBT001  # pytest passes it
) -> None:
    agent = agent_of(strict, engine)
    thread: Any = await (agent.get_remote_thread() if kind == "remote" else agent.get_local_thread())
    assert await run(agent, "Where is it?", thread, streams=streams) == "Done 4."
    assert await run(agent, "And now?", thread, streams=streams) == "Done 8."
    assert strict.refused == []
    requests = await requests_of(thread)
    assert [request.content for request in requests] == strict.requests
    assert all(request.verified and request.path == "/interactions" for request in requests)
    assert {headers["api-revision"] for headers in strict.headers} == {"2026-05-20"}
    bodies = sent(strict)
    assert [body["store"] for body in bodies] == [kind == "remote"] * 8
    lengths = [1, 2, 2, 2, 1, 2, 2, 2] if kind == "remote" else [1, 6, 11, 16, 19, 24, 29, 34]
    assert [len(body["input"]) for body in bodies] == lengths
    continued = [body.get("previous_interaction_id") for body in bodies]
    assert continued == ([None, *(f"v1_{n}" for n in range(1, 8))] if kind == "remote" else [None] * 8)
    assert (await engine.verify()).first_bad is None


@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_streamed_and_whole_answers_are_equal(strict: StrictInteractions, engine: Engine, kind: str) -> None:
    recorded: list[Any] = []
    for streams in (False, True):
        strict.requests.clear()
        agent = agent_of(strict, engine)
        thread: Any = await (agent.get_remote_thread() if kind == "remote" else agent.get_local_thread())
        await run(agent, "Where is it?", thread, streams=streams)
        answered = [event.data for event in await events_of(thread) if isinstance(event.data, ModelAnswered)]
        said = [(each.finish_reason, each.usage, each.model, each.response_id) for each in answered]
        recorded.append(([each.message for each in (await thread.history()).messages], said))
    assert recorded[0] == recorded[1]
    messages, said = recorded[0]
    assert [content for content in messages[1].contents if isinstance(content, Reasoning)] == [Reasoning(text="Hm 1.")]
    assert [reason for reason, *_ in said] == ["tool_calls"] * 3 + ["stop"]
    assert (said[0][1].input_tokens, said[0][1].output_tokens, said[0][1].reasoning_tokens) == (10, 8, 3)


async def test_a_remote_thread_forks_and_rewinds_at_the_service(strict: StrictInteractions, engine: Engine) -> None:
    agent = agent_of(strict, engine, tools=[])
    thread: Any = await agent.get_remote_thread()
    await run(agent, "One.", thread)
    await run(agent, "Two.", thread)
    versions = [each.version for each in (await thread.history()).messages]
    branch = await thread.fork(at=versions[1])
    await run(agent, "Another two.", branch)
    await thread.rewind(to=versions[1])
    await run(agent, "Two again.", thread)
    assert [body.get("previous_interaction_id") for body in sent(strict)] == [None, "v1_1", "v1_1", "v1_1"]
    there = await thread.service_history()
    assert [message.text for message in there] == ["One.", "Done 1.", "Two again.", "Done 4."]
    assert (await thread.reconcile()).counts == (4, 0, 0, 0)
    assert strict.refused == []


@both_ways
async def test_a_lost_interaction_is_an_error_or_is_sent_again(
    strict: StrictInteractions,
    engine: Engine,
    streams: bool,  # noqa: FBT001  # pytest passes it
) -> None:
    agent = agent_of(strict, engine)
    thread: Any = await agent.get_remote_thread()
    await run(agent, "Where is it?", thread, streams=streams)
    strict.stored.clear()
    with pytest.raises(ServiceThreadExpiredError, match=r"the interaction.*fork\(kind='local'\)") as expired:
        await run(agent, "And now?", thread, streams=streams)
    assert expired.value.status == 404
    branch = await thread.fork(kind="local")
    assert (await run(agent, "And here?", branch, streams=streams)).startswith("Done")
    again = agent_of(strict, engine, on_expired_service_thread="reseed")
    strict.requests.clear()
    strict.refused.clear()
    assert (await run(again, "And now?", thread, streams=streams)).startswith("Done")
    failed = [event.data for event in await events_of(thread) if isinstance(event.data, ModelFailed)]
    assert [each.error.kind for each in failed] == ["ServiceThreadExpiredError"] * 2
    lost, seeded, *following = sent(strict)
    assert ("previous_interaction_id" in lost, "previous_interaction_id" in seeded) == (True, False)
    assert (len(lost["input"]), len(seeded["input"])) == (2, 20), "both questions, and the signed steps of the record"
    assert all(len(body["input"]) == 2 for body in following)
    assert strict.refused == ["Requested entity was not found."]
    await check_store(engine, thread, await events_of(thread))


async def test_a_thread_of_the_service_is_taken_up_compared_and_deleted(
    strict: StrictInteractions, engine: Engine
) -> None:
    agent = agent_of(strict, engine)
    first: Any = await agent.get_remote_thread()
    await run(agent, "Where is it?", first)
    held = await first.service_thread_id
    thread: Any = await agent.get_remote_thread(held, read_history=True)
    roles = [each.role for each in (await thread.history()).messages]
    assert roles == ["user", *(["assistant", "tool", "tool"] * 3), "assistant"]
    await run(agent, "And now?", thread)
    assert (await thread.reconcile()).counts == (22, 0, 0, 0)
    await thread.delete(service=True)
    assert list(strict.stored) == ["v1_1", "v1_2", "v1_3"], "the taken-up id and the new ones are deleted"
    assert strict.refused == []


async def test_another_programs_input_is_read_in_every_form(strict: StrictInteractions, engine: Engine) -> None:
    text, picture = {"type": "text", "text": "Hi."}, {"type": "image", "uri": "https://x/y.png"}
    for number, given in enumerate(["Hi.", text, [text, {**picture, "mime_type": "image/png"}, {"type": "x"}]]):
        output = {"type": "model_output", "content": [{"type": "text", "text": "Hello."}]}
        strict.stored[f"v1_{number}"] = {"id": f"v1_{number}", "input": given, "steps": [output], "status": "completed"}
        thread = await agent_of(strict, engine).get_remote_thread(f"v1_{number}", read_history=True)
        question, answer = (await thread.history()).messages
        assert (question.text, answer.text) == ("Hi.", "Hello.")
    assert question.message is not None
    assert question.message.contents[1] == Media(uri="https://x/y.png", media_type="image/png")


@pytest.mark.parametrize("order", ["before", "between"])
async def test_another_model_in_between(strict: StrictInteractions, engine: Engine, order: str) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    if order == "between":
        await run(agent, "Where is it?", thread)
    scripted = ScriptedChatClient([call("look_up", order=7), "On its way."])
    await run(Agent(scripted, engine=engine, tools=[look_up], instructions="Be brief."), "Ask another.", thread)
    await run(agent, "And now?", thread)
    assert not (await left_out(thread))[-1], "the client's own signatures are sent again"
    await run(agent_of(strict, engine, "gemini-3-flash"), "And you?", thread)
    assert strict.refused == []
    assert (await left_out(thread))[-1], "the other model's signatures are not sent"


async def test_after_a_reducer_and_a_redaction(strict: StrictInteractions, engine: Engine) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    await run(agent, "My secret is 7.", thread)
    await thread.redact((await thread.history()).messages[-1].version)
    await run(agent_of(strict, engine, reducer=KeepLast(6)), "And now?", thread)
    assert strict.refused == []


async def test_both_of_geminis_clients_on_one_thread(strict: StrictInteractions, engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(agent_of(strict, engine), "Where is it?", thread)
    other = GeminiClient("gemini-3-pro", api_key=KEY)
    (*_, last) = await requests_of(thread)
    assert last.body["input"][1]["signature"].startswith("gemini-3-pro-sig")
    answers = tuple(each.message for each in (await thread.history()).messages if each.message is not None)
    body = other.wire.make_body(Question("gemini-3-pro", answers, provider=other.provider))
    assert "gemini-3-pro-sig" not in json.dumps(body), "a signature goes back to its own format only"


async def test_system_messages_media_authors_and_a_schema(strict: StrictInteractions, engine: Engine) -> None:
    picture = Message(
        role="user", contents=(Media(uri="data:image/png;base64,AAAA"), Text(text="Look.")), author="Anna"
    )
    given = [Message.system("Know this."), picture, Message.system("Now be formal.")]
    agent = agent_of(strict, engine, tools=[])
    local = await agent.get_local_thread(messages=given)
    await agent.run(thread=local, response_format={"type": "object", "properties": {"a": {"type": "string"}}})
    remote: Any = await agent.get_remote_thread()
    await remote.append(given)
    await agent.run(thread=remote)
    here, there = sent(strict)
    said = {"type": "user_input", "content": [{"type": "text", "text": "[System] Know this."}]}
    asked = [
        {"type": "image", "data": "AAAA", "mime_type": "image/png"},
        {"type": "text", "text": "Anna: Look."},
    ]
    formal = {"type": "user_input", "content": [{"type": "text", "text": "[System] Now be formal."}]}
    question = {"type": "user_input", "content": asked}
    assert (here["system_instruction"], here["input"]) == ("Be brief.\n\nKnow this.", [question, formal])
    assert (there["system_instruction"], there["input"]) == ("Be brief.", [said, question, formal])
    form = here["response_format"]
    assert (form["type"], form["mime_type"], form["schema"]["type"]) == ("text", "application/json", "object")
    assert (await remote.reconcile()).counts == (4, 0, 0, 0)
    assert strict.refused == []


async def test_a_participant_of_a_chat_continues_its_interactions(strict: StrictInteractions, engine: Engine) -> None:
    """The service has the participant's own history, and gets of each turn only what is new."""

    def heard(body: Any) -> str:
        return f"heard {body['messages'][-1]['content']}"

    strict.rounds = 0
    gem = Agent(client_of(strict, store=True), engine=engine, id="gem", name="Gem")
    chat = await engine.start_chat([gem, Agent(ScriptedChatClient(heard), id="bo", name="Bo")], max_turns=4)
    response = await chat.run("hello all", actor="user:1")
    assert len(response.messages) == 4
    first, second = sent(strict)
    assert "previous_interaction_id" not in first
    assert second["previous_interaction_id"] == "v1_1"
    assert "hello all" in json.dumps(first["input"])
    assert "hello all" not in json.dumps(second["input"]).replace("heard hello all", "")
    assert "Bo: heard" in json.dumps(second["input"])
    (channel,) = [each.thread for each in chat.participants if each.name == "Gem"]
    assert channel.kind == "remote"
    assert all(request.verified for request in await requests_of(channel))
