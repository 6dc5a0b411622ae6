from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as given_
from hypothesis import strategies as st
from tests.domain.reducers.reduced_histories import A1, U1, event_of, of, reduction, sent
from tests.domain.test_model_view import answers, asks, placed

from clew.domain.messages import FunctionResult, Message
from clew.domain.models.chat_requests import result_text
from clew.domain.reducers.history_reduction import SHORTEST, cut
from clew.domain.reducers.strategies import TrimToolResults
from clew.domain.runs.errors import AgentConfigurationError

LONG = "x" * 500
NOTE = "… [cut: 500 characters]"


def test_long_results_are_cut_with_a_note_and_everything_is_kept() -> None:
    given = of(asks("a"), answers("a", LONG), U1)
    event = event_of(TrimToolResults(50), given)
    assert (event.left_out, event.trimmed, event.reducer) == ((), ((3, 50),), "trim-tool-results(50, 1)")
    assert sent(given.history, event) == [asks("a"), answers("a", "x" * (50 - len(NOTE)) + NOTE), U1]


def test_those_in_the_newest_groups_are_left_alone() -> None:
    given = of(asks("a"), answers("a", LONG), asks("b"), answers("b", LONG), A1)
    assert dict(reduction(TrimToolResults(50, keep_last=2), given).trimmed) == {3: 50}
    assert dict(reduction(TrimToolResults(50, keep_last=0), given).trimmed) == {3: 50, 5: 50}
    assert dict(reduction(TrimToolResults(50, keep_last=9), given).trimmed) == {}


def test_the_runs_own_results_are_left_alone() -> None:
    given = of(asks("a", "b"), answers("a", LONG), U1, A1, input=[answers("b", LONG)])
    assert dict(reduction(TrimToolResults(50, keep_last=0), given).trimmed) == {}


def test_results_that_fit_and_messages_without_any_are_left_alone() -> None:
    given = of(asks("a"), answers("a", "x" * 50), Message.user(LONG), None, A1)
    found = reduction(TrimToolResults(50, keep_last=0), given)
    assert (dict(found.trimmed), list(found.kept)) == ({}, [2, 3, 4, 5, 6])


def test_a_result_that_is_no_text_is_cut_as_its_json() -> None:
    said = placed(answers("a", {"rows": list(range(100))}))[0]
    (result,) = cut(said, 50).results
    assert str(result.result).startswith('{"rows": [0, 1, 2')
    assert str(result.result).endswith("… [cut: 400 characters]")


def test_nothing_that_a_source_said_of_the_whole_is_said_of_the_rest() -> None:
    message = Message(role="tool", contents=answers("a", LONG).contents, metadata={"k": 1}, source={"openai": LONG})
    said = cut(placed(message)[0], 50).message
    assert said is not None
    assert (said.source, said.metadata) == ({}, {"k": 1})


def test_what_is_short_or_redacted_stays_the_same_object() -> None:
    for said in placed(answers("a", "short"), U1, None):
        assert cut(said, 50) is said


@given_(st.text(max_size=200) | st.lists(st.integers(), max_size=40), st.integers(min_value=SHORTEST, max_value=120))
def test_what_is_left_is_never_longer_than_it_may_be(result: Any, characters: int) -> None:
    message = Message(role="tool", contents=(FunctionResult(call_id="a", result=result),))
    (left,) = cut(placed(message)[0], characters).results
    text = result_text(left.result)
    assert len(text) <= characters
    if len(result_text(result)) <= characters:
        assert left.result == result
    else:
        assert f"[cut: {len(result_text(result))} characters]" in text


@pytest.mark.parametrize("characters", [0, 39, True, "100", None])
def test_a_length_without_room_for_the_note_is_refused(characters: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=r"TrimToolResults: characters=.* 40 or more"):
        TrimToolResults(characters)


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(AgentConfigurationError, match=r"keep_last=-1 is not a limit\. Give a whole number, 0 or more"):
        TrimToolResults(100, -1)
    with pytest.raises(AgentConfigurationError, match="is not a moment"):
        TrimToolResults(100, when="never")  # type: ignore[arg-type]  # on purpose
