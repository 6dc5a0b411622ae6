"""The shapes of the JSON that commands write: stable, and documented in docs/cli.md."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from clew.cli.text import json_time
from clew.domain.events import Event, Opaque, Shredded

if TYPE_CHECKING:
    from clew.domain.history import History, HistoryMessage
    from clew.domain.importing import ImportReport
    from clew.domain.ports import Verdict
    from clew.service.reading import ThreadSummary


def thread(summary: ThreadSummary) -> dict[str, Any]:
    """A thread in a list."""
    return {
        "thread_id": summary.thread_id,
        "title": summary.title,
        "status": summary.status,
        "version": summary.version,
        "messages": summary.messages,
        "parent_id": summary.parent_id,
        "forked_at": summary.forked_at,
        "head": summary.head,
        "created_at": json_time(summary.created_at),
        "updated_at": json_time(summary.updated_at),
        "metadata": summary.metadata,
    }


def history(found: History) -> dict[str, Any]:
    """A thread's messages at a version."""
    return {
        "thread_id": found.thread_id,
        "version": found.version,
        "messages": [_message(said) for said in found],
    }


def event(found: Event) -> dict[str, Any]:
    """An event in its envelope, under the thread that it is recorded in: for an inherited one, the ancestor."""
    return {
        "thread_id": found.thread_id,
        "version": found.version,
        "position": found.position,
        "type": found.type,
        "time": json_time(found.time),
        "actor": found.actor,
        "event_id": found.event_id,
        "data": _data(found),
        "hash": None if found.hash is None else found.hash.hex(),
    }


def report(found: ImportReport) -> dict[str, Any]:
    """What an import did."""
    return {**found._asdict(), "failed": [failure._asdict() for failure in found.failed]}


def verdict(found: Verdict) -> dict[str, Any]:
    """What verification found."""
    bad = found.first_bad
    return {
        "ok": bad is None,
        "threads": found.threads,
        "events": found.events,
        "first_bad": None if bad is None else bad._asdict(),
    }


def _message(said: HistoryMessage) -> dict[str, Any]:
    return {
        "version": said.version,
        "role": said.role,
        "author": said.author,
        "contents": [content.model_dump() for content in said.contents],
        "redacted": said.redacted,
    }


def _data(found: Event) -> dict[str, Any] | None:
    match found.data:
        case Shredded():
            return None
        case Opaque(state=state):
            return {"opaque": b64encode(state).decode("ascii")}
        case data:
            return data.model_dump()
