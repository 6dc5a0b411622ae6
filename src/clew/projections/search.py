"""Full-text search: the words of messages, in their text, their tool calls and the results of tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from clew.domain.projection import Change, ForgetText, IndexText, Recorded, Rows
from clew.domain.search_terms import only_words


class Search:
    """An index of the words of messages, without their text: the text of a hit is read from its event.

    The author is not part of the text: a name finds no message, and a hit shows the author next to it.
    """

    name = "search"
    version = 2
    code_digest = "search-2"  # of this version: change both where it makes other rows
    tables = ()
    texts = ("words",)
    types = frozenset({"message-appended", "message-redacted"})

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """A message can be found until it is redacted."""
        del rows
        if event.data is None or event.kind != "thread":
            return ()
        tenant, thread_id = event.tenant, event.thread_id
        if event.type == "message-redacted":
            return (ForgetText("words", tenant, event.kind, thread_id, event.data["version"]),)
        scopes = (tenant_scope(tenant), thread_scope(tenant, thread_id))
        return (IndexText("words", only_words(searchable(event.data["message"])), scopes),)


def tenant_scope(tenant: str) -> str:
    """The scope of a tenant's messages."""
    return f"tenant {tenant}"


def thread_scope(tenant: str, thread_id: str) -> str:
    """The scope of the messages that are recorded in a thread."""
    return f"thread {tenant}/{thread_id}"


def searchable(message: Any) -> str:
    """The text that a message is found by, from its JSON."""
    texts: list[str] = []
    for content in message.get("contents", ()):
        match content.get("type"):
            case "text" | "reasoning":
                texts.append(content["text"])
            case "function-call":
                texts += (content["name"], _plain(content.get("arguments")))
            case "function-result":
                if content.get("name"):
                    texts.append(content["name"])
                texts.append(_plain(content.get("result")))
            case _:
                texts.extend(_strings(content))
    return "\n".join(texts)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(_strings(value))


def _strings(value: Any) -> Iterator[str]:
    """The strings and numbers in JSON, and the names of its fields."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif value is not None:
        yield value if isinstance(value, str) else json.dumps(value)
