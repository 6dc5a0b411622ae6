"""A model with fixed replies, in this process or over HTTP, and the requests to it."""

from __future__ import annotations

from typing import Any

from tests.servers.aimock_server import Aimock

from clew import OpenAIChatClient, ScriptedChatClient

KINDS = ("scripted", "http")


class Model:
    """A model that sends the first reply whose words are in the user's last message, over HTTP if it has a server."""

    def __init__(self, aimock: Aimock | None = None) -> None:
        self._aimock = aimock
        self._replies: list[tuple[str, str]] = []
        self._scripted = ScriptedChatClient(self._answer)

    @property
    def base_url(self) -> str:
        """Return the URL for a client in another process; empty for a scripted model."""
        return "" if self._aimock is None else self._aimock.base_url

    def says(self, words: str, text: str) -> None:
        """Add a reply to messages with these words. Earlier replies take precedence."""
        self._replies.append((words, text))
        if self._aimock is not None:
            self._aimock.reply(words, text=text)

    def client(self) -> Any:
        """Return a client of the model."""
        if self._aimock is None:
            return self._scripted
        return OpenAIChatClient("gpt-4o", api_key="none", base_url=self._aimock.base_url)

    def asked(self) -> list[Any]:
        """Return the bodies of the requests, in order."""
        if self._aimock is None:
            return list(self._scripted.requests)
        return [each.body for each in self._aimock.journal()]

    def _answer(self, body: Any) -> str:
        question = [each["content"] for each in body["messages"] if each["role"] == "user"][-1]
        return next(text for words, text in self._replies if words in question)
