"""LangChain's chat message history in a thread of Clew."""

from collections.abc import Sequence
from typing import Any

from examples.integrations.items import as_items, as_message, text_paths
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from clew import Conversations

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
EMPTY = 1
"""The version of a thread at which it has no messages."""


class ClewChatMessageHistory(BaseChatMessageHistory):
    """What is cleared stays on the log. ``thread`` has the same conversation, to fork, rewind or verify."""

    def __init__(self, session_id: str, conversations: Conversations) -> None:
        self.thread = conversations.open_thread(session_id)

    @property
    def messages(self) -> list[BaseMessage]:
        return list(messages_from_dict(as_items(self.thread.history())))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        if messages:
            self.thread.append([self._message(message_to_dict(each)) for each in messages])

    def clear(self) -> None:
        self.thread.rewind(EMPTY)

    def _message(self, item: Any) -> Any:
        paths = text_paths(item, "data", "content")
        return as_message(ROLES.get(item["type"], "assistant"), item, paths, author=item["data"].get("name"))
