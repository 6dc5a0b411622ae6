from __future__ import annotations

from typing import Any

import pytest
from tests.domain.reducers.reduced_histories import A1, A2, ROUND, SYSTEM, U1, U2, U3, kept, of, reduction
from tests.domain.test_model_view import answers, asks

from clew.domain.errors import ReducerError
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text
from clew.domain.reducers.strategies import KeepLast, SlidingWindow, TokenBudget
from clew.domain.runs.errors import AgentConfigurationError


def each_word(text: str) -> int:
    return len(text.split())


# So many messages


def test_keeps_the_last_messages_and_the_system_message_which_does_not_count() -> None:
    assert kept(KeepLast(2), of(SYSTEM, U1, A1, U2, A2, input=[U3])) == [2, 5, 6]


def test_a_call_with_its_results_counts_as_one_message() -> None:
    assert kept(KeepLast(2), of(U1, *ROUND, A1)) == [3, 4, 5, 6]


def test_fewer_messages_than_the_limit_are_all_kept() -> None:
    assert kept(KeepLast(3), of(U1, None, A1, answers("z"))) == [2, 3, 4, 5]
    assert kept(KeepLast(3), of()) == []


def test_the_runs_own_is_neither_counted_nor_left_out() -> None:
    given = of(U1, asks("a"), U2, A2, input=[answers("a"), U3])
    assert kept(KeepLast(1), given) == [3, 5]


def test_redacted_messages_do_not_count() -> None:
    assert kept(KeepLast(2), of(U1, A1, U2, None, None)) == [3, 4, 5, 6]


# So many turns


def test_a_turn_begins_with_a_user_and_has_all_that_follows() -> None:
    given = of(SYSTEM, U1, *ROUND, A1, U2, A2, input=[U3])
    assert kept(SlidingWindow(1), given) == [2, 8, 9]
    assert kept(SlidingWindow(2), given) == kept(SlidingWindow(3), given) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_was_said_before_the_first_turn_is_kept_while_there_are_fewer_turns() -> None:
    assert kept(SlidingWindow(3), of(A1, U1, A1, U2, A2)) == [2, 3, 4, 5, 6]
    assert kept(SlidingWindow(2), of(A1, U1, A1, U2, A2)) == [3, 4, 5, 6]


def test_a_conversation_without_a_user_has_no_turn_to_begin_at() -> None:
    assert kept(SlidingWindow(1), of(A1, A2)) == [2, 3]


# So many tokens


def test_keeps_the_newest_while_there_is_room() -> None:
    given = of(SYSTEM, U1, A1, U2, A2, input=[U3])  # each message has two words
    assert kept(TokenBudget(4, each_word), given) == [2]
    assert kept(TokenBudget(5, each_word), given) == [2]
    assert kept(TokenBudget(6, each_word), given) == [2, 6]
    assert kept(TokenBudget(12, each_word), given) == [2, 3, 4, 5, 6]


def test_does_not_leap_over_a_message_that_is_too_large() -> None:
    long = Message.user("word " * 50)
    assert kept(TokenBudget(10, each_word), of(U1, long, A1, input=[U2])) == [4]


def test_instructions_count() -> None:
    given = of(U1, A1, input=[U2], instructions="Be funny and brief.")
    assert kept(TokenBudget(8, each_word), given) == [3]


def test_a_call_and_its_results_have_room_together_or_not_at_all() -> None:
    given = of(*ROUND, A1, input=[U2])
    assert kept(TokenBudget(9, each_word), given) == [5]
    assert kept(TokenBudget(10, each_word), given) == [2, 3, 4, 5]


def test_what_a_model_is_told_of_a_missing_result_counts() -> None:
    given = of(asks("a"), A1, input=[U2])
    assert kept(TokenBudget(12, each_word), given) == [3]
    assert kept(TokenBudget(13, each_word), given) == [2, 3]


@pytest.mark.parametrize("tokens", [1, 3])
def test_what_must_be_sent_is_sent_and_nothing_else_when_it_alone_is_too_much(tokens: int) -> None:
    found = reduction(TokenBudget(tokens, each_word), of(SYSTEM, U1, A1, input=[U2]))
    assert (found.kept, found.over_budget) == ((2,), True)


def test_without_input_the_last_message_must_be_sent() -> None:
    found = reduction(TokenBudget(1, each_word), of(SYSTEM, U1, None, *ROUND))
    assert (found.kept, found.over_budget) == ((2, 5, 6, 7), True)
    found = reduction(TokenBudget(8, each_word), of(SYSTEM, U1, None, *ROUND))
    assert (found.kept, found.over_budget) == ((2, 5, 6, 7), False)


def test_an_input_of_which_nothing_is_sent_is_none() -> None:
    assert kept(TokenBudget(1, each_word), of(U1, A1, input=[answers("z")])) == [3]


def test_a_system_message_alone_may_be_too_much() -> None:
    found = reduction(TokenBudget(1, each_word), of(SYSTEM))
    assert (found.kept, found.over_budget) == ((2,), True)


def test_a_summary_has_room_before_any_other_message() -> None:
    given = of(SYSTEM, U1, A1, U2, input=[U3])
    with_summary = type(given)(given.history, given.input, summary=3)
    assert kept(TokenBudget(6, each_word), with_summary) == [2, 3]
    assert kept(TokenBudget(8, each_word), with_summary) == [2, 3, 5]
    assert kept(TokenBudget(5, each_word), with_summary) == [2]


def test_tokens_are_a_quarter_of_the_characters_unless_they_are_counted() -> None:
    given = of(Message.user("12345"), input=[Message.user("1234")])
    assert kept(TokenBudget(2), given) == []
    assert kept(TokenBudget(3), given) == [2]


def test_everything_that_is_sent_of_a_message_counts() -> None:
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


@pytest.mark.parametrize("told", [-1, 1.5, None, "3"])
def test_a_count_that_is_none_is_refused(told: Any) -> None:
    with pytest.raises(ReducerError, match=r"token-budget\(9\) got .* from its count"):
        reduction(TokenBudget(9, lambda _: told), of(U1))


# Configuration


def test_their_names_have_their_limits() -> None:
    assert [each.name for each in (KeepLast(2), SlidingWindow(3), TokenBudget(4000))] == [
        "keep-last(2)",
        "sliding-window(3)",
        "token-budget(4000)",
    ]


@pytest.mark.parametrize("kind", [KeepLast, SlidingWindow, TokenBudget])
@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2", None])
def test_a_limit_that_is_none_is_refused(kind: Any, limit: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=rf"{kind.__name__}: .*={limit!r} is not a limit"):
        kind(limit)


@pytest.mark.parametrize("kind", [KeepLast, SlidingWindow, TokenBudget])
def test_a_moment_that_is_none_is_refused(kind: Any) -> None:
    assert kind(1).when == "before_retrieval"
    assert kind(1, when="after_message_added").when == "after_message_added"
    with pytest.raises(AgentConfigurationError, match="when='later' is not a moment"):
        kind(1, when="later")


def test_a_count_that_is_no_function_is_refused() -> None:
    with pytest.raises(AgentConfigurationError, match="count=5 is not a function"):
        TokenBudget(10, 5)  # type: ignore[arg-type]  # on purpose
