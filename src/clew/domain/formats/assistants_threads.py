"""Threads of OpenAI's Assistants, as the API lists their messages.

A list is a page of ``GET /threads/{id}/messages``, or the messages of several pages in one JSON array, newest or oldest
first. Calls and their results are not among them: they belong to the steps of runs.
"""

from __future__ import annotations

from typing import Any

from clew.domain.formats.conversation_import import microseconds
from clew.domain.formats.transcripts import Entry, Node, Transcript, message, text_or_none
from clew.domain.json_values import JsonObject, canonical, check_json
from clew.domain.models.assistants_answers import parts_of, thread_messages
from clew.domain.streams import digest

FORMAT = "openai-assistants"

_READ = frozenset({"content", "created_at", "object", "role", "thread_id"})


def is_assistants(value: object) -> bool:
    """Whether parsed JSON is a page of messages, or an array of messages."""
    messages = value.get("data") if isinstance(value, dict) else value
    return isinstance(messages, list) and bool(messages) and all(_is_message(each) for each in messages)


def read_assistants(value: Any) -> Transcript:
    """The conversation, oldest message first. Raises InvalidContentError for JSON that cannot be stored."""
    check_json(value, "the thread")
    listed: list[JsonObject] = value["data"] if isinstance(value, dict) else value
    times = [microseconds(each.get("created_at")) or 0 for each in listed]
    if times[0] > times[-1]:
        listed, times = listed[::-1], times[::-1]
    entries = [_entry(each) for each in listed]
    id_ = text_or_none(listed[0].get("thread_id")) or digest(canonical(value).encode()).hex()
    nodes = {
        str(number): Node(str(number), str(number - 1) if number else None, (entry,))
        for number, entry in enumerate(entries)
    }
    return Transcript(FORMAT, id_, None, {}, nodes)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and value.get("object") == "thread.message" and "role" in value


def _entry(listed: JsonObject) -> Entry:
    rest = {name: each for name, each in listed.items() if name not in _READ and each not in (None, {}, [])}
    texts = [part.get("text") for part in parts_of(listed)]
    if notes := [text["annotations"] for text in texts if isinstance(text, dict) and text.get("annotations")]:
        rest["annotations"] = notes
    (read,) = thread_messages([listed])
    return message(
        read.model_copy(update={"source": {FORMAT: rest} if rest else {}}), microseconds(listed.get("created_at"))
    )
