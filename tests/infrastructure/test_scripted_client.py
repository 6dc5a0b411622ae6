"""The scripted client: its answers, its streams and its scripted faults."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.wire_requests import to_send

from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, Message, Reasoning, Text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ModelClient,
    ReasoningDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    TokenUsage,
    Update,
)
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ContextWindowError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
)
from clew.infrastructure.scripted_client import Fault, FaultKind, ScriptedChatClient, call, fault

BODY: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "Where is my parcel?"}]}


async def collect(client: ModelClient, body: JsonObject, *, stream: bool) -> list[Update]:
    return [update async for update in client.ask(to_send(client, body, streams=stream))]


def updates_of(client: ModelClient, body: JsonObject = BODY, *, stream: bool = True) -> list[Update]:
    return asyncio.run(collect(client, body, stream=stream))


def answer_of(client: ModelClient, body: JsonObject = BODY, *, stream: bool = True) -> Answer:
    last = updates_of(client, body, stream=stream)[-1]
    assert isinstance(last, Answer)
    return last


def test_streams_words_and_then_the_whole_answer() -> None:
    client = ScriptedChatClient("It is  on\nits way.")
    *deltas, answer = updates_of(client)
    assert deltas == [TextDelta("It "), TextDelta("is  "), TextDelta("on\n"), TextDelta("its "), TextDelta("way.")]
    assert answer == Answer(
        message=Message.assistant("It is  on\nits way."),
        finish_reason="stop",
        usage=TokenUsage(input_tokens=5, output_tokens=5),
        model="m",
    )


def test_is_a_chat_client_for_local_threads_that_records_requests() -> None:
    client = ScriptedChatClient("Hi", loop=True, options={"temperature": 0})
    assert (client.kind, client.wire.name, client.model) == ("scripted", "openai-chat", "scripted")
    assert (client.thread_kinds, client.options) == (("local",), {"temperature": 0})
    body: dict[str, Any] = {"messages": []}
    updates_of(client, body)
    body["messages"].append(1)
    updates_of(client, body)
    assert client.requests == [{"messages": []}, {"messages": [1]}]
    assert answer_of(client, {"messages": []}).model == "scripted"


@given(
    st.lists(
        st.one_of(
            st.builds(Text, text=st.text()),
            st.builds(Reasoning, text=st.text()),
            st.builds(FunctionCall, call_id=st.just("c"), name=st.just("f"), arguments=st.text()),
        )
    )
)
def test_the_parts_of_a_stream_add_up_to_the_whole_answer(contents: list[Any]) -> None:
    message = Message(role="assistant", contents=tuple(contents))
    client = ScriptedChatClient(message, loop=True)
    *deltas, answer = updates_of(client)
    assert updates_of(client, stream=False) == [answer]
    assert isinstance(answer, Answer)
    assert answer.message == message
    texts = "".join(each.text for each in deltas if isinstance(each, TextDelta))
    thoughts = "".join(each.text for each in deltas if isinstance(each, ReasoningDelta))
    calls: dict[int, str] = {}
    for each in deltas:
        if isinstance(each, CallDelta):
            calls[each.index] = calls.get(each.index, "") + each.arguments
    assert texts == message.text
    assert thoughts == "".join(each.text for each in contents if isinstance(each, Reasoning))
    assert list(calls.values()) == [each.arguments for each in message.calls]


def test_tool_calls_get_unique_ids_within_a_conversation() -> None:
    client = ScriptedChatClient([call("look_up", order=7), ["And", call("sum", of=[1, "é"]), call("now")]])
    first = answer_of(client)
    assert first.finish_reason == "tool_calls"
    assert first.message.calls == (FunctionCall(call_id="call_1", name="look_up", arguments='{"order": 7}'),)
    body: JsonObject = {"messages": [{"role": "assistant", "tool_calls": [{"id": "call_1"}]}]}
    second = answer_of(client, body)
    assert second.message.text == "And"
    assert [each.call_id for each in second.message.calls] == ["call_2", "call_3"]
    assert second.message.calls[0].arguments == '{"of": [1, "é"]}'


def test_keeps_existing_ids_of_tool_calls() -> None:
    own = FunctionCall(call_id="mine", name="now", arguments="")
    client = ScriptedChatClient([[own, call("now")]])
    *deltas, answer = updates_of(client)
    assert isinstance(answer, Answer)
    assert [each.call_id for each in answer.message.calls] == ["mine", "call_1"]
    assert deltas == [CallDelta(0, "mine", "now", ""), CallDelta(1, "call_1", "now", "{}")]


def test_returns_a_scripted_answer_unchanged() -> None:
    cut_short = Answer(Message.assistant("It is"), finish_reason="length", usage=None, model="other")
    assert answer_of(ScriptedChatClient([cut_short])) is cut_short


def test_a_script_function_gets_the_request() -> None:
    async def later(body: JsonObject) -> Fault:
        body.clear()
        return fault("refused")

    client = ScriptedChatClient([lambda body: f"You said {len(body)} things.", later])
    assert answer_of(client).message.text == "You said 2 things."
    with pytest.raises(ModelUnavailableError):
        updates_of(client)
    assert client.requests == [BODY, BODY]
    always = ScriptedChatClient(lambda body: str(body["model"]))
    assert [answer_of(always).message.text for _ in range(3)] == ["m", "m", "m"]


def test_a_request_after_the_end_of_a_script_is_an_error_unless_it_loops() -> None:
    client = ScriptedChatClient(["a", "b"])
    updates_of(client)
    updates_of(client)
    with pytest.raises(ModelRequestError, match="at its end: this is request 3"):
        updates_of(client)
    looping = ScriptedChatClient(["a", "b"], loop=True)
    assert [answer_of(looping).message.text for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_raises_an_exception_of_the_script() -> None:
    error = ModelRequestError("no", status=400)
    with pytest.raises(ModelRequestError) as raised:
        updates_of(ScriptedChatClient([error]))
    assert raised.value is error


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_every_fault_raises_a_model_error(kind: FaultKind, *, stream: bool) -> None:
    script: list[Any] = [fault(kind, seconds=0) if kind == "stall" else fault(kind), "Hi"]
    client = ScriptedChatClient(script)
    expected: dict[str, tuple[type[ModelError], int | None, bool]] = {
        "refused": (ModelUnavailableError, None, True),
        "overloaded": (ModelOverloadedError, 429, True),
        "server-error": (ModelUnavailableError, 500, True),
        "context-window": (ContextWindowError, 400, False),
        "cut": (ModelUnavailableError, None, True),
        "stall": (ModelUnavailableError, None, True),
    }
    with pytest.raises(ModelError) as raised:
        updates_of(client, stream=stream)
    error = raised.value
    assert (type(error), error.status, error.retryable) == expected.get(kind, (ModelStreamError, None, False))
    assert answer_of(client, stream=stream).message.text == "Hi"


def test_faults_have_the_details_of_a_service() -> None:
    client = ScriptedChatClient([fault("overloaded", retry_after=2.5), fault("context-window", tokens=9, limit=8)])
    with pytest.raises(ModelOverloadedError) as overloaded:
        updates_of(client)
    assert overloaded.value.retry_after == 2.5
    with pytest.raises(ContextWindowError, match="9 tokens") as window:
        updates_of(client)
    assert (window.value.tokens, window.value.limit, window.value.code) == (9, 8, "context_length_exceeded")


@pytest.mark.parametrize("kind", ["cut", "malformed", "early-end", "stall"])
def test_an_interrupted_stream_returns_the_earlier_parts(kind: FaultKind) -> None:
    client = ScriptedChatClient([fault(kind, after="It is on", seconds=0 if kind == "stall" else None)])
    updates: list[Update] = []

    async def listen() -> None:
        async for update in client.ask(to_send(client, BODY, streams=True)):
            updates.append(update)  # noqa: PERF401  # keeps the updates before the error

    with pytest.raises(ModelStreamError):
        asyncio.run(listen())
    assert updates == [TextDelta("It "), TextDelta("is "), TextDelta("on")]


def test_a_stall_lasts_until_the_caller_gives_up() -> None:
    async def give_up() -> None:
        received = asyncio.Event()

        async def listen() -> None:
            client = ScriptedChatClient(fault("stall", after="It"))
            async for _ in client.ask(to_send(client, BODY, streams=True)):
                received.set()

        listening = asyncio.create_task(listen())
        await received.wait()
        done, _ = await asyncio.wait([listening], timeout=0)
        assert not done
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening

    asyncio.run(give_up())


def test_delays_each_part_of_streamed_and_whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    client = ScriptedChatClient("It is on its way.", loop=True, delay=0.25)
    updates_of(client)
    updates_of(client, stream=False)
    assert delays == [0.25] * 10


def test_accepts_concurrent_requests() -> None:
    client = ScriptedChatClient([str(each) for each in range(20)])

    async def ask_concurrently() -> list[list[Update]]:
        return await asyncio.gather(*(collect(client, BODY, stream=False) for _ in range(20)))

    texts = [each[-1].message.text for each in asyncio.run(ask_concurrently()) if isinstance(each[-1], Answer)]
    assert sorted(map(int, texts)) == list(range(20))


def test_answers_for_remote_threads_have_ids() -> None:
    client = ScriptedChatClient(
        ["Hi", fault("cut", after="It"), fault("refused"), call("now"), "no"], thread_kinds=["remote"]
    )
    body: JsonObject = {"model": "m", "input": [{"role": "user", "content": "Hi there"}]}
    assert (client.wire.name, client.thread_kinds) == ("openai-responses", ("remote",))
    bound, _, answer = updates_of(client, body)
    assert bound == ServiceBound(ServiceReference(kind="response", id="resp_1"))
    assert isinstance(answer, Answer)
    assert (answer.response_id, answer.usage) == ("resp_1", TokenUsage(input_tokens=3, output_tokens=1))
    updates: list[Update] = []

    async def listen() -> None:
        async for update in client.ask(to_send(client, body, streams=True)):
            updates.append(update)  # noqa: PERF401  # keeps the updates before the error

    with pytest.raises(ModelStreamError):
        asyncio.run(listen())
    assert updates == [ServiceBound(ServiceReference(kind="response", id="resp_2")), TextDelta("It")]
    with pytest.raises(ModelUnavailableError):
        updates_of(client, body)
    bound, answer = updates_of(client, body, stream=False)
    assert bound == ServiceBound(ServiceReference(kind="response", id="resp_4"))
    assert isinstance(answer, Answer)
    assert answer.message.calls[0].call_id == "call_resp_4_1"
    assert (
        updates_of(client, {**body, "store": False})[-1:]
        == updates_of(ScriptedChatClient("no"), {**body, "store": False})[-1:]
    )


@pytest.mark.parametrize("line", [7, None, [7], {"role": "assistant"}, Message.user("Hi")])
def test_refuses_a_script_line_that_is_not_an_answer(line: Any) -> None:
    with pytest.raises(AgentConfigurationError):
        ScriptedChatClient([line])


@pytest.mark.parametrize(
    "wrong", [{"kind": "fire"}, {"kind": "refused", "after": "It"}, {"kind": "cut", "seconds": 1.0}]
)
def test_refuses_an_invalid_fault(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentConfigurationError):
        fault(**wrong)
