"""Texts for prompts: bounded, on one line, and as data, so that a model does not take them as instructions."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

from clew.domain.errors import InvalidNameError, ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, FunctionResult, Message, Text
from clew.domain.reducers.reducer import checked_limit
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.streams import check_id

MOST_SAID = 4_000
"""Characters of a message that a model learns from; of a longer one, the beginning and the end."""

MOST_MESSAGES = 200
"""The most messages that a model learns from: the first quarter, and the rest from the end."""

T = TypeVar("T")

MOST_SHOWN = 100_000
"""Characters of all these messages in total."""

_MAX_QUERY = 4_000

_JOINERS = "\u200c\u200d"
"""Invisible characters that some languages and emoji need."""


def checked_scope(scope: str | None, provider: str) -> str:
    """The name of a scope. Raises ScopeError if it is missing: an unset scope never means everyone's."""
    if not isinstance(scope, str) or not scope.strip():
        raise ScopeError(
            f"{provider}: scope={scope!r} is empty. Name the owner of the memory, such as scope='user/42'."
        )
    try:
        check_id(scope, "scope")
    except InvalidNameError as error:
        raise ScopeError(f"{provider}: {error}") from None
    return scope


def checked_search(owner: object, top: int, min_score: float) -> None:
    """Raise AgentConfigurationError unless ``top`` is 1 or more and ``min_score`` from 0 to 1."""
    checked_limit(owner, "top", top, 1)
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or not 0 <= min_score <= 1:
        raise AgentConfigurationError(f"{type(owner).__name__}: min_score={min_score!r} is not a score from 0 to 1.")


def shortened(text: str, most: int) -> str:
    """The text; if it is too long, its beginning and its end with an ellipsis between them."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[len(text) - end :]}"


def single_line(text: str, most: int) -> str:
    """A text from a model on one line, in valid Unicode, shortened to ``most`` characters."""
    return shortened(" ".join(text.encode("utf-8", "replace").decode().split()), most)


def escaped_line(text: str, most: int) -> str:
    """A text on one line: line ends and invisible characters become escapes."""
    return "".join(map(_visible, shortened(text.strip(), most)))


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def bullet_list(title: str, lines: Iterable[str]) -> str:
    """A bulleted list under a title."""
    return "\n".join([title, *(f"- {line}" for line in lines)])


def with_text(messages: Iterable[HistoryMessage], *roles: str) -> list[HistoryMessage]:
    """The messages of these roles that have text."""
    return [message for message in messages if message.role in roles and message.text.strip()]


def numbered_messages(messages: Sequence[HistoryMessage]) -> list[JsonObject]:
    """Messages as data for a model, numbered from 1. Of too many, those in the middle are left out and counted.

    If they are too long together, the long ones are shortened to the same length.
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
    """The text of a message, with its calls and results."""
    parts = []
    for content in message.contents:
        if isinstance(content, Text):
            parts.append(content.text)
        elif isinstance(content, FunctionCall):
            parts.append(f"[calls {content.name} with {content.arguments}]")
        elif isinstance(content, FunctionResult):
            result = (
                content.result if isinstance(content.result, str) else json.dumps(content.result, ensure_ascii=False)
            )
            parts.append(f"[is given {result}]")
    return "\n".join(parts)


def item_at(items: Sequence[T], number: int | None) -> T | None:
    """The item of a number from 1; None for a number without an item, which a model may name."""
    return items[number - 1] if number is not None and 1 <= number <= len(items) else None


def query_text(messages: Sequence[HistoryMessage]) -> str:
    """The text of users' and agents' messages as a search query: of a long text the end, where questions are."""
    texts = (each.text.strip() for each in messages if each.role in {"user", "assistant"})
    return "\n".join(text for text in texts if text)[-_MAX_QUERY:].strip()
