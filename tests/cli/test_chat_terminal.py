"""What of a run is written while it goes on: whole lines, in pieces of any cut, and safe for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Message
from clew.agents.response import AgentUpdate
from clew.cli.chat.terminal import Answers
from clew.cli.output import safe
from clew.domain.history import HistoryMessage
from clew.domain.messages import Content, FunctionCall, FunctionResult, Reasoning, Role, Text


def recorded(*contents: Content, kind: str = "answer") -> AgentUpdate:
    role: Role = "assistant" if kind == "answer" else "tool"
    message = HistoryMessage(5, role, Message(role=role, contents=contents), "id", 0)
    return AgentUpdate("answer" if kind == "answer" else "result", message=message)


def text(piece: str) -> AgentUpdate:
    return AgentUpdate("text", piece)


CALL = FunctionCall(call_id="c1", name="refund", arguments='{"sum": 48}')
RUN = [
    AgentUpdate("reasoning", "Think"),
    AgentUpdate("reasoning", "ing."),
    text("Let me"),
    text(" look."),
    AgentUpdate("call", '{"sum"', "c1", "refund"),
    recorded(Reasoning(text="Thinking."), Text(text="Let me look."), CALL),
    recorded(FunctionResult(call_id="c1", name="refund", result="paid"), kind="result"),
    recorded(Text(text="It came whole.")),
]


def shown(updates: list[AgentUpdate], capsys: pytest.CaptureFixture[str], *, people: bool) -> str:
    answers = Answers(people=people)
    for update in updates:
        answers.take(update)
    answers.close()
    return capsys.readouterr().out


def test_people_see_what_the_model_thinks_says_and_calls(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["Thinking.", "Let me look.", '→ refund({"sum": 48})', "← refund: paid", "It came whole."]
    assert shown(RUN, capsys, people=True).splitlines() == lines


def test_a_pipe_gets_the_words_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(RUN, capsys, people=False) == "Let me look.\nIt came whole.\n"


@given(st.lists(st.text(st.sampled_from("a\r\n\x1b\u202e"), max_size=3), max_size=6))
def test_however_it_is_cut_the_same_is_written(pieces: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("sys.stdout.write", written.append)
        answers = Answers(people=False)
        for piece in pieces:
            answers.take(text(piece))
        answers.close()
    whole = safe("".join(pieces))
    assert "".join(written) == (whole if whole.endswith("\n") or not whole else f"{whole}\n")
