"""How what is remembered is put into words: one line each, said to be data, and never longer than it may be."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

from clew.domain.errors import InvalidNameError, ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, FunctionResult, Message, Text
from clew.domain.names import check_id
from clew.domain.reducers.reducer import checked_limit
from clew.domain.runs.errors import AgentConfigurationError

MOST_SAID = 4_000
"""Characters of one message that a model is shown to learn from; of a longer one, the beginning and the end."""

MOST_MESSAGES = 200
"""Messages that a model is shown to learn from, at the most: the first quarter and the rest from the end."""

T = TypeVar("T")

MOST_SHOWN = 100_000
"""Characters of all these messages together."""

_JOINERS = "\u200c\u200d"
"""Characters that words of some languages and some pictures need, though they are not seen."""


def checked_scope(scope: str | None, provider: str) -> str:
    """The name of a scope. Raises ScopeError for none: unset never means everyone's."""
    if not isinstance(scope, str) or not scope.strip():
        raise ScopeError(f"{provider}: scope={scope!r} is none. Say whose memory it is, such as scope='user/42'.")
    try:
        check_id(scope, "scope")
    except InvalidNameError as error:
        raise ScopeError(f"{provider}: {error}") from None
    return scope


def checked_search(owner: object, top: int, min_score: float) -> None:
    """Raise AgentConfigurationError for what nothing can be searched by: a number below 1, a score not of 0 to 1."""
    checked_limit(owner, "top", top, 1)
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or not 0 <= min_score <= 1:
        raise AgentConfigurationError(f"{type(owner).__name__}: min_score={min_score!r} is no score of 0 to 1.")


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end with an ellipsis between them if it is longer."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[len(text) - end :]}"


def tidy(text: str, most: int) -> str:
    """What a model wrote as it is remembered: on one line, in valid Unicode, shortened to ``most`` characters."""
    return shortened(" ".join(text.encode("utf-8", "replace").decode().split()), most)


def one_line(text: str, most: int) -> str:
    """A text on one line: what ends a line, and what is not seen, is shown as an escape."""
    return "".join(map(_visible, shortened(text.strip(), most)))


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def listed(title: str, lines: Iterable[str]) -> str:
    """A list under its title, an item a line."""
    return "\n".join([title, *(f"- {line}" for line in lines)])


def with_words(messages: Iterable[HistoryMessage], *roles: str) -> list[HistoryMessage]:
    """The messages of these roles in which something is said."""
    return [message for message in messages if message.role in roles and message.text.strip()]


def shown(messages: Sequence[HistoryMessage]) -> list[JsonObject]:
    """Messages as a model is shown them, numbered from 1; too many lose those in the middle, and it says so.

    Where they are too long together, the long ones are shortened alike.
    """
    said = [(number, each.message) for number, each in enumerate(messages, 1) if each.message is not None]
    left_out = max(0, len(said) - MOST_MESSAGES)
    first = MOST_MESSAGES // 4 if left_out else len(said)
    said = [*said[:first], *said[first + left_out :]]
    texts = [shortened(_said(message), MOST_SAID) for _, message in said]
    most = MOST_SAID if sum(map(len, texts)) <= MOST_SHOWN else MOST_SHOWN // len(texts)
    objects = [_shown(number, message, text, most) for (number, message), text in zip(said, texts, strict=True)]
    return [*objects[:first], {"left_out": left_out}, *objects[first:]] if left_out else objects


def _shown(number: int, message: Message, text: str, most: int) -> JsonObject:
    who: JsonObject = {} if message.author is None else {"author": message.author}
    return {"number": number, "role": message.role, **who, "said": shortened(text, most)}


def _said(message: Message) -> str:
    """The words of a message, its calls and their results."""
    parts = []
    for content in message.contents:
        if isinstance(content, Text):
            parts.append(content.text)
        elif isinstance(content, FunctionCall):
            parts.append(f"[calls {content.name} with {content.arguments}]")
        elif isinstance(content, FunctionResult):
            told = content.result if isinstance(content.result, str) else json.dumps(content.result, ensure_ascii=False)
            parts.append(f"[is given {told}]")
    return "\n".join(parts)


def numbered(items: Sequence[T], number: int | None) -> T | None:
    """The item of a number from 1; None for one that there is not, which a model may well name."""
    return items[number - 1] if number is not None and 1 <= number <= len(items) else None
