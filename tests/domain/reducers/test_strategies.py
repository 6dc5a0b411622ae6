from __future__ import annotations

from typing import Any

import pytest
from tests.domain.reducers.reduced_histories import A1, A2, ROUND, SYSTEM, U1, U2, U3, kept, of, reduction
from tests.domain.test_call_pairing import answers, asks

from clew.domain.errors import ReducerError
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text
from clew.domain.reducers.strategies import KeepLast, SlidingWindow, TokenBudget
from clew.domain.runs.errors import AgentConfigurationError


def each_word(text: str) -> int:
    return len(text.split())


# A number of messages


def test_keeps_the_last_messages_and_the_uncounted_system_message() -> None:
    assert kept(KeepLast(2), of(SYSTEM, U1, A1, U2, A2, input=[U3])) == [2, 5, 6]


def test_a_call_with_its_results_counts_as_one_message() -> None:
    assert kept(KeepLast(2), of(U1, *ROUND, A1)) == [3, 4, 5, 6]


def test_fewer_messages_than_the_limit_are_all_kept() -> None:
    assert kept(KeepLast(3), of(U1, None, A1, answers("z"))) == [2, 3, 4, 5]
    assert kept(KeepLast(3), of()) == []


def test_messages_of_the_run_are_neither_counted_nor_omitted() -> None:
    input_history = of(U1, asks("a"), U2, A2, input=[answers("a"), U3])
    assert kept(KeepLast(1), input_history) == [3, 5]


def test_redacted_messages_do_not_count() -> None:
    assert kept(KeepLast(2), of(U1, A1, U2, None, None)) == [3, 4, 5, 6]


# A number of turns


def test_a_turn_starts_with_a_user_message() -> None:
    input_history = of(SYSTEM, U1, *ROUND, A1, U2, A2, input=[U3])
    assert kept(SlidingWindow(1), input_history) == [2, 8, 9]
    assert kept(SlidingWindow(2), input_history) == kept(SlidingWindow(3), input_history) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_messages_before_the_first_turn_are_kept_with_few_turns() -> None:
    assert kept(SlidingWindow(3), of(A1, U1, A1, U2, A2)) == [2, 3, 4, 5, 6]
    assert kept(SlidingWindow(2), of(A1, U1, A1, U2, A2)) == [3, 4, 5, 6]


def test_a_conversation_without_a_user_is_kept() -> None:
    assert kept(SlidingWindow(1), of(A1, A2)) == [2, 3]


# A number of tokens


def test_keeps_the_newest_messages_within_the_budget() -> None:
    input_history = of(SYSTEM, U1, A1, U2, A2, input=[U3])  # each message has two words
    assert kept(TokenBudget(4, each_word), input_history) == [2]
    assert kept(TokenBudget(5, each_word), input_history) == [2]
    assert kept(TokenBudget(6, each_word), input_history) == [2, 6]
    assert kept(TokenBudget(12, each_word), input_history) == [2, 3, 4, 5, 6]


def test_does_not_skip_a_message_that_is_too_large() -> None:
    long = Message.user("word " * 50)
    assert kept(TokenBudget(10, each_word), of(U1, long, A1, input=[U2])) == [4]


def test_instructions_count() -> None:
    input_history = of(U1, A1, input=[U2], instructions="Be funny and brief.")
    assert kept(TokenBudget(8, each_word), input_history) == [3]


def test_a_call_and_its_results_fit_together_or_not_at_all() -> None:
    input_history = of(*ROUND, A1, input=[U2])
    assert kept(TokenBudget(9, each_word), input_history) == [5]
    assert kept(TokenBudget(10, each_word), input_history) == [2, 3, 4, 5]


def test_the_note_for_a_missing_result_counts() -> None:
    input_history = of(asks("a"), A1, input=[U2])
    assert kept(TokenBudget(12, each_word), input_history) == [3]
    assert kept(TokenBudget(13, each_word), input_history) == [2, 3]


@pytest.mark.parametrize("tokens", [1, 3])
def test_keeps_only_required_messages_if_they_exceed_the_budget(tokens: int) -> None:
    result = reduction(TokenBudget(tokens, each_word), of(SYSTEM, U1, A1, input=[U2]))
    assert (result.kept, result.over_budget) == ((2,), True)


def test_without_input_the_last_message_is_required() -> None:
    result = reduction(TokenBudget(1, each_word), of(SYSTEM, U1, None, *ROUND))
    assert (result.kept, result.over_budget) == ((2, 5, 6, 7), True)
    result = reduction(TokenBudget(8, each_word), of(SYSTEM, U1, None, *ROUND))
    assert (result.kept, result.over_budget) == ((2, 5, 6, 7), False)


def test_an_input_without_sent_content_counts_as_none() -> None:
    assert kept(TokenBudget(1, each_word), of(U1, A1, input=[answers("z")])) == [3]


def test_a_system_message_alone_may_exceed_the_budget() -> None:
    result = reduction(TokenBudget(1, each_word), of(SYSTEM))
    assert (result.kept, result.over_budget) == ((2,), True)


def test_a_summary_has_priority_over_other_messages() -> None:
    input_history = of(SYSTEM, U1, A1, U2, input=[U3])
    with_summary = type(input_history)(input_history.history, input_history.input, summary=3)
    assert kept(TokenBudget(6, each_word), with_summary) == [2, 3]
    assert kept(TokenBudget(8, each_word), with_summary) == [2, 3, 5]
    assert kept(TokenBudget(5, each_word), with_summary) == [2]


def test_tokens_are_a_quarter_of_the_characters_by_default() -> None:
    input_history = of(Message.user("12345"), input=[Message.user("1234")])
    assert kept(TokenBudget(2), input_history) == []
    assert kept(TokenBudget(3), input_history) == [2]


def test_all_sent_content_of_a_message_counts() -> None:
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return 1

    contents = (
        Text(text="words"),
        Reasoning(text="thought"),
        Media(uri="data:image/png;base64,AAAA"),
        FunctionCall(call_id="a", name="find", arguments='{"x": 1}'),
        Raw(value={"type": "new"}),
    )
    answer = Message(role="tool", contents=(FunctionResult(call_id="a", result={"found": 1}),))
    reduction(TokenBudget(9, count), of(Message(role="assistant", contents=contents), answer, input=[U1]))
    assert 'words\nthought\n[image/png, not shown here]\nfind {"x": 1}\n{"type": "new"}' in seen
    assert '{"found": 1}' in seen


@pytest.mark.parametrize("tokens", [-1, 1.5, None, "3"])
def test_refuses_an_invalid_count(tokens: Any) -> None:
    with pytest.raises(ReducerError, match=r"token-budget\(9\) got .* from its count"):
        reduction(TokenBudget(9, lambda _: tokens), of(U1))


# Configuration


def test_the_names_contain_the_limits() -> None:
    assert [each.name for each in (KeepLast(2), SlidingWindow(3), TokenBudget(4000))] == [
        "keep-last(2)",
        "sliding-window(3)",
        "token-budget(4000)",
    ]


@pytest.mark.parametrize("kind", [KeepLast, SlidingWindow, TokenBudget])
@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2", None])
def test_refuses_an_invalid_limit(kind: Any, limit: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=rf"{kind.__name__}: .*={limit!r} is not a limit"):
        kind(limit)


@pytest.mark.parametrize("kind", [KeepLast, SlidingWindow, TokenBudget])
def test_refuses_an_invalid_moment(kind: Any) -> None:
    assert kind(1).when == "before_retrieval"
    assert kind(1, when="after_message_added").when == "after_message_added"
    with pytest.raises(AgentConfigurationError, match="when='later' is not a moment"):
        kind(1, when="later")


def test_refuses_a_count_that_is_not_a_function() -> None:
    with pytest.raises(AgentConfigurationError, match="count=5 is not a function"):
        TokenBudget(10, 5)  # type: ignore[arg-type]  # the test passes a wrong value
