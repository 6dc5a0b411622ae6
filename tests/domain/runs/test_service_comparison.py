"""Comparing the log with a service's history, without fields that the service does not keep."""

from __future__ import annotations

from typing import Any

from clew.domain.history import History, HistoryMessage
from clew.domain.messages import FunctionCall, FunctionResult, Message, Raw, Reasoning, Text
from clew.domain.models.native import bare
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.runs import remote_threads

CALL = FunctionCall(call_id="c1", name="weather", arguments='{"city": "Oslo"}')
SEARCHED: Any = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "Oslo"}}


def reconciled(record: History, held: list[Message]) -> Any:
    return remote_threads.reconciled(record, held, OPENAI_RESPONSES)


def record(*messages: Message | None) -> History:
    placed = (
        HistoryMessage(version, "user" if message is None else message.role, message, f"e{version}", 0)
        for version, message in enumerate(messages, start=2)
    )
    return History("t", len(messages) + 1, tuple(placed))


def test_ignores_fields_that_the_service_does_not_keep() -> None:
    thought = Reasoning(text="Hm.", data={"type": "reasoning", "id": "rs_1", "summary": [{"text": "Hm."}]})
    result = reconciled(
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
    assert result.counts == (3, 0, 0, 0)
    assert result.shared == 0
    assert [(row.a.version, row.b.version) for row in result.rows if row.a and row.b] == [(2, 1), (3, 2), (4, 3)]


def test_shows_messages_of_only_one_side() -> None:
    result = reconciled(
        record(Message.user("One."), Message.assistant("Two."), Message.user("Not sent.")),
        [Message.user("Before."), Message.user("One."), Message.assistant("Two!")],
    )
    assert [row.kind for row in result.rows] == ["only-b", "same", "changed", "only-a"]
    assert (result.a.thread_id, result.a.version, result.b.version) == ("t", 4, 3)


def test_adjacent_assistant_messages_are_compared_as_one() -> None:
    halves = (Message.assistant("Half"), Message.assistant("Whole."))
    whole = Message(role="assistant", contents=(Text(text="Half"), Text(text="Whole.")))
    result = reconciled(record(Message.user("Say."), *halves), [Message.user("Say."), whole])
    assert result.counts == (2, 0, 0, 0)
    assert [row.a.version for row in result.rows if row.a] == [2, 4]
    assert reconciled(record(Message.user("Say."), whole), [Message.user("Say."), *halves]).counts == (2, 0, 0, 0)


def test_a_redacted_message_differs_from_the_service() -> None:
    result = reconciled(record(None, Message.assistant("Yes.")), [Message.user("Secret."), Message.assistant("Yes.")])
    assert [row.kind for row in result.rows] == ["changed", "same"]
    alone = reconciled(record(Message.assistant("a"), None, Message.assistant("b")), [])
    assert [row.kind for row in alone.rows] == ["only-a"] * 3


def test_ignores_changing_ids_and_states() -> None:
    assert bare(Raw(value=SEARCHED)) == Raw(value={"type": "web_search_call", "action": {"query": "Oslo"}})
    assert bare(Raw(value=[1])) == Raw(value=[1])
    assert bare(Reasoning(text="Hm.", data={"id": "rs_1"})) == Reasoning(text="Hm.")
    assert bare(CALL) is CALL
