"""The scripted client: what it answers, how it streams, and what goes wrong on demand."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


async def collected(client: ModelClient, body: JsonObject, *, stream: bool) -> list[Update]:
    return [update async for update in client.ask(body, stream=stream)]


def asked(client: ModelClient, body: JsonObject = BODY, *, stream: bool = True) -> list[Update]:
    return asyncio.run(collected(client, body, stream=stream))


def answered(client: ModelClient, body: JsonObject = BODY, *, stream: bool = True) -> Answer:
    last = asked(client, body, stream=stream)[-1]
    assert isinstance(last, Answer)
    return last


def test_words_come_one_by_one_and_then_whole() -> None:
    client = ScriptedChatClient("It is  on\nits way.")
    *deltas, answer = asked(client)
    assert deltas == [TextDelta("It "), TextDelta("is  "), TextDelta("on\n"), TextDelta("its "), TextDelta("way.")]
    assert answer == Answer(
        message=Message.assistant("It is  on\nits way."),
        finish_reason="stop",
        usage=TokenUsage(input_tokens=5, output_tokens=5),
        model="m",
    )


def test_it_is_a_chat_client_for_local_threads_that_keeps_the_requests() -> None:
    client = ScriptedChatClient("Hi", loop=True, options={"temperature": 0})
    assert (client.kind, client.wire, client.model) == ("scripted", "openai-chat", "scripted")
    assert (client.thread_kinds, client.options) == (("local",), {"temperature": 0})
    body: dict[str, Any] = {"messages": []}
    asked(client, body)
    body["messages"].append(1)
    asked(client, body)
    assert client.requests == [{"messages": []}, {"messages": [1]}]
    assert answered(client, {"messages": []}).model == "scripted"


@given(
    st.lists(
        st.one_of(
            st.builds(Text, text=st.text()),
            st.builds(Reasoning, text=st.text()),
            st.builds(FunctionCall, call_id=st.just("c"), name=st.just("f"), arguments=st.text()),
        )
    )
)
def test_a_stream_adds_up_to_the_answer_that_comes_whole(contents: list[Any]) -> None:
    message = Message(role="assistant", contents=tuple(contents))
    client = ScriptedChatClient(message, loop=True)
    *deltas, answer = asked(client)
    assert asked(client, stream=False) == [answer]
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


def test_calls_get_ids_that_a_conversation_uses_once() -> None:
    client = ScriptedChatClient([call("look_up", order=7), ["And", call("sum", of=[1, "é"]), call("now")]])
    first = answered(client)
    assert first.finish_reason == "tool_calls"
    assert first.message.calls == (FunctionCall(call_id="call_1", name="look_up", arguments='{"order": 7}'),)
    body: JsonObject = {"messages": [{"role": "assistant", "tool_calls": [{"id": "call_1"}]}]}
    second = answered(client, body)
    assert second.message.text == "And"
    assert [each.call_id for each in second.message.calls] == ["call_2", "call_3"]
    assert second.message.calls[0].arguments == '{"of": [1, "é"]}'


def test_ids_that_calls_have_already_are_kept() -> None:
    own = FunctionCall(call_id="mine", name="now", arguments="")
    client = ScriptedChatClient([[own, call("now")]])
    *deltas, answer = asked(client)
    assert isinstance(answer, Answer)
    assert [each.call_id for each in answer.message.calls] == ["mine", "call_1"]
    assert deltas == [CallDelta(0, "mine", "now", ""), CallDelta(1, "call_1", "now", "{}")]


def test_a_whole_answer_is_given_as_it_is() -> None:
    cut_short = Answer(Message.assistant("It is"), finish_reason="length", usage=None, model="other")
    assert answered(ScriptedChatClient([cut_short])) is cut_short


def test_functions_answer_by_the_request() -> None:
    async def later(body: JsonObject) -> Fault:
        body.clear()
        return fault("refused")

    client = ScriptedChatClient([lambda body: f"You said {len(body)} things.", later])
    assert answered(client).message.text == "You said 2 things."
    with pytest.raises(ModelUnavailableError):
        asked(client)
    assert client.requests == [BODY, BODY]
    always = ScriptedChatClient(lambda body: str(body["model"]))
    assert [answered(always).message.text for _ in range(3)] == ["m", "m", "m"]


def test_the_end_of_a_script_is_an_error_unless_it_loops() -> None:
    client = ScriptedChatClient(["a", "b"])
    asked(client)
    asked(client)
    with pytest.raises(ModelRequestError, match="at its end: this is request 3"):
        asked(client)
    looping = ScriptedChatClient(["a", "b"], loop=True)
    assert [answered(looping).message.text for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_an_exception_of_the_script_is_raised() -> None:
    error = ModelRequestError("no", status=400)
    with pytest.raises(ModelRequestError) as raised:
        asked(ScriptedChatClient([error]))
    assert raised.value is error


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_every_fault_is_an_error_of_the_model(kind: FaultKind, *, stream: bool) -> None:
    script: list[Any] = [fault(kind, seconds=0) if kind == "stall" else fault(kind), "Hi"]
    client = ScriptedChatClient(script)
    expected: dict[str, tuple[type[ModelError], int | None, bool]] = {
        "refused": (ModelUnavailableError, None, True),
        "overloaded": (ModelOverloadedError, 429, True),
        "server-error": (ModelUnavailableError, 500, True),
        "context-window": (ContextWindowError, 400, False),
    }
    with pytest.raises(ModelError) as raised:
        asked(client, stream=stream)
    error = raised.value
    assert (type(error), error.status, error.retryable) == expected.get(kind, (ModelStreamError, None, True))
    assert answered(client, stream=stream).message.text == "Hi"


def test_faults_say_what_a_service_says() -> None:
    client = ScriptedChatClient([fault("overloaded", retry_after=2.5), fault("context-window", tokens=9, limit=8)])
    with pytest.raises(ModelOverloadedError) as overloaded:
        asked(client)
    assert overloaded.value.retry_after == 2.5
    with pytest.raises(ContextWindowError, match="9 tokens") as window:
        asked(client)
    assert (window.value.tokens, window.value.limit, window.value.code) == (9, 8, "context_length_exceeded")


@pytest.mark.parametrize("kind", ["cut", "malformed", "early-end", "stall"])
def test_a_stream_that_breaks_off_gives_what_came_before(kind: FaultKind) -> None:
    client = ScriptedChatClient([fault(kind, after="It is on", seconds=0 if kind == "stall" else None)])
    came: list[Update] = []

    async def listen() -> None:
        async for update in client.ask(BODY, stream=True):
            came.append(update)  # noqa: PERF401  # what came before the error is looked at

    with pytest.raises(ModelStreamError):
        asyncio.run(listen())
    assert came == [TextDelta("It "), TextDelta("is "), TextDelta("on")]


def test_a_stall_lasts_until_the_caller_gives_up() -> None:
    async def give_up() -> None:
        came = asyncio.Event()

        async def listen() -> None:
            async for _ in ScriptedChatClient(fault("stall", after="It")).ask(BODY, stream=True):
                came.set()

        listening = asyncio.create_task(listen())
        await came.wait()
        done, _ = await asyncio.wait([listening], timeout=0)
        assert not done
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening

    asyncio.run(give_up())


def test_each_piece_waits_its_delay_streamed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    client = ScriptedChatClient("It is on its way.", loop=True, delay=0.25)
    asked(client)
    asked(client, stream=False)
    assert waited == [0.25] * 10


def test_many_runs_may_ask_at_once() -> None:
    client = ScriptedChatClient([str(each) for each in range(20)])

    async def all_at_once() -> list[list[Update]]:
        return await asyncio.gather(*(collected(client, BODY, stream=False) for _ in range(20)))

    said = [each[-1].message.text for each in asyncio.run(all_at_once()) if isinstance(each[-1], Answer)]
    assert sorted(map(int, said)) == list(range(20))


def test_for_remote_threads_it_names_its_answers() -> None:
    client = ScriptedChatClient(
        ["Hi", fault("cut", after="It"), fault("refused"), call("now"), "no"], thread_kinds=["remote"]
    )
    body: JsonObject = {"model": "m", "input": [{"role": "user", "content": "Hi there"}]}
    assert (client.wire, client.thread_kinds) == ("openai-responses", ("remote",))
    bound, _, answer = asked(client, body)
    assert bound == ServiceBound(ServiceReference(kind="response", id="resp_1"))
    assert isinstance(answer, Answer)
    assert (answer.response_id, answer.usage) == ("resp_1", TokenUsage(input_tokens=3, output_tokens=1))
    came: list[Update] = []

    async def listen() -> None:
        async for update in client.ask(body, stream=True):
            came.append(update)  # noqa: PERF401  # what came before the error is looked at

    with pytest.raises(ModelStreamError):
        asyncio.run(listen())
    assert came == [ServiceBound(ServiceReference(kind="response", id="resp_2")), TextDelta("It")]
    with pytest.raises(ModelUnavailableError):
        asked(client, body)
    bound, answer = asked(client, body, stream=False)
    assert bound == ServiceBound(ServiceReference(kind="response", id="resp_4"))
    assert isinstance(answer, Answer)
    assert answer.message.calls[0].call_id == "call_resp_4_1"
    assert (
        asked(client, {**body, "store": False})[-1:] == asked(ScriptedChatClient("no"), {**body, "store": False})[-1:]
    )


@pytest.mark.parametrize("line", [7, None, [7], {"role": "assistant"}, Message.user("Hi")])
def test_what_is_no_answer_is_refused_at_once(line: Any) -> None:
    with pytest.raises(AgentConfigurationError):
        ScriptedChatClient([line])


@pytest.mark.parametrize(
    "wrong", [{"kind": "fire"}, {"kind": "refused", "after": "It"}, {"kind": "cut", "seconds": 1.0}]
)
def test_faults_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentConfigurationError):
        fault(**wrong)
