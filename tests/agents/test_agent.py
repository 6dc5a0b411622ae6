"""What an application does with an agent: run it, on threads of all kinds, and see what it did."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Agent, Engine, Message, ScriptedChatClient, tool
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


def said(body: JsonObject) -> list[tuple[Any, Any]]:
    """Role and words of each message of a request."""
    messages: Any = body["messages"]
    return [(each["role"], each["content"]) for each in messages]


async def types_of(thread: Any) -> list[str]:
    """The types of the thread's events."""
    return [event.type async for event in thread.events()]


async def called(thread: Any) -> list[tuple[Event, ModelCalled]]:
    """The thread's model calls."""
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
    "given",
    ["Hi", Message.user("Hi"), [Message.user("Hi")], [Message.user("Hi"), Message.assistant("Ho"), Message.user("Hm")]],
    ids=["words", "message", "messages", "history"],
)
async def test_input_is_words_messages_or_a_whole_history(given: Input) -> None:
    client = ScriptedChatClient("Hello.")
    response = await Agent(client, instructions="Be brief.").run(given)
    texts = ["Hi"] if isinstance(given, str | Message) or len(given or ()) == 1 else ["Hi", "Ho", "Hm"]
    assert [each.text for each in (await response.thread.history()).messages] == [*texts, "Hello."]
    assert [content for _, content in said(client.requests[0])] == ["Be brief.", *texts]
    assert len(response.messages) == 1


async def test_without_input_it_answers_what_was_appended(any_url: str) -> None:
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


async def test_three_times_yes_is_three_messages() -> None:
    client = ScriptedChatClient(["And?", "And?", "And?"])
    agent = Agent(client)
    thread = await agent.get_local_thread()
    for _ in range(3):
        await agent.run("yes", thread=thread)
    assert said(client.requests[2]) == [
        ("user", "yes"),
        ("assistant", "And?"),
        ("user", "yes"),
        ("assistant", "And?"),
        ("user", "yes"),
    ]


async def test_a_tool_is_called_and_its_result_answered() -> None:
    client = ScriptedChatClient([call("lookup", order=7), "It has shipped."])
    response = await Agent(client, tools=[lookup]).run("Where is 7?")
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert said(client.requests[1])[-1] == ("tool", "order 7 has shipped")
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


async def test_tools_are_called_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        """Wait for the other."""
        async with asyncio.timeout(20):
            await both.wait()
        return name

    client = ScriptedChatClient([[call("meet", name="a"), call("meet", name="b")], "Done."])
    response = await Agent(client, tools=[meet]).run("Go")
    assert [each.text for each in response.messages] == ["", "", "", "Done."]
    assert [content for role, content in said(client.requests[1]) if role == "tool"] == ["a", "b"]


async def test_a_tool_gets_what_it_asks_for() -> None:
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


async def test_a_run_can_be_given_tools_options_and_a_model_of_its_own() -> None:
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


async def test_an_answer_can_be_asked_for_in_a_format() -> None:
    class Weather(BaseModel):
        city: str
        celsius: float | None = None

    client = ScriptedChatClient(['{"city": "Cork", "celsius": 11.5}', "no JSON"])
    agent = Agent(client)
    response = await agent.run("Weather?", response_format=Weather)
    assert response.value == Weather(city="Cork", celsius=11.5)
    schema: Any = client.requests[0]["response_format"]
    assert schema["json_schema"]["schema"]["required"] == ["city", "celsius"]
    again = await agent.run("Weather?", response_format=Weather)
    with pytest.raises(AnswerFormatError, match="Weather") as caught:
        _ = again.value
    assert caught.value.text == "no JSON"
    with pytest.raises(AgentConfigurationError, match="was not asked for a format"):
        _ = (await Agent(ScriptedChatClient("x")).run("y")).value
    with pytest.raises(AgentConfigurationError, match="not a pydantic model"):
        await agent.run("Weather?", response_format=dict)  # type: ignore[arg-type]


async def test_a_run_on_a_fork_leaves_the_thread_as_it_is() -> None:
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


async def test_a_stream_gives_what_comes_and_the_response_in_the_end() -> None:
    agent = Agent(ScriptedChatClient([call("lookup", order=7), "It has shipped."]), tools=[lookup])
    stream = agent.run("Where is 7?", stream=True)
    updates = [update async for update in stream]
    assert "".join(update.text for update in updates if update.type == "text") == "It has shipped."
    assert [update.type for update in updates if update.type in {"answer", "result"}] == ["answer", "result", "answer"]
    response = await stream.get_final_response()
    assert response.text == "It has shipped."
    assert [update.message for update in updates if update.message is not None] == response.messages


async def test_the_response_of_a_stream_can_be_had_without_following_it() -> None:
    stream = Agent(ScriptedChatClient("All of it.")).run("Go", stream=True)
    assert (await stream.get_final_response()).text == "All of it."


async def test_what_was_left_is_recorded_before_the_store_is_closed(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient("Many words that are never heard."), engine=engine)
        thread = await engine.start_thread()
        async for _ in agent.run("Go", thread=thread, stream=True):
            break
    async with Engine.open(url) as engine:
        again = await engine.thread(thread.id)
        assert (await types_of(again))[-3:] == ["message-appended", "answer-interrupted", "run-abandoned"]
        said_last = (await again.history()).messages[-1].text
        assert said_last
        assert "Many words that are never heard.".startswith(said_last)


async def test_threads_can_be_taken_up_by_id(url: str) -> None:
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


async def test_a_thread_without_an_agent_says_how_to_run_on_it(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        with pytest.raises(AgentConfigurationError, match=r"agent\.run"):
            await thread.run("Hi")
        with pytest.raises(AgentConfigurationError, match="not a thread of an Engine"):
            await Agent(ScriptedChatClient("x"), engine=engine).run("y", thread=3)  # type: ignore[call-overload]


async def test_a_kind_that_the_client_cannot_do_is_refused_before_any_event(any_url: str) -> None:
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


async def test_what_an_agent_is_goes_on_the_log_by_digest_only(tmp_path: Path) -> None:
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
        assert said(request.body)[0] == ("system", "Canary one.")
    with sqlite3.connect(path) as connection:
        states = b"".join(row[0] for row in connection.execute("SELECT state FROM event"))
        kinds = [row[0] for row in connection.execute("SELECT kind FROM blob")]
    connection.close()
    assert b"Canary" not in states
    assert b"Look up" not in states
    assert kinds == ["definition", "definition"]


async def test_a_request_without_its_definitions_waits_for_an_agent_that_has_them(any_url: str, tmp_path: Path) -> None:
    async with Engine.open(any_url) as engine:
        response = await Agent(ScriptedChatClient("Yes."), engine=engine, instructions="Be brief.").run("Hi")
        lines = [line async for line in engine.export_events(response.thread.id)]
    file = tmp_path / "thread.jsonl"
    file.write_bytes(b"".join(lines))
    async with Engine.open("memory:") as elsewhere:
        await elsewhere.import_events(file)
        thread = await elsewhere.thread(response.thread.id)
        ((event, _),) = await called(thread)
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
    ((event, _),) = await called(response.thread)
    request = await response.thread.request(event.version)
    assert not request.verified
    assert request.redacted == (3,)


async def test_another_agent_of_the_same_id_is_noticed(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await Agent(ScriptedChatClient("One."), engine=engine, instructions="Be brief.").run("1", thread=thread)
        same = Agent(ScriptedChatClient("Two."), engine=engine, instructions="Be brief.")
        await same.run("2", thread=thread, tools=[lookup])
        again = Agent(ScriptedChatClient("Three."), engine=engine, instructions="Be brief.")
        await again.run("3", thread=thread)  # the tools of one run are not the agent's
        strict = Agent(ScriptedChatClient("Four."), engine=engine, tools=[lookup], on_changed_agent="raise")
        with pytest.raises(AgentChangedError, match="the instructions, the tools") as caught:
            await strict.run("4", thread=thread)
        assert caught.value.changed == ("the instructions", "the tools")
        assert (await thread.summary()).messages == 6
        someone = Agent(ScriptedChatClient("Five."), engine=engine, id="someone else", on_changed_agent="raise")
        assert (await someone.run("5", thread=thread)).text == "Five."


async def test_rounds_and_time_are_limited() -> None:
    endless = ScriptedChatClient(call("lookup", order=1), loop=True)
    agent = Agent(endless, tools=[lookup], max_rounds=3)
    with pytest.raises(RunLimitError, match="3 times"):
        await agent.run("Go")
    assert len(endless.requests) == 3

    async def forever() -> str:
        """Never answer."""
        await asyncio.Event().wait()
        return ""

    slow = Agent(ScriptedChatClient([call("forever"), "x"]), tools=[forever], max_seconds=0.05)
    thread = await slow.get_local_thread()
    with pytest.raises(RunLimitError, match=r"0\.05 s"):
        await slow.run("Go", thread=thread)
    assert (await types_of(thread))[-3:] == ["message-appended", "tool-failed", "run-failed"]
    (result,) = (await thread.history()).messages[-1].contents
    assert isinstance(result, FunctionResult)
    assert "stopped" in str(result.result)


async def test_an_error_tells_on_which_thread_it_was() -> None:
    agent = Agent(ScriptedChatClient([ModelRequestError("No."), "Yes."]))
    with pytest.raises(ModelRequestError) as caught:
        await agent.run("Hi")
    (note,) = caught.value.__notes__
    thread = await agent.thread(note.split("'")[1])
    assert [each.text for each in (await thread.history()).messages] == ["Hi"]
    assert (await agent.run(thread=thread)).text == "Yes."


async def test_another_run_is_met_in_one_of_three_ways() -> None:
    agent = Agent(ScriptedChatClient("Yes."))
    with pytest.raises(AgentConfigurationError, match="'raise', 'wait', 'fork'"):
        await agent.run("Hi", on_conflict="ignore")  # type: ignore[call-overload]
    response = await agent.run("Hi")
    with pytest.raises(AgentConfigurationError, match="'raise', 'wait'"):
        await agent.continue_run(response.thread, on_conflict="fork")  # type: ignore[call-overload]


async def test_there_may_be_no_run_to_go_on_with() -> None:
    agent = Agent(ScriptedChatClient("Yes."))
    response = await agent.run("Hi")
    with pytest.raises(NoOpenRunError):
        await agent.continue_run(response.thread)


async def test_a_run_goes_on_with_the_model_and_the_format_that_it_began_with(any_url: str) -> None:
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


async def test_middleware_is_around_runs_model_calls_and_tool_calls() -> None:
    told: list[str] = []

    class Telling(Middleware):
        async def run(self, context: RunContext, proceed: Proceed[Any]) -> Any:
            told.append(f"run {context.agent_id}")
            return await proceed()

        async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
            told.append(f"model {context.round}")
            answer = await proceed()
            return answer if answer.message.calls else Answer(Message.assistant("Replaced."), "stop")

        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            told.append(f"tool {context.name} {context.arguments}")
            await proceed()
            return ToolOutcome("Hidden.")

    client = ScriptedChatClient([call("lookup", order=7), "Said."])
    response = await Agent(client, tools=[lookup], middleware=[Telling()], name="Clerk").run("Go")
    assert told == ["run Clerk", "model 1", 'tool lookup {"order": 7}', "model 2"]
    assert response.text == "Replaced."
    assert said(client.requests[1])[-1] == ("tool", "Hidden.")


def test_an_agent_is_checked_when_it_is_made() -> None:
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
    for given in wrong:
        with pytest.raises(AgentConfigurationError, match=next(iter(given))):
            Agent(client, **given)
    with pytest.raises(AgentConfigurationError, match="NoneType is not a model client"):
        Agent(None)  # type: ignore[arg-type]


def test_a_script_runs_agents_without_an_event_loop() -> None:
    agent = Agent(ScriptedChatClient(["One.", "Two."]))
    first = agent.run_sync("1")
    assert agent.run_sync("2", thread=first.thread).text == "Two."
