"""What is kept of an answer that is not whole: its words, whose they are, and never more than an event has room for."""

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


def test_what_is_not_whole_is_a_message_of_who_says_it() -> None:
    said = partial(["Half", "way"], ["Let me", " think."], "Joker")
    thoughts, words = Reasoning(text="Let me think."), Text(text="Halfway")
    assert said == Message(role="assistant", author="Joker", contents=(thoughts, words))


@pytest.mark.parametrize(("text", "reasoning"), [([], []), ([""], []), ([], ["Let me think."])])
def test_without_words_there_is_no_message(text: list[str], reasoning: list[str]) -> None:
    assert partial(text, reasoning, None) is None
    assert drafted(draft_of(7, None), 7) is None


@given(st.lists(ANY_TEXT, min_size=1), st.lists(ANY_TEXT))
def test_words_that_were_cut_in_the_middle_of_a_character_can_be_kept(text: list[str], reasoning: list[str]) -> None:
    said = partial(text, reasoning, None)
    if said is not None:
        check_message(said)
        assert drafted(draft_of(7, said), 7) == said


def test_a_character_whose_halves_came_apart_is_whole() -> None:
    said = partial(["\ud83d", "\ude00"], [], None)
    assert said is not None
    assert said.text == "\U0001f600"


@pytest.mark.parametrize("character", ["x", "\x00", "\U0001f600"])
def test_no_more_is_kept_than_an_event_has_room_for(character: str) -> None:
    said = partial([character * (MAX_PARTIAL + 1)], [character * (MAX_PARTIAL + 1)], "Joker")
    assert said is not None
    assert said.text == character * MAX_PARTIAL
    assert len(said.model_dump_json().encode()) < MAX_BYTES


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        (None, False),
        (Draft("s", "r", draft_of(4, Message.assistant("Half", author="Joker"))), True),
        (Draft("s", "r", draft_of(3, Message.assistant("Half", author="Joker"))), False),
        (Draft("s", "other", draft_of(4, Message.assistant("Half", author="Joker"))), False),
        (Draft("s", "r", None), False),
    ],
    ids=["no draft", "the draft", "of another call", "of another run", "gone"],
)
def test_what_had_been_written_down_is_recorded_when_somebody_else_ends_the_run(
    draft: Draft | None,
    kept: bool,  # noqa: FBT001  # a case
) -> None:
    said: Any = (Message.assistant("Half", author="Joker"),) if kept else ()
    happened = AnswerInterrupted(call=4, message=-1 if kept else None, reason="crashed")
    assert interrupted(OpenRun("r", 2, call=4), draft, "crashed") == (*said, happened)


def test_nothing_is_recorded_of_a_model_that_was_not_asked() -> None:
    draft = Draft("s", "r", draft_of(4, Message.assistant("Half")))
    assert interrupted(OpenRun("r", 2), draft, "stopped") == ()
