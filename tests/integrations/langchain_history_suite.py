"""LangChain's chat message history in Clew: messages of every kind come back equal, and a chain uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.integrations.langchain_history import ClewChatMessageHistory
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from clew import Conversations, Message
from clew.errors import InvalidContentError

CALL: Any = {"name": "track", "args": {"parcel": 7}, "id": "c1"}
PICTURE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
MESSAGES: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("Where is parcel 7?", name="Ada", id="1"),
    AIMessage("", tool_calls=[CALL], usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    ToolMessage("In Cork.", tool_call_id="c1", artifact={"x": [1]}, status="success"),
    AIMessage([{"type": "text", "text": "In "}, PICTURE, "Cork", {"type": "text", "text": "."}]),
    FunctionMessage("7", name="old"),
    ChatMessage("Hm.", role="critic"),
    HumanMessage([PICTURE], additional_kwargs={"note": None}),
    RemoveMessage(id="z"),
]


@pytest.fixture
def conversations(tmp_path: Path) -> Iterator[Conversations]:
    with Conversations.open(tmp_path / "clew.db") as opened:
        yield opened


def test_answers_as_the_history_of_langchain_does(conversations: Conversations) -> None:
    histories: list[Any] = [ClewChatMessageHistory("s", conversations), InMemoryChatMessageHistory()]
    answers = []
    for history in histories:
        said = [list(history.messages)]
        history.add_messages([])
        history.add_messages(MESSAGES)
        history.add_user_message("Thanks.")
        history.add_ai_message("Good bye.")
        said.append(list(history.messages))
        history.clear()
        said.append(list(history.messages))
        history.add_message(MESSAGES[1])
        said.append(list(history.messages))
        asyncio.run(history.aadd_messages(MESSAGES[2:4]))
        said.append(asyncio.run(history.aget_messages()))
        asyncio.run(history.aclear())
        answers.append([*said, list(history.messages)])
    assert answers[0] == answers[1]
    assert [len(each) for each in answers[0]] == [0, 11, 0, 1, 3, 0]
    assert conversations.verify().first_bad is None


def test_the_messages_can_be_read_and_found_in_clew(conversations: Conversations) -> None:
    ClewChatMessageHistory("s", conversations).add_messages(MESSAGES)
    history = conversations.thread("s").history()
    assert [(each.role, each.author, each.text) for each in history][:5] == [
        ("system", None, "Be brief."),
        ("user", "Ada", "Where is parcel 7?"),
        ("assistant", None, ""),
        ("tool", None, "In Cork."),
        ("assistant", None, "In ."),
    ]
    assert [hit.role for hit in conversations.search("parcel")] == ["user"]


def test_what_was_redacted_or_appended_by_another_program_is_left_out(conversations: Conversations) -> None:
    history = ClewChatMessageHistory("s", conversations)
    history.add_messages(MESSAGES[:2])
    conversations.thread("s").append(Message.user("From elsewhere."))
    history.thread.redact(history.thread.history().messages[0])
    assert history.messages == MESSAGES[1:2]


def test_what_is_not_json_is_refused_and_nothing_is_stored(conversations: Conversations) -> None:
    history = ClewChatMessageHistory("s", conversations)
    with pytest.raises(InvalidContentError):
        history.add_messages([MESSAGES[0], ToolMessage("7", tool_call_id="c1", artifact=object())])
    assert history.messages == []


def test_a_chain_is_asked_the_same_with_both_histories(conversations: Conversations) -> None:
    asked: list[Any] = []

    def talk(of_session: Any) -> list[str]:
        prompt = ChatPromptTemplate([("system", "Be brief."), MessagesPlaceholder("past"), ("human", "{words}")])
        model = FakeListChatModel(responses=["One.", "Two."])
        asked.append([])
        spy = RunnableLambda(lambda value: (asked[-1].append(value.to_string()), value)[1])
        chain = RunnableWithMessageHistory(
            prompt | spy | model, of_session, input_messages_key="words", history_messages_key="past"
        )
        config: Any = {"configurable": {"session_id": "s"}}
        return [str(chain.invoke({"words": words}, config).content) for words in ("Hello", "Again")]

    own = InMemoryChatMessageHistory()
    assert talk(lambda id: ClewChatMessageHistory(id, conversations)) == talk(lambda _: own)
    assert asked[0] == asked[1]
    assert "One." in asked[0][1]
