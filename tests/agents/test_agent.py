"""Agents as applications use them: runs on all kinds of threads, and their records."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Agent, Engine, Message, ScriptedChatClient, tool
from clew.agents import run_admission
from clew.agents.middleware import Middleware, ModelCallContext, Proceed, RunContext, ToolCallContext
from clew.agents.run_setup import Input
from clew.agents.tools import ToolContext, ToolOutcome
from clew.domain.errors import InvalidContentError, ThreadStatusError, UnknownThreadError, UnknownVersionError
from clew.domain.events import Event
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionResult
from clew.domain.models.client import Answer
from clew.domain.runs.errors import (
    AgentChangedError,
    AgentChangedWarning,
    AgentConfigurationError,
    AnswerFormatError,
    DefinitionMissingError,
    ModelRequestError,
    NoOpenRunError,
    RunLimitError,
    UnsupportedThreadError,
)
from clew.domain.runs.events import ModelCalled, RunStarted
from clew.infrastructure.scripted_client import call

pytestmark = pytest.mark.anyio


@tool(idempotent=True)
def lookup(order: int) -> str:
    """Look up an order."""
    return f"order {order} has shipped"


def sent_messages(body: JsonObject) -> list[tuple[Any, Any]]:
    """Return the role and text of each message of a request."""
    messages: Any = body["messages"]
    return [(each["role"], each["content"]) for each in messages]


async def types_of(thread: Any) -> list[str]:
    """Return the types of the thread's events."""
    return [event.type async for event in thread.events()]


async def model_calls(thread: Any) -> list[tuple[Event, ModelCalled]]:
    """Return the thread's model calls."""
    return [(event, event.data) async for event in thread.events() if isinstance(event.data, ModelCalled)]


async def test_a_run_needs_nothing_configured() -> None:
    response = await Agent(client=ScriptedChatClient("Hello.")).run("Hi")
    assert response.text == str(response) == "Hello."
    assert [message.role for message in response.messages] == ["assistant"]
    assert response.finish_reason == "stop"
    assert response.usage.total_tokens > 0
    assert await types_of(response.thread) == [
        "thread-started",
        "run-started",
        "message-appended",
        "model-called",
        "message-appended",
        "model-answered",
        "run-completed",
    ]


async def test_an_agent_keeps_its_threads_in_one_store() -> None:
    agent = Agent(client=ScriptedChatClient(["One.", "Two."]))
    first = await agent.run("1")
    second = await agent.run("2", thread=first.thread)
    assert second.thread.id == first.thread.id
    assert [each.text for each in (await second.thread.history()).messages] == ["1", "One.", "2", "Two."]


@pytest.mark.parametrize(
    "input_",
    ["Hi", Message.user("Hi"), [Message.user("Hi")], [Message.user("Hi"), Message.assistant("Ho"), Message.user("Hm")]],
    ids=["text", "message", "messages", "history"],
)
async def test_the_input_is_a_text_a_message_or_messages(input_: Input) -> None:
    client = ScriptedChatClient("Hello.")
    response = await Agent(client, instructions="Be brief.").run(input_)
    texts = ["Hi"] if isinstance(input_, str | Message) or len(input_ or ()) == 1 else ["Hi", "Ho", "Hm"]
    assert [each.text for each in (await response.thread.history()).messages] == [*texts, "Hello."]
    assert [content for _, content in sent_messages(client.requests[0])] == ["Be brief.", *texts]
    assert len(response.messages) == 1


async def test_a_run_without_input_answers_appended_messages(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(messages=[Message.user("Are you there?")])
        response = await Agent(ScriptedChatClient("Yes."), engine=engine).run(thread=thread)
        assert [each.text for each in (await thread.history()).messages] == ["Are you there?", "Yes."]
        assert response.text == "Yes."


async def test_nothing_to_answer_is_refused() -> None:
    with pytest.raises(InvalidContentError, match="nothing to answer"):
        await Agent(ScriptedChatClient("x")).run()
    agent = Agent(ScriptedChatClient("x"))
    thread = await agent.get_local_thread()
    with pytest.raises(InvalidContentError, match="nothing to answer"):
        await agent.run(thread=thread)
    assert await types_of(thread) == ["thread-started"]
    with pytest.raises(InvalidContentError, match="int is not an input"):
        await Agent(ScriptedChatClient("x")).run(3)  # type: ignore[call-overload]


async def test_equal_inputs_are_separate_messages() -> None:
    client = ScriptedChatClient(["And?", "And?", "And?"])
    agent = Agent(client)
    thread = await agent.get_local_thread()
    for _ in range(3):
        await agent.run("yes", thread=thread)
    assert sent_messages(client.requests[2]) == [
        ("user", "yes"),
        ("assistant", "And?"),
        ("user", "yes"),
        ("assistant", "And?"),
        ("user", "yes"),
    ]


async def test_a_tool_is_called_and_its_result_is_sent_to_the_model() -> None:
    client = ScriptedChatClient([call("lookup", order=7), "It has shipped."])
    response = await Agent(client, tools=[lookup]).run("Where is 7?")
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert sent_messages(client.requests[1])[-1] == ("tool", "order 7 has shipped")
    assert (await types_of(response.thread))[5:] == [
        "model-answered",
        "tool-started",
        "message-appended",
        "tool-finished",
        "model-called",
        "message-appended",
        "model-answered",
        "run-completed",
    ]


async def test_tools_are_called_concurrently() -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        """Wait for the other call."""
        async with asyncio.timeout(20):
            await both.wait()
        return name

    client = ScriptedChatClient([[call("meet", name="a"), call("meet", name="b")], "Done."])
    response = await Agent(client, tools=[meet]).run("Go")
    assert [each.text for each in response.messages] == ["", "", "", "Done."]
    assert [content for role, content in sent_messages(client.requests[1]) if role == "tool"] == ["a", "b"]


async def test_a_tool_receives_its_context() -> None:
    seen: list[ToolContext] = []

    def note(context: ToolContext, word: str) -> str:
        """Note a word."""
        seen.append(context)
        return word

    client = ScriptedChatClient([call("note", word="a"), "Done."])
    response = await Agent(client, tools=[note]).run("Go", actor="user:42", deps={"db": 1})
    (context,) = seen
    assert (context.deps, context.actor, context.run_id) == ({"db": 1}, "user:42", response.run_id)
    assert context.thread.id == response.thread.id
    assert context.idempotency_key.startswith(response.run_id)


async def test_a_run_accepts_its_own_tools_options_and_model() -> None:
    client = ScriptedChatClient([call("lookup", order=1), "Done.", "Plain."])
    agent = Agent(client, options={"temperature": 0.5, "seed": 1})
    first = await agent.run("Go", tools=[lookup], model="bigger", options={"temperature": 0})
    assert client.requests[0]["model"] == "bigger"
    assert (client.requests[0]["temperature"], client.requests[0]["seed"]) == (0, 1)
    assert "tools" in client.requests[1]
    await agent.run("Again", thread=first.thread)
    assert client.requests[2]["model"] == "scripted"
    assert client.requests[2]["temperature"] == 0.5
    assert "tools" not in client.requests[2]


async def test_an_answer_can_have_a_response_format() -> None:
    class Weather(BaseModel):
        city: str
        celsius: float | None = None

    client = ScriptedChatClient(['{"city": "Cork", "celsius": 11.5}', "not JSON"])
    agent = Agent(client)
    response = await agent.run("Weather?", response_format=Weather)
    assert response.value == Weather(city="Cork", celsius=11.5)
    schema: Any = client.requests[0]["response_format"]
    assert schema["json_schema"]["schema"]["required"] == ["city", "celsius"]
    again = await agent.run("Weather?", response_format=Weather)
    with pytest.raises(AnswerFormatError, match="Weather") as caught:
        _ = again.value
    assert caught.value.text == "not JSON"
    with pytest.raises(AgentConfigurationError, match="was not asked for a format"):
        _ = (await Agent(ScriptedChatClient("x")).run("y")).value
    with pytest.raises(AgentConfigurationError, match="is not a format"):
        await agent.run("Weather?", response_format=dict)


async def test_a_run_on_a_fork_does_not_change_the_thread() -> None:
    agent = Agent(ScriptedChatClient(["One.", "Other.", "Earlier."]))
    first = await agent.run("1")
    forked = await agent.run("2", thread=first.thread, fork=True)
    earlier = await agent.run("0", thread=first.thread, at=1)
    assert [each.text for each in (await first.thread.history()).messages] == ["1", "One."]
    assert [each.text for each in (await forked.thread.history()).messages] == ["1", "One.", "2", "Other."]
    assert [each.text for each in (await earlier.thread.history()).messages] == ["0", "Earlier."]
    assert len({first.thread.id, forked.thread.id, earlier.thread.id}) == 3
    with pytest.raises(AgentConfigurationError, match="need the thread"):
        await agent.run("2", fork=True)


async def test_a_stream_gives_updates_and_then_the_response() -> None:
    agent = Agent(ScriptedChatClient([call("lookup", order=7), "It has shipped."]), tools=[lookup])
    stream = agent.run("Where is 7?", stream=True)
    updates = [update async for update in stream]
    assert "".join(update.text for update in updates if update.type == "text") == "It has shipped."
    assert [update.type for update in updates if update.type in {"answer", "result"}] == ["answer", "result", "answer"]
    response = await stream.get_final_response()
    assert response.text == "It has shipped."
    assert [update.message for update in updates if update.message is not None] == response.messages


async def test_the_response_of_a_stream_is_available_without_iteration() -> None:
    stream = Agent(ScriptedChatClient("All of it.")).run("Go", stream=True)
    assert (await stream.get_final_response()).text == "All of it."


async def test_an_abandoned_stream_is_recorded_before_the_store_closes(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient("Many words without a reader."), engine=engine)
        thread = await engine.start_thread()
        async for _ in agent.run("Go", thread=thread, stream=True):
            break
    async with Engine.open(url) as engine:
        again = await engine.thread(thread.id)
        assert (await types_of(again))[-3:] == ["message-appended", "answer-interrupted", "run-abandoned"]
        last_text = (await again.history()).messages[-1].text
        assert last_text
        assert "Many words without a reader.".startswith(last_text)


async def test_an_agent_opens_a_thread_by_its_id(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient("One."), engine=engine, name="Clerk", instructions="Be brief.")
        first = await agent.run("1")
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient("Two."), engine=engine, name="Clerk", instructions="Be brief.")
        thread = await agent.thread(first.thread.id)
        assert (await thread.run("2")).text == "Two."
        await thread.end()
        with pytest.raises(ThreadStatusError, match="ended"):
            await agent.run("3", thread=thread)
        with pytest.raises(UnknownThreadError):
            await agent.thread("nowhere")


async def test_the_error_of_a_thread_without_an_agent_names_agent_run(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        with pytest.raises(AgentConfigurationError, match=r"agent\.run"):
            await thread.run("Hi")
        with pytest.raises(AgentConfigurationError, match="not a thread of an Engine"):
            await Agent(ScriptedChatClient("x"), engine=engine).run("y", thread=3)  # type: ignore[call-overload]


async def test_refuses_an_unsupported_thread_kind_before_any_event(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        agent = Agent(ScriptedChatClient("x"), engine=engine)
        with pytest.raises(UnsupportedThreadError, match="local") as caught:
            await agent.get_remote_thread()
        assert (caught.value.kind, caught.value.supported) == ("remote", ("local",))
        other = Agent(ScriptedChatClient("x", thread_kinds=["remote"]), engine=engine)
        remote = await other.get_remote_thread()
        before = await types_of(remote)
        with pytest.raises(UnsupportedThreadError, match="local"):
            await agent.run("Hi", thread=remote)
        assert await types_of(remote) == before


async def test_definitions_of_an_agent_are_on_the_log_only_as_digests(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Engine.open(f"sqlite:///{path}") as engine:
        agent = Agent(
            ScriptedChatClient("Yes."), engine=engine, name="Clerk", instructions="Canary one.", tools=[lookup]
        )
        response = await agent.run("Hi")
        events = [event async for event in response.thread.events()]
        started = events[1].data
        assert isinstance(started, RunStarted)
        assert (started.agent.id, started.agent.name, started.agent.type) == ("Clerk", "Clerk", "Agent")
        assert len(started.fingerprint.digests) == 2
        request = await response.thread.request(events[3].version)
        assert request.verified
        assert sent_messages(request.body)[0] == ("system", "Canary one.")
    with sqlite3.connect(path) as connection:
        states = b"".join(row[0] for row in connection.execute("SELECT state FROM event"))
        kinds = [row[0] for row in connection.execute("SELECT kind FROM blob")]
    connection.close()
    assert b"Canary" not in states
    assert b"Look up" not in states
    assert kinds == ["definition", "definition"]


async def test_a_request_without_definitions_needs_an_agent_with_them(any_url: str, tmp_path: Path) -> None:
    async with Engine.open(any_url) as engine:
        response = await Agent(ScriptedChatClient("Yes."), engine=engine, instructions="Be brief.").run("Hi")
        lines = [line async for line in engine.export_events(response.thread.id)]
    file = tmp_path / "thread.jsonl"
    file.write_bytes(b"".join(lines))
    async with Engine.open("memory:") as elsewhere:
        await elsewhere.import_events(file)
        thread = await elsewhere.thread(response.thread.id)
        ((event, _),) = await model_calls(thread)
        with pytest.raises(DefinitionMissingError, match="agent") as caught:
            await thread.request(event.version)
        assert len(caught.value.digests) == 1
        other = Agent(ScriptedChatClient("x"), engine=elsewhere, instructions="Be long.")
        with pytest.warns(AgentChangedWarning, match="the instructions"):
            await other.thread(thread.id)
        with pytest.raises(DefinitionMissingError):
            await thread.request(event.version)
        await Agent(ScriptedChatClient("x"), engine=elsewhere, instructions="Be brief.").thread(thread.id)
        assert (await thread.request(event.version)).verified


async def test_only_a_model_call_has_a_request() -> None:
    response = await Agent(ScriptedChatClient("Yes.")).run("Hi")
    with pytest.raises(UnknownVersionError, match="not a model call"):
        await response.thread.request(1)


async def test_a_request_with_a_redacted_message_is_not_verified() -> None:
    response = await Agent(ScriptedChatClient("Yes.")).run("My number is 4711")
    await response.thread.redact(3)
    ((event, _),) = await model_calls(response.thread)
    request = await response.thread.request(event.version)
    assert not request.verified
    assert request.redacted == (3,)


async def test_a_changed_agent_with_the_same_id_is_reported(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await Agent(ScriptedChatClient("One."), engine=engine, instructions="Be brief.").run("1", thread=thread)
        same = Agent(ScriptedChatClient("Two."), engine=engine, instructions="Be brief.")
        await same.run("2", thread=thread, tools=[lookup])
        again = Agent(ScriptedChatClient("Three."), engine=engine, instructions="Be brief.")
        await again.run("3", thread=thread)  # the tools of the previous run are not the agent's tools
        strict = Agent(ScriptedChatClient("Four."), engine=engine, tools=[lookup], on_changed_agent="raise")
        with pytest.raises(AgentChangedError, match="the instructions, the tools") as caught:
            await strict.run("4", thread=thread)
        assert caught.value.changed == ("the instructions", "the tools")
        assert (await thread.summary()).messages == 6
        stranger = Agent(ScriptedChatClient("Five."), engine=engine, id="another agent", on_changed_agent="raise")
        assert (await stranger.run("5", thread=thread)).text == "Five."


async def test_a_run_is_limited_in_rounds_and_time() -> None:
    endless = ScriptedChatClient(call("lookup", order=1), loop=True)
    agent = Agent(endless, tools=[lookup], max_rounds=3)
    with pytest.raises(RunLimitError, match="max_rounds allows: 3"):
        await agent.run("Go")
    assert len(endless.requests) == 3

    async def forever() -> str:
        """Never answer."""
        await asyncio.Event().wait()
        return ""

    slow = Agent(ScriptedChatClient([call("forever"), "x"]), tools=[forever], max_seconds=1)
    thread = await slow.get_local_thread()
    with pytest.raises(RunLimitError, match="1 s"):
        await slow.run("Go", thread=thread)
    assert (await types_of(thread))[-3:] == ["message-appended", "tool-failed", "run-failed"]
    (result,) = (await thread.history()).messages[-1].contents
    assert isinstance(result, FunctionResult)
    assert "stopped" in str(result.result)


async def test_a_note_on_the_error_names_the_thread() -> None:
    agent = Agent(ScriptedChatClient([ModelRequestError("No."), "Yes."]))
    with pytest.raises(ModelRequestError) as caught:
        await agent.run("Hi")
    (note,) = caught.value.__notes__
    thread = await agent.thread(note.split("'")[1])
    assert [each.text for each in (await thread.history()).messages] == ["Hi"]
    assert (await agent.run(thread=thread)).text == "Yes."


async def test_refuses_an_unknown_on_conflict() -> None:
    agent = Agent(ScriptedChatClient("Yes."))
    with pytest.raises(AgentConfigurationError, match="'raise', 'wait', 'fork'"):
        await agent.run("Hi", on_conflict="ignore")  # type: ignore[call-overload]
    response = await agent.run("Hi")
    with pytest.raises(AgentConfigurationError, match="'raise', 'wait'"):
        await agent.continue_run(response.thread, on_conflict="fork")  # type: ignore[call-overload]


async def test_continue_run_needs_an_open_run() -> None:
    agent = Agent(ScriptedChatClient("Yes."))
    response = await agent.run("Hi")
    with pytest.raises(NoOpenRunError):
        await agent.continue_run(response.thread)


async def test_a_continued_run_uses_its_first_model_options_and_format(any_url: str) -> None:
    class Refund(BaseModel):
        done: bool

    @tool(approval="always")
    def refund(order: int) -> str:
        """Refund an order."""
        return f"refunded {order}"

    client = ScriptedChatClient([call("refund", order=1), '{"done": true}'])
    options = {"temperature": 0}
    async with Engine.open(any_url) as engine:
        agent = Agent(client, engine=engine)
        first = await agent.run("Go", tools=[refund], model="bigger", options=options, response_format=Refund)
        await first.approvals[0].approve()
        response = await agent.continue_run(first.thread, tools=[refund], response_format=Refund)
    assert response.value == Refund(done=True)
    one, two = client.requests
    assert [two[key] for key in ("model", "temperature", "response_format", "tools")] == [
        one[key] for key in ("model", "temperature", "response_format", "tools")
    ]


async def test_a_continued_run_does_not_use_the_format_of_a_run_that_ended_meanwhile(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first run is read to be continued, it is completed, and a second run waits for an approval."""

    class Refund(BaseModel):
        done: bool

    @tool(approval="always")
    def refund(order: int) -> str:
        """Refund an order."""
        return f"refunded {order}"

    client = ScriptedChatClient([call("refund", order=1), '{"done": true}', call("refund", order=2), "Done."])
    check_providers = run_admission._check_providers
    async with Engine.open(any_url) as engine:
        agent = Agent(client, engine=engine, tools=[refund])
        first = await agent.run("Go", response_format=Refund)
        await first.approvals[0].approve()

        async def check_late(*arguments: Any) -> None:
            await check_providers(*arguments)
            monkeypatch.setattr(run_admission, "_check_providers", check_providers)
            await agent.continue_run(first.thread)
            second = await agent.run("Again", thread=first.thread)
            await second.approvals[0].approve()

        monkeypatch.setattr(run_admission, "_check_providers", check_late)
        assert (await agent.continue_run(first.thread)).text == "Done."
    assert ["response_format" in request for request in client.requests] == [True, True, False, False]


async def test_middleware_wraps_runs_model_calls_and_tool_calls() -> None:
    calls: list[str] = []

    class RecordingMiddleware(Middleware):
        async def run(self, context: RunContext, proceed: Proceed[Any]) -> Any:
            calls.append(f"run {context.agent_id}")
            return await proceed()

        async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
            calls.append(f"model {context.round}")
            answer = await proceed()
            return answer if answer.message.calls else Answer(Message.assistant("Replaced."), "stop")

        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            calls.append(f"tool {context.name} {context.arguments}")
            await proceed()
            return ToolOutcome("Hidden.")

    client = ScriptedChatClient([call("lookup", order=7), "Done."])
    response = await Agent(client, tools=[lookup], middleware=[RecordingMiddleware()], name="Clerk").run("Go")
    assert calls == ["run Clerk", "model 1", 'tool lookup {"order": 7}', "model 2"]
    assert response.text == "Replaced."
    assert sent_messages(client.requests[1])[-1] == ("tool", "Hidden.")


def test_the_arguments_of_an_agent_are_checked() -> None:
    client = ScriptedChatClient("x")
    assert (Agent(client).id, Agent(client, name="A").id, Agent(client, name="A", id="b").id) == ("agent", "A", "b")
    with pytest.raises(AgentConfigurationError, match="on_changed_agent"):
        Agent(client, on_changed_agent="ignore")  # type: ignore[arg-type]
    with pytest.raises(AgentConfigurationError, match="Two tools"):
        Agent(client, tools=[lookup, lookup])
    with pytest.raises(InvalidContentError):
        Agent(client, options={"x": {1, 2}})
    wrong: list[dict[str, Any]] = [
        {"max_rounds": 0},
        {"max_rounds": "3"},
        {"retries": -1},
        {"max_seconds": 0},
        {"max_seconds": "soon"},
        {"model": 5},
        {"middleware": [5]},
        {"tools": lookup},
        {"tools": None},
    ]
    for options in wrong:
        with pytest.raises(AgentConfigurationError, match=next(iter(options))):
            Agent(client, **options)
    with pytest.raises(AgentConfigurationError, match="NoneType is not a model client"):
        Agent(None)  # type: ignore[arg-type]


def test_a_script_runs_agents_without_an_event_loop() -> None:
    agent = Agent(ScriptedChatClient(["One.", "Two."]))
    first = agent.run_sync("1")
    assert agent.run_sync("2", thread=first.thread).text == "Two."
