"""What a run is given to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from clew.domain.errors import InvalidContentError
from clew.domain.messages import Message, check_message

Input: TypeAlias = str | Message | Sequence[Message] | None
"""What a run is given: words of the user, a message, several, or nothing, to answer what was said on the thread."""


def inputs(asked: str, given: Input) -> tuple[Message, ...]:
    """What a run is given, as messages. Raises InvalidContentError for what is no input."""
    if given is None:
        return ()
    if isinstance(given, str):
        messages: tuple[Message, ...] = (Message.user(given),)
    elif isinstance(given, Message):
        messages = (given,)
    elif (
        isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(each, Message) for each in given)
    ):
        messages = tuple(given)
    else:
        kind = type(given).__name__
        raise InvalidContentError(f"{asked}: {kind} is no input. Give a string, a Message or a list of Messages.")
    for message in messages:
        check_message(message)
    return messages
