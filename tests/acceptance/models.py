"""A model that answers as it is told, in this process or over HTTP, and what it was asked."""

from __future__ import annotations

from typing import Any

from tests.servers.aimock_server import Aimock

from clew import OpenAIChatClient, ScriptedChatClient

KINDS = ("scripted", "http")


class Model:
    """Answers with the first reply whose words are in what the user said last; over HTTP when it has a server."""

    def __init__(self, aimock: Aimock | None = None) -> None:
        self._aimock = aimock
        self._replies: list[tuple[str, str]] = []
        self._scripted = ScriptedChatClient(self._answer)

    @property
    def base_url(self) -> str:
        """Where a client in another process asks, empty where that is scripted."""
        return "" if self._aimock is None else self._aimock.base_url

    def says(self, words: str, text: str) -> None:
        """Answer so where the user says these words, if none that was given before fits."""
        self._replies.append((words, text))
        if self._aimock is not None:
            self._aimock.reply(words, text=text)

    def client(self) -> Any:
        """A client that asks it."""
        if self._aimock is None:
            return self._scripted
        return OpenAIChatClient("gpt-4o", api_key="none", base_url=self._aimock.base_url)

    def asked(self) -> list[Any]:
        """The bodies that came, as they came."""
        if self._aimock is None:
            return list(self._scripted.requests)
        return [each.body for each in self._aimock.journal()]

    def _answer(self, body: Any) -> str:
        said = [each["content"] for each in body["messages"] if each["role"] == "user"][-1]
        return next(text for words, text in self._replies if words in said)
