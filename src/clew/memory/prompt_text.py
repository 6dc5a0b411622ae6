"""Texts for prompts: of limited length, on one line, and marked as data, so that they are not instructions."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.facts import Fact
from clew.domain.messages import FunctionCall, FunctionResult, Message, Text
from clew.domain.models.chat_requests import result_words

MOST_MESSAGE_CHARACTERS = 4_000
"""Characters of a message that a model learns from; of a longer one, the beginning and the end."""

MOST_MESSAGES = 200
"""The most messages that a model learns from: the first quarter, and the rest from the end."""

T = TypeVar("T")

MOST_TOTAL_CHARACTERS = 100_000
"""Characters of all these messages in total."""

_MAX_QUERY = 4_000

_JOINERS = "\u200c\u200d"
"""Invisible characters that some languages and emoji need."""


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
    numbered = [(number, each.message) for number, each in enumerate(messages, 1) if each.message is not None]
    left_out = max(0, len(numbered) - MOST_MESSAGES)
    first = MOST_MESSAGES // 4 if left_out else len(numbered)
    numbered = [*numbered[:first], *numbered[first + left_out :]]
    texts = [shortened(_message_text(message), MOST_MESSAGE_CHARACTERS) for _, message in numbered]
    most = (
        MOST_MESSAGE_CHARACTERS
        if sum(map(len, texts)) <= MOST_TOTAL_CHARACTERS
        else MOST_TOTAL_CHARACTERS // len(texts)
    )
    objects = [
        _message_object(number, message, text, most) for (number, message), text in zip(numbered, texts, strict=True)
    ]
    return [*objects[:first], {"left_out": left_out}, *objects[first:]] if left_out else objects


def _message_object(number: int, message: Message, text: str, most: int) -> JsonObject:
    who: JsonObject = {} if message.author is None else {"author": message.author}
    return {"number": number, "role": message.role, **who, "said": shortened(text, most)}


def _message_text(message: Message) -> str:
    """The text of a message, with its calls and results."""
    parts = []
    for content in message.contents:
        if isinstance(content, Text):
            parts.append(content.text)
        elif isinstance(content, FunctionCall):
            parts.append(f"[calls {content.name} with {content.arguments}]")
        elif isinstance(content, FunctionResult):
            parts.append(f"[is given {result_words(content)}]")
    return "\n".join(parts)


def numbered_facts(facts: Sequence[Fact]) -> list[JsonObject]:
    """The texts of facts as data for a model, numbered from 1."""
    return [{"number": number, "text": fact.text} for number, fact in enumerate(facts, 1)]


def item_at(items: Sequence[T], number: int | None) -> T | None:
    """The item of a number from 1; None for a number without an item, which a model may name."""
    return items[number - 1] if number is not None and 1 <= number <= len(items) else None


def query_text(messages: Sequence[HistoryMessage]) -> str:
    """The text of users' and agents' messages as a search query: of a long text the end, where questions are."""
    texts = (each.text.strip() for each in messages if each.role in {"user", "assistant"})
    return "\n".join(text for text in texts if text)[-_MAX_QUERY:].strip()
