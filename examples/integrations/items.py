"""A framework's own message as one of Clew: it can be read, searched and redacted, and comes back equal."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any, get_args

from clew import Message, Text
from clew.types import HistoryMessage, Role

Path = tuple[Any, ...]


def as_message(role: str, item: Any, paths: Sequence[Path] = (), *, author: str | None = None) -> Message:
    """A message with the texts at these paths of the item. The rest of the item is its source."""
    rest, texts = deepcopy(item), []
    for *steps, last in paths:
        holder = reduce(getitem, steps, rest)
        texts.append(Text(text=holder[last]))
        holder[last] = ""
    known: Any = role if role in get_args(Role) else "assistant"
    source = {"item": rest, "paths": [list(path) for path in paths]}
    return Message(role=known, author=author, contents=tuple(texts), source=source)


def as_item(message: Message) -> Any:
    """The item that a message was made from."""
    source: Any = deepcopy(message.source)
    for (*steps, last), text in zip(source["paths"], message.contents, strict=True):
        reduce(getitem, steps, source["item"])[last] = getattr(text, "text", "")
    return source["item"]


def as_items(history: Iterable[HistoryMessage]) -> list[Any]:
    """The items of a history, without what was redacted and what other programs appended."""
    messages = [each.message for each in history]
    return [as_item(message) for message in messages if message is not None and "item" in message.source]


def text_paths(item: Any, *path: Any, name: str = "text") -> list[Path]:
    """The path of a text, or of the texts in a list of parts, which have them under a name."""
    content = reduce(lambda value, step: value.get(step) if isinstance(value, dict) else None, path, item)
    if isinstance(content, str):
        return [path]
    parts = content if isinstance(content, list) else []
    return [
        (*path, number, name)
        for number, part in enumerate(parts)
        if isinstance(part, dict) and isinstance(part.get(name), str)
    ]
