"""What an audit trail says of an event: one plain sentence, and why it happened if that was said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clew.domain.events import EVENT_TYPES
from clew.domain.messages import ROLES
from clew.domain.projection import Recorded, Unreadable

LONGEST = 60
"""Characters of a title, a name or a value within a sentence."""

_PLAIN: Mapping[str, str] = {
    "thread-suspended": "suspended the thread",
    "thread-resumed": "resumed the thread",
    "thread-ended": "ended the thread",
    "thread-deleted": "deleted the thread",
}


def what(event: Recorded | Unreadable) -> str:
    """What was done, in a few words that never hold what a message says. Names come quoted, in printable characters."""
    if isinstance(event, Unreadable):
        return f"recorded {_named(event.type)}, which cannot be read: verify says what is wrong with it"
    if event.type == "message-appended" and event.redacted:
        return f"appended {_a(event.role or 'message')}{' message' if event.role else ''} (redacted since)"
    if event.type not in EVENT_TYPES or event.data is None:
        return f"recorded {_named(event.type)}, which this Clew does not know"
    try:
        return _done(event.type, event.data)
    except (LookupError, TypeError, ValueError, AttributeError):  # JSON, but not of this event: the row was changed
        return f"recorded {_named(event.type)}, which cannot be read: verify says what is wrong with it"


def why(event: Recorded | Unreadable) -> str | None:
    """The reason that was given."""
    data = None if isinstance(event, Unreadable) else event.data
    reason = None if data is None else data.get("reason")
    return reason if isinstance(reason, str) else None


def _done(type_: str, data: Mapping[str, Any]) -> str:
    match type_:
        case "thread-started":
            begun = "started the thread" if data.get("source") is None else "imported the thread"
            return begun + _titled(data)
        case "thread-forked":
            return f"forked {_named(data['parent_id'])} at version {data['parent_version']:d}{_titled(data)}"
        case "thread-labelled":
            return _labelled(data["labels"])
        case "message-appended":
            return _appended(data["message"])
        case "message-redacted":
            return f"redacted version {data['version']:d}"
        case "history-rewound":
            return f"rewound to version {data['to']:d}"
        case "checkpoint-made":
            return f"made checkpoint {_named(data['name'])} at version {data['at']:d}"
        case _:
            return _PLAIN[type_]


def _appended(message: Mapping[str, Any]) -> str:
    contents = message["contents"]
    length = sum(len(content["text"]) for content in contents if content["type"] == "text")
    held = [_count(length, "character")] if length else []
    for type_, word in (("function-call", "call"), ("function-result", "result")):
        if number := sum(content["type"] == type_ for content in contents):
            held.append(_count(number, word))
    if others := sum(content["type"] not in {"text", "function-call", "function-result"} for content in contents):
        held.append(_count(others, "other content"))
    role = ROLES[ROLES.index(message["role"])]  # any other was put there by somebody else
    return f"appended {_a(role)} message ({', '.join(held) or 'empty'})"


def _labelled(labels: Mapping[str, Any]) -> str:
    given = [f"{_named(name)} to {_short(json.dumps(value))}" for name, value in labels.items() if value is not None]
    gone = [_named(name) for name, value in labels.items() if value is None]
    said = [f"set label {', '.join(given)}"] if given else []
    said += [f"removed label {', '.join(gone)}"] if gone else []
    return " and ".join(said) or "set no label"


def _titled(data: Mapping[str, Any]) -> str:
    title = data.get("title")
    return "" if title is None else f" {_named(title)}"


def _named(text: str) -> str:
    return repr(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" and word != "user" else f"a {word}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
