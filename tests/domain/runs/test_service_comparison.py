"""The record beside what a service holds: the same where the service can say no more."""

from __future__ import annotations

from typing import Any

from clew.domain.history import History, HistoryMessage
from clew.domain.messages import FunctionCall, FunctionResult, Message, Raw, Reasoning, Text
from clew.domain.models.responses_answers import bare
from clew.domain.runs.remote_threads import reconciled

CALL = FunctionCall(call_id="c1", name="weather", arguments='{"city": "Oslo"}')
SEARCHED: Any = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "Oslo"}}


def record(*messages: Message | None) -> History:
    said = (
        HistoryMessage(version, "user" if message is None else message.role, message, f"e{version}", 0)
        for version, message in enumerate(messages, start=2)
    )
    return History("t", len(messages) + 1, tuple(said))


def test_what_a_service_cannot_say_makes_no_difference() -> None:
    thought = Reasoning(text="Hm.", data={"type": "reasoning", "id": "rs_1", "summary": [{"text": "Hm."}]})
    found = reconciled(
        record(
            Message(role="user", author="Ada", contents=(Text(text="Weather?"),), metadata={"page": 1}),
            Message(role="assistant", author="Joker", contents=(thought, Raw(value=SEARCHED), Text(text="So:"), CALL)),
            Message(role="tool", contents=(FunctionResult(call_id="c1", name="weather", result={"degrees": 20}),)),
        ),
        [
            Message.user("Weather?"),
            Message(
                role="assistant",
                contents=(
                    Reasoning(text="Hm.", data={"type": "reasoning", "id": "rs_2", "summary": [{"text": "Hm."}]}),
                    Raw(value={**SEARCHED, "id": "ws_2"}),
                    Text(text="So:"),
                    CALL,
                ),
            ),
            Message.tool("c1", '{"degrees": 20}'),
        ],
    )
    assert found.counts == (3, 0, 0, 0)
    assert found.shared == 0
    assert [(row.a.version, row.b.version) for row in found.rows if row.a and row.b] == [(2, 1), (3, 2), (4, 3)]


def test_shows_what_only_one_of_them_has() -> None:
    found = reconciled(
        record(Message.user("One."), Message.assistant("Two."), Message.user("Not sent.")),
        [Message.user("Before."), Message.user("One."), Message.assistant("Two!")],
    )
    assert [row.kind for row in found.rows] == ["only-b", "same", "changed", "only-a"]
    assert (found.a.thread_id, found.a.version, found.b.version) == ("t", 4, 3)


def test_what_an_assistant_says_in_one_go_is_one_message() -> None:
    halves = (Message.assistant("Half"), Message.assistant("Whole."))
    whole = Message(role="assistant", contents=(Text(text="Half"), Text(text="Whole.")))
    found = reconciled(record(Message.user("Say."), *halves), [Message.user("Say."), whole])
    assert found.counts == (2, 0, 0, 0)
    assert [row.a.version for row in found.rows if row.a] == [2, 4]
    assert reconciled(record(Message.user("Say."), whole), [Message.user("Say."), *halves]).counts == (2, 0, 0, 0)


def test_what_is_redacted_is_not_what_the_service_holds() -> None:
    found = reconciled(record(None, Message.assistant("Yes.")), [Message.user("Secret."), Message.assistant("Yes.")])
    assert [row.kind for row in found.rows] == ["changed", "same"]
    alone = reconciled(record(Message.assistant("a"), None, Message.assistant("b")), [])
    assert [row.kind for row in alone.rows] == ["only-a"] * 3


def test_ids_and_states_that_change_are_left_out() -> None:
    assert bare(Raw(value=SEARCHED)) == Raw(value={"type": "web_search_call", "action": {"query": "Oslo"}})
    assert bare(Raw(value=[1])) == Raw(value=[1])
    assert bare(Reasoning(text="Hm.", data={"id": "rs_1"})) == Reasoning(text="Hm.")
    assert bare(CALL) is CALL
