"""The output during a run: whole lines, the same for any pieces, and safe for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Message
from clew.agents.response import AgentUpdate
from clew.cli.chat import AnswerWriter
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


def write_updates(updates: list[AgentUpdate], capsys: pytest.CaptureFixture[str], *, people: bool) -> str:
    answers = AnswerWriter(verbose=people)
    for update in updates:
        answers.write(update)
    answers.end_line()
    return capsys.readouterr().out


def test_people_see_reasoning_text_and_calls(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["Thinking.", "Let me look.", '→ refund({"sum": 48})', "← refund: paid", "It came whole."]
    assert write_updates(RUN, capsys, people=True).splitlines() == lines


def test_a_pipe_gets_only_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_updates(RUN, capsys, people=False) == "Let me look.\nIt came whole.\n"


@given(st.lists(st.text(st.sampled_from("a\r\n\x1b\u202e"), max_size=3), max_size=6))
def test_the_pieces_of_a_stream_do_not_change_the_output(pieces: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("sys.stdout.write", written.append)
        answers = AnswerWriter(verbose=False)
        for piece in pieces:
            answers.write(text(piece))
        answers.end_line()
    whole = safe("".join(pieces))
    assert "".join(written) == (whole if whole.endswith("\n") or not whole else f"{whole}\n")
