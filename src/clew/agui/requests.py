"""What a request of AG-UI asks for: which of its messages are new, and where the conversation continues."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ag_ui import core

from clew.agui.messages import as_clew, client_id, result_of
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message

_OWN_ID = re.compile(r"(?:(?P<run>[0-9a-f]{16})-(?P<number>\d{1,9})(?:\.\d{1,9})?|clew-(?P<version>\d{1,18}))")


class OwnId(NamedTuple):
    """The id that Clew gave to a message: its number in a run, or its version."""

    run: str | None
    number: int


class Place(NamedTuple):
    """The newest message of a client that Clew has named: its version, and the end of its turn."""

    version: int
    end: int


class Plan(NamedTuple):
    """What a request asks for: to answer the ``new`` messages, or if ``answers`` those that are there.

    ``rewind_to`` is the version from which the conversation continues, None for the newest.
    """

    new: tuple[Message, ...] = ()
    rewind_to: int | None = None
    answers: bool = False


def own_id(message: core.Message) -> OwnId | None:
    """The id of a message if Clew gave it."""
    found = _OWN_ID.fullmatch(message.id)
    if found is None or message.role == "reasoning":
        return None
    if found["version"] is not None:
        return OwnId(None, int(found["version"]))
    return OwnId(found["run"], int(found["number"]))


def last_own(messages: Sequence[core.Message]) -> int:
    """The index of the newest message to which Clew gave its id, -1 without one."""
    return next((index for index in reversed(range(len(messages))) if own_id(messages[index]) is not None), -1)


def planned(messages: Sequence[core.Message], place: Place | None, tail: Sequence[HistoryMessage]) -> Plan:
    """What a request with these messages asks for.

    ``place`` is that of the newest one that Clew has named, and ``tail`` the end of the history, from there on. The
    thread is the truth: what a client says of messages that the thread has is not believed. But the conversation
    continues after the newest one that the client has: so a client edits a message, or asks for another answer.

    Raises UnsupportedContentError.
    """
    has = {client_id(each): each for each in tail if place is None or each.version > place.version}
    own = -1 if place is None else last_own(messages)
    since = messages[own + 1 :]
    users = [each for each in since if isinstance(each, core.UserMessage)]
    known = next((n for n in reversed(range(len(users))) if users[n].id in has), -1)
    new = tuple(as_clew(each) for each in users[known + 1 :])
    at = has[users[known].id].version if known >= 0 else None if place is None else place.version
    if known < 0 and place is not None and all(each.version != place.version for each in tail):
        # The thread has been rewound to before the message, and the client still shows it.
        return Plan(new, place.end, answers=True) if new else Plan()
    following = [each for each in tail if at is not None and each.version > at]
    if new:
        edited = next((each for each in following if each.role == "user"), None)
        return Plan(new, None if edited is None else edited.version - 1, answers=True)
    if at is None or messages[-1].role != "user":
        return Plan()
    return Plan((), at if following else None, answers=True)


def known_lengths(messages: Sequence[core.Message]) -> dict[str, int]:
    """How many characters a client has of messages, of the arguments of calls and of reasoning, by id."""
    known: dict[str, int] = {}
    for message in messages:
        if isinstance(message, core.AssistantMessage):
            if message.content is not None:
                known[message.id] = len(message.content)
            known |= {call.id: len(call.function.arguments) for call in message.tool_calls or ()}
        elif isinstance(message, core.ReasoningMessage):
            known[message.id] = len(message.content)
        elif isinstance(message, core.ToolMessage):
            known[result_of(message.tool_call_id)] = 1
    return known
