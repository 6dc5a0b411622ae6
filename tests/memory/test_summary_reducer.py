from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.domain.reducers.reduced_histories import A1, A2, ROUND, SYSTEM, U1, U2, U3, of
from tests.domain.test_call_pairing import placed

from clew.domain.messages import Message
from clew.domain.reducers.history_reduction import reduce_history, reduced, reducible
from clew.domain.reducers.reducer import Reducible, Reduction
from clew.domain.reducers.strategies import KeepLast
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError, ModelUnavailableError
from clew.infrastructure.scripted_client import ScriptedChatClient, fault
from clew.memory.summary_reducer import INSTRUCTIONS, MOST_CHARACTERS, TITLE, Summarise


def summary(text: str) -> str:
    return json.dumps({"summary": text})


def reduce_with(reducer: Any, history: Reducible) -> Reduction:
    async def reduce() -> Any:
        return await reducer.reduce(history)

    reduction = asyncio.run(reduce())
    assert isinstance(reduction, Reduction)
    return reduction


def request_data(client: ScriptedChatClient) -> list[dict[str, Any]]:
    """Return the data of each request to the model."""
    bodies: list[Any] = client.requests
    return [json.loads(body["messages"][-1]["content"]) for body in bodies]


def test_keeps_the_newest_messages_and_summarises_the_rest() -> None:
    client = ScriptedChatClient(summary(" They met. "))
    reduction = reduce_with(Summarise(client, keep_last=2), of(SYSTEM, U1, *ROUND, A1, U2, input=[U3]))
    assert reduction == Reduction((2, 7, 8), Message.user(f"{TITLE}\nThey met."))
    assert [each["said"] for each in request_data(client)[0]["messages"]] == [
        U1.text,
        "[calls find with {}]\n[calls find with {}]",
        "[is given first]",
        "[is given second]",
    ]
    body: Any = client.requests[0]
    assert body["messages"][0] == {"role": "system", "content": INSTRUCTIONS}


def test_does_not_ask_the_model_for_few_messages() -> None:
    client = ScriptedChatClient([])
    for keep_last, every in ((3, 1), (2, 2)):
        input_history = of(SYSTEM, U1, A1, U2, input=[U3])
        assert reduce_with(Summarise(client, keep_last, every), input_history) == Reduction([2, 3, 4, 5])
    assert client.requests == []


def test_the_next_summary_extends_the_earlier_one() -> None:
    client = ScriptedChatClient([summary("One."), summary("Two.")])
    reducer = Summarise(client, keep_last=1, every=2)
    input_history = of(SYSTEM, U1, A1, U2)
    event = reduce_history(
        reduce_with(reducer, input_history), input_history, agent="a", reducer=reducer.name, previous=None, upto=5
    )
    assert event is not None
    history = placed(SYSTEM, U1, A1, U2, A2, U3)
    again = reducible(history[:5], event, 20)
    assert reduce_with(reducer, again) == Reduction([2, 20, 5, 6])
    assert len(client.requests) == 1
    again = reducible(history, event, 20)
    newer = reduce_history(reduce_with(reducer, again), again, agent="a", reducer=reducer.name, previous=event, upto=7)
    assert newer is not None
    assert newer.left_out == ((3, 6),)
    assert [each.text for each in reduced(history, newer, 30)] == [SYSTEM.text, f"{TITLE}\nTwo.", U3.text]
    data = request_data(client)[1]
    assert data["summary_so_far"] == "One."
    assert [each["said"] for each in data["messages"]] == [U2.text, A2.text]


def test_combines_with_other_reducers() -> None:
    client = ScriptedChatClient([summary("Short."), summary("Shorter.")])
    input_history = of(U1, A1, U2, A2)
    assert reduce_with(KeepLast(2) | Summarise(client, 1), input_history) == Reduction(
        [5], Message.user(f"{TITLE}\nShort.")
    )
    assert [each["said"] for each in request_data(client)[0]["messages"]] == [U2.text]
    assert reduce_with(Summarise(client, 2) | KeepLast(1), input_history) == Reduction(
        [5], Message.user(f"{TITLE}\nShorter.")
    )


def test_many_messages_are_summarised_in_several_steps() -> None:
    client = ScriptedChatClient([summary(str(number)) for number in range(9)])
    long = [Message.user(f"{number} " + "x" * 3000) for number in range(60)]
    reduction = reduce_with(Summarise(client, 1), of(*long))
    assert reduction.summary == Message.user(f"{TITLE}\n{len(client.requests) - 1}")
    data = request_data(client)
    assert 3 < len(data) < 9
    assert [each.get("summary_so_far") for each in data] == [None, *map(str, range(len(data) - 1))]
    texts = [each["said"].split()[0] for step in data for each in step["messages"]]
    assert texts == [str(number) for number in range(59)]


def test_summarises_each_of_a_thousand_short_messages() -> None:
    client = ScriptedChatClient(summary("On."), loop=True)
    reduce_with(Summarise(client, 1), of(*[Message.user(f"{number}") for number in range(1000)]))
    texts = [each["said"] for step in request_data(client) for each in step["messages"]]
    assert texts == [str(number) for number in range(999)]


def test_a_long_summary_is_shortened() -> None:
    reduction = reduce_with(Summarise(ScriptedChatClient(summary("word " * 10_000)), keep_last=1), of(U1, A1, U2))
    assert reduction.summary is not None
    assert len(reduction.summary.text) == len(TITLE) + 1 + MOST_CHARACTERS


def test_redacted_messages_are_not_summarised() -> None:
    client = ScriptedChatClient(summary("They met."))
    reduce_with(Summarise(client, 1), of(U1, None, A1, U2))
    assert [each["said"] for each in request_data(client)[0]["messages"]] == [U1.text, A1.text]


def test_the_service_is_asked_to_store_nothing() -> None:
    client = ScriptedChatClient(summary("They met."), thread_kinds=("local", "remote"))
    reduce_with(Summarise(client, 1), of(U1, A1))
    assert client.requests[0]["store"] is False


def test_accepts_other_instructions() -> None:
    client = ScriptedChatClient(summary("Sie trafen sich."))
    reduce_with(Summarise(client, 1, instructions="Auf Deutsch."), of(U1, A1))
    body: Any = client.requests[0]
    assert body["messages"][0]["content"] == "Auf Deutsch."


def test_a_failing_model_is_an_error() -> None:
    with pytest.raises(ModelUnavailableError):
        reduce_with(Summarise(ScriptedChatClient(fault("refused")), 1), of(U1, A1))


@pytest.mark.parametrize("answer", ["They met.", '{"other": 1}', summary(""), summary(" \n")], ids=range(4))
def test_refuses_an_answer_without_a_summary(answer: str) -> None:
    with pytest.raises(AnswerFormatError):
        reduce_with(Summarise(ScriptedChatClient(answer), 1), of(U1, A1))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda _: Summarise(None, 2), "NoneType is not a model client"),  # type: ignore[arg-type]
        (lambda client: Summarise(type(client)), "type is not a model client"),  # type: ignore[arg-type]
        (lambda client: Summarise(client, 0), "keep_last=0 is not a limit"),
        (lambda client: Summarise(client, every=0), "every=0 is not a limit"),
        (lambda client: Summarise(client, instructions=" "), "instructions must say"),
        (lambda client: Summarise(client, when="never"), "is not a moment"),  # type: ignore[arg-type]
    ],
    ids=range(6),
)
def test_refuses_invalid_options(make: Callable[[Any], Summarise], problem: str) -> None:
    with pytest.raises(AgentConfigurationError, match=problem):
        make(ScriptedChatClient("x"))


def test_the_name_contains_the_limits_and_the_repr_no_client() -> None:
    reducer = Summarise(ScriptedChatClient("x"), 6, 3, when="after_message_added")
    assert (reducer.name, reducer.when) == ("summarise(6, 3)", "after_message_added")
    assert "client" not in repr(reducer)
