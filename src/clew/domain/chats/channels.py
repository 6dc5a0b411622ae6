"""Channels: how the primary history of a chat is adapted to a kind of agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from clew.domain.history import HistoryMessage
from clew.domain.json_values import canonical
from clew.domain.messages import Media, Message, Text
from clew.domain.models.client import ThreadKind
from clew.domain.streams import digest


@runtime_checkable
class Channel(Protocol):
    """How a participant receives the primary history of a chat, on a thread of its own.

    ``kind`` is the kind of agents that it serves, and ``address`` the service that holds their threads, empty if Clew
    holds them. Both are in the channel's key: two channels with equal keys can continue each other's threads. ``adapt``
    is a pure function. ``clew.testing.check_channel`` is its contract.
    """

    @property
    def kind(self) -> str:
        """The kind of agents, for the key."""
        ...

    @property
    def address(self) -> str:
        """The address of the service that holds their threads, for the key."""
        ...

    @property
    def thread_kind(self) -> ThreadKind:
        """Who holds the history of their threads."""
        ...

    def adapt(self, messages: Sequence[HistoryMessage], author: str, *, newcomer: bool) -> list[Message]:
        """The messages as the participant with that author name receives them, oldest first.

        Its own answers are on its thread already, unless it is a ``newcomer`` whose thread has nothing of the chat.
        """
        ...


@dataclass(frozen=True, slots=True)
class AgentChannel:
    """The channel of Clew's agents: what others said comes from the user, under their names."""

    kind: str = "local"
    address: str = ""
    thread_kind: ThreadKind = "local"

    def adapt(self, messages: Sequence[HistoryMessage], author: str, *, newcomer: bool) -> list[Message]:
        """The messages with text or media of all others, and for a newcomer its own."""
        adapted: list[Message] = []
        for each in messages:
            contents = () if each.message is None else spoken(each.message)
            if each.message is None or not contents:
                continue
            if each.role != "assistant":
                adapted.append(each.message)
            elif each.message.author != author:
                adapted.append(Message(role="user", author=each.message.author, contents=contents))
            elif newcomer:
                adapted.append(Message(role="assistant", author=author, contents=contents))
        return adapted


def spoken(message: Message) -> tuple[Text | Media, ...]:
    """The contents of a message that others hear: texts and media, no calls, results and reasoning."""
    return tuple([each for each in message.contents if isinstance(each, Text | Media)])


def channel_key(channel: Channel) -> str:
    """The digest of a channel's kind and address, 64 hex digits: equal in every process and release.

    User, password, query and fragment of an address may be secret, and are left out.
    """
    return digest(canonical([channel.kind, _public(channel.address)]).encode()).hex()


def _public(address: str) -> str:
    parts = urlsplit(address if "//" in address else f"//{address}")
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{host}{parts.path.rstrip('/')}"
