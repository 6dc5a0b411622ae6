from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.domain.reducers.reduced_histories import A1, A2, ROUND, SYSTEM, U1, U2, U3, of
from tests.domain.test_model_view import placed

from clew.domain.messages import Message
from clew.domain.reducers.history_reduction import reduce_history, reduced, reducible
from clew.domain.reducers.reducer import Reducible, Reduction
from clew.domain.reducers.strategies import KeepLast
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError, ModelUnavailableError
from clew.infrastructure.scripted_client import ScriptedChatClient, fault
from clew.memory.summary_reducer import INSTRUCTIONS, MOST_CHARACTERS, TITLE, Summarise


def summed(text: str) -> str:
    return json.dumps({"summary": text})


def left(reducer: Any, given: Reducible) -> Reduction:
    async def reduce() -> Any:
        return await reducer.reduce(given)

    found = asyncio.run(reduce())
    assert isinstance(found, Reduction)
    return found


def asked(client: ScriptedChatClient) -> list[dict[str, Any]]:
    """What the model was given, request by request."""
    bodies: list[Any] = client.requests
    return [json.loads(body["messages"][-1]["content"]) for body in bodies]


def test_keeps_the_newest_and_has_the_rest_summed_up() -> None:
    client = ScriptedChatClient(summed(" They met. "))
    found = left(Summarise(client, keep_last=2), of(SYSTEM, U1, *ROUND, A1, U2, input=[U3]))
    assert found == Reduction((2, 7, 8), Message.user(f"{TITLE}\nThey met."))
    assert [each["said"] for each in asked(client)[0]["messages"]] == [
        U1.text,
        "[calls find with {}]\n[calls find with {}]",
        "[is given first]",
        "[is given second]",
    ]
    body: Any = client.requests[0]
    assert body["messages"][0] == {"role": "system", "content": INSTRUCTIONS}


def test_asks_nobody_while_there_is_little_to_leave_out() -> None:
    client = ScriptedChatClient([])
    for keep_last, every in ((3, 1), (2, 2)):
        given = of(SYSTEM, U1, A1, U2, input=[U3])
        assert left(Summarise(client, keep_last, every), given) == Reduction([2, 3, 4, 5])
    assert client.requests == []


def test_the_next_summary_is_made_of_the_earlier_one_and_what_has_come_to_it() -> None:
    client = ScriptedChatClient([summed("One."), summed("Two.")])
    reducer = Summarise(client, keep_last=1, every=2)
    given = of(SYSTEM, U1, A1, U2)
    event = reduce_history(left(reducer, given), given, agent="a", reducer=reducer.name, previous=None, upto=5)
    assert event is not None
    history = placed(SYSTEM, U1, A1, U2, A2, U3)
    again = reducible(history[:5], event, 20)
    assert left(reducer, again) == Reduction([2, 20, 5, 6])
    assert len(client.requests) == 1
    again = reducible(history, event, 20)
    newer = reduce_history(left(reducer, again), again, agent="a", reducer=reducer.name, previous=event, upto=7)
    assert newer is not None
    assert newer.left_out == ((3, 6),)
    assert [each.text for each in reduced(history, newer, 30)] == [SYSTEM.text, f"{TITLE}\nTwo.", U3.text]
    data = asked(client)[1]
    assert data["summary_so_far"] == "One."
    assert [each["said"] for each in data["messages"]] == [U2.text, A2.text]


def test_what_others_keep_is_summed_up_after_them_and_limits_keep_the_summary() -> None:
    client = ScriptedChatClient([summed("Short."), summed("Shorter.")])
    given = of(U1, A1, U2, A2)
    assert left(KeepLast(2) | Summarise(client, 1), given) == Reduction([5], Message.user(f"{TITLE}\nShort."))
    assert [each["said"] for each in asked(client)[0]["messages"]] == [U2.text]
    assert left(Summarise(client, 2) | KeepLast(1), given) == Reduction([5], Message.user(f"{TITLE}\nShorter."))


def test_many_messages_are_summed_up_in_several_steps() -> None:
    client = ScriptedChatClient([summed(str(number)) for number in range(9)])
    long = [Message.user(f"{number} " + "x" * 3000) for number in range(60)]
    found = left(Summarise(client, 1), of(*long))
    assert found.summary == Message.user(f"{TITLE}\n{len(client.requests) - 1}")
    data = asked(client)
    assert 3 < len(data) < 9
    assert [each.get("summary_so_far") for each in data] == [None, *map(str, range(len(data) - 1))]
    said = [each["said"].split()[0] for step in data for each in step["messages"]]
    assert said == [str(number) for number in range(59)]


def test_no_message_of_a_thousand_short_ones_is_passed_over() -> None:
    client = ScriptedChatClient(summed("On."), loop=True)
    left(Summarise(client, 1), of(*[Message.user(f"{number}") for number in range(1000)]))
    said = [each["said"] for step in asked(client) for each in step["messages"]]
    assert said == [str(number) for number in range(999)]


def test_a_summary_that_is_as_long_as_what_it_sums_up_is_shortened() -> None:
    found = left(Summarise(ScriptedChatClient(summed("word " * 10_000)), keep_last=1), of(U1, A1, U2))
    assert found.summary is not None
    assert len(found.summary.text) == len(TITLE) + 1 + MOST_CHARACTERS


def test_redacted_messages_are_not_told() -> None:
    client = ScriptedChatClient(summed("They met."))
    left(Summarise(client, 1), of(U1, None, A1, U2))
    assert [each["said"] for each in asked(client)[0]["messages"]] == [U1.text, A1.text]


def test_the_service_is_asked_to_keep_nothing() -> None:
    client = ScriptedChatClient(summed("They met."), thread_kinds=("local", "remote"))
    left(Summarise(client, 1), of(U1, A1))
    assert client.requests[0]["store"] is False


def test_its_instructions_may_be_others() -> None:
    client = ScriptedChatClient(summed("Sie trafen sich."))
    left(Summarise(client, 1, instructions="Auf Deutsch."), of(U1, A1))
    body: Any = client.requests[0]
    assert body["messages"][0]["content"] == "Auf Deutsch."


def test_a_model_that_fails_leaves_out_nothing() -> None:
    with pytest.raises(ModelUnavailableError):
        left(Summarise(ScriptedChatClient(fault("refused")), 1), of(U1, A1))


@pytest.mark.parametrize("answer", ["They met.", '{"other": 1}', summed(""), summed(" \n")], ids=range(4))
def test_an_answer_that_is_no_summary_is_refused(answer: str) -> None:
    with pytest.raises(AnswerFormatError):
        left(Summarise(ScriptedChatClient(answer), 1), of(U1, A1))


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
def test_nonsense_is_refused(make: Callable[[Any], Summarise], problem: str) -> None:
    with pytest.raises(AgentConfigurationError, match=problem):
        make(ScriptedChatClient("x"))


def test_its_name_has_its_limits_and_its_text_no_client() -> None:
    reducer = Summarise(ScriptedChatClient("x"), 6, 3, when="after_message_added")
    assert (reducer.name, reducer.when) == ("summarise(6, 3)", "after_message_added")
    assert "client" not in repr(reducer)
