"""Partial answers: their texts, author and maximum size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.decider_state import OpenRun
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import Message, Reasoning, Text, check_message
from clew.domain.ports import Draft
from clew.domain.runs.events import AnswerInterrupted
from clew.domain.runs.state import MAX_PARTIAL, draft_of, drafted, interrupted, partial

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def test_a_partial_answer_is_a_message_of_its_author() -> None:
    message = partial(["Half", "way"], ["Let me", " think."], "Joker")
    thoughts, words = Reasoning(text="Let me think."), Text(text="Halfway")
    assert message == Message(role="assistant", author="Joker", contents=(thoughts, words), cut=True)


@pytest.mark.parametrize(("text", "reasoning"), [([], []), ([""], []), ([], ["Let me think."])])
def test_an_empty_partial_answer_gives_no_message(text: list[str], reasoning: list[str]) -> None:
    assert partial(text, reasoning, None) is None
    assert drafted(draft_of(7, None), 7) is None


@given(st.lists(ANY_TEXT, min_size=1), st.lists(ANY_TEXT))
def test_any_partial_text_can_be_stored(text: list[str], reasoning: list[str]) -> None:
    message = partial(text, reasoning, None)
    if message is not None:
        check_message(message)
        assert drafted(draft_of(7, message), 7) == message


def test_joins_the_halves_of_a_character() -> None:
    message = partial(["\ud83d", "\ude00"], [], None)
    assert message is not None
    assert message.text == "\U0001f600"


@pytest.mark.parametrize("character", ["x", "\x00", "\U0001f600"])
def test_a_partial_answer_fits_into_an_event(character: str) -> None:
    message = partial([character * (MAX_PARTIAL + 1)], [character * (MAX_PARTIAL + 1)], "Joker")
    assert message is not None
    assert message.text == character * MAX_PARTIAL
    assert len(message.model_dump_json().encode()) < MAX_BYTES


@pytest.mark.parametrize(
    ("draft", "used"),
    [
        (None, False),
        (Draft("s", "r", draft_of(4, Message.assistant("Half", author="Joker"))), True),
        (Draft("s", "r", draft_of(3, Message.assistant("Half", author="Joker"))), False),
        (Draft("s", "other", draft_of(4, Message.assistant("Half", author="Joker"))), False),
        (Draft("s", "r", None), False),
    ],
    ids=["no draft", "the draft", "of another call", "of another run", "shredded"],
)
def test_the_draft_is_recorded_when_another_process_ends_the_run(
    draft: Draft | None,
    used: bool,  # noqa: FBT001  # pytest passes it by name
) -> None:
    messages: Any = (Message.assistant("Half", author="Joker").model_copy(update={"cut": True}),) if used else ()
    event = AnswerInterrupted(call=4, message=-1 if used else None, reason="crashed")
    assert interrupted(OpenRun("r", 2, call=4), draft, "crashed") == (*messages, event)


def test_without_a_model_call_nothing_is_recorded() -> None:
    draft = Draft("s", "r", draft_of(4, Message.assistant("Half")))
    assert interrupted(OpenRun("r", 2), draft, "stopped") == ()
