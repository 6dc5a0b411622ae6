"""What an audit entry says of an event: one plain sentence, and the reason if one was given."""

from __future__ import annotations

from clew.domain.event_sentences import with_article
from clew.domain.event_types import quoted
from clew.domain.events import EVENT_TYPES, MESSAGE_APPENDED
from clew.domain.projection import Recorded, Unreadable


def what(event: Recorded | Unreadable) -> str:
    """What was done, in a few words that never hold what a message says. Names come quoted, in printable characters."""
    if isinstance(event, Unreadable):
        return _unreadable(event.type)
    if event.type == MESSAGE_APPENDED and event.redacted:
        return f"appended {with_article(event.role or 'message')}{' message' if event.role else ''} (redacted since)"
    declared = EVENT_TYPES.get(event.type)
    if declared is None or event.data is None:
        return f"recorded {quoted(event.type)}, which this Clew does not know"
    try:
        return declared.describe(event.data)
    except (LookupError, TypeError, ValueError, AttributeError):  # JSON, but not of this event: the row was changed
        return _unreadable(event.type)


def why(event: Recorded | Unreadable) -> str | None:
    """The reason that was given."""
    data = None if isinstance(event, Unreadable) else event.data
    reason = None if data is None else data.get("reason")
    return reason if isinstance(reason, str) else None


def _unreadable(type_: str) -> str:
    return f"recorded {quoted(type_)}, which cannot be read: verify says what is wrong with it"
