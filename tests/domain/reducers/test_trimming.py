from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from tests.domain.reducers.reduced_histories import A1, U1, event_of, of, reduction, sent
from tests.domain.test_call_pairing import answers, asks, placed

from clew.domain.messages import FunctionResult, Message
from clew.domain.models.chat_requests import result_text
from clew.domain.reducers.history_reduction import SHORTEST, cut
from clew.domain.reducers.strategies import TrimToolResults
from clew.domain.runs.errors import AgentConfigurationError

LONG = "x" * 500
NOTE = "… [cut: 500 characters]"


def test_long_results_are_trimmed_with_a_note_and_all_messages_kept() -> None:
    input_history = of(asks("a"), answers("a", LONG), U1)
    event = event_of(TrimToolResults(50), input_history)
    assert (event.left_out, event.trimmed, event.reducer) == ((), ((3, 50),), "trim-tool-results(50, 1)")
    assert sent(input_history.history, event) == [asks("a"), answers("a", "x" * (50 - len(NOTE)) + NOTE), U1]


def test_results_in_the_newest_groups_stay_unchanged() -> None:
    input_history = of(asks("a"), answers("a", LONG), asks("b"), answers("b", LONG), A1)
    assert dict(reduction(TrimToolResults(50, keep_last=2), input_history).trimmed) == {3: 50}
    assert dict(reduction(TrimToolResults(50, keep_last=0), input_history).trimmed) == {3: 50, 5: 50}
    assert dict(reduction(TrimToolResults(50, keep_last=9), input_history).trimmed) == {}


def test_results_of_the_run_stay_unchanged() -> None:
    input_history = of(asks("a", "b"), answers("a", LONG), U1, A1, input=[answers("b", LONG)])
    assert dict(reduction(TrimToolResults(50, keep_last=0), input_history).trimmed) == {}


def test_short_results_and_messages_without_results_stay_unchanged() -> None:
    input_history = of(asks("a"), answers("a", "x" * 50), Message.user(LONG), None, A1)
    result = reduction(TrimToolResults(50, keep_last=0), input_history)
    assert (dict(result.trimmed), list(result.kept)) == ({}, [2, 3, 4, 5, 6])


def test_a_result_that_is_not_text_is_trimmed_as_json() -> None:
    message = placed(answers("a", {"rows": list(range(100))}))[0]
    (result,) = cut(message, 50).results
    assert str(result.result).startswith('{"rows": [0, 1, 2')
    assert str(result.result).endswith("… [cut: 400 characters]")


def test_trimming_drops_source_data() -> None:
    message = Message(role="tool", contents=answers("a", LONG).contents, metadata={"k": 1}, source={"openai": LONG})
    trimmed = cut(placed(message)[0], 50).message
    assert trimmed is not None
    assert (trimmed.source, trimmed.metadata) == ({}, {"k": 1})


def test_short_and_redacted_messages_stay_the_same_object() -> None:
    for message in placed(answers("a", "short"), U1, None):
        assert cut(message, 50) is message


@hypothesis_given(
    st.text(max_size=200) | st.lists(st.integers(), max_size=40), st.integers(min_value=SHORTEST, max_value=120)
)
def test_a_trimmed_result_never_exceeds_its_length(result: Any, characters: int) -> None:
    message = Message(role="tool", contents=(FunctionResult(call_id="a", result=result),))
    (trimmed,) = cut(placed(message)[0], characters).results
    text = result_text(trimmed.result)
    assert len(text) <= characters
    if len(result_text(result)) <= characters:
        assert trimmed.result == result
    else:
        assert f"[cut: {len(result_text(result))} characters]" in text


@pytest.mark.parametrize("characters", [0, 39, True, "100", None])
def test_refuses_a_length_without_room_for_the_note(characters: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=r"TrimToolResults: characters=.* 40 or more"):
        TrimToolResults(characters)


def test_refuses_other_invalid_options() -> None:
    with pytest.raises(AgentConfigurationError, match=r"keep_last=-1 is not a limit\. Give a whole number, 0 or more"):
        TrimToolResults(100, -1)
    with pytest.raises(AgentConfigurationError, match="is not a moment"):
        TrimToolResults(100, when="never")  # type: ignore[arg-type]  # the test passes a wrong value
