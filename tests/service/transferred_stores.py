"""Stores to export and import: a small one with every kind of event, and forged files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from eventsourcing.persistence import StoredEvent

from clew.conversations import Conversations
from clew.domain.formats.clew_jsonl import End, Entry, Header, write_line
from clew.domain.formats.event_import import EventsReport
from clew.domain.messages import Message
from clew.domain.ports import Fork, Row
from clew.domain.streams import ROOT, digest, is_thread, link
from clew.infrastructure.recorder_ports import Append

CANARY = "four-nine-two"


def fill(store: Conversations) -> None:
    """Add forks, rewinds, redactions (one of an inherited message), a deletion, labels and unreadable events."""
    root = store.start_thread("Größe\u2028\x1b[31m", thread_id="root/ä", actor="user:1", labels={"a": 1})
    root.append([Message.user("One"), Message.assistant("Two"), Message.user(CANARY)], idempotency_key="k")
    root.checkpoint("here")
    branch = root.fork(title="Branch", thread_id="branch")
    branch.append([Message.user("Three"), Message.assistant(CANARY)])
    branch.redact(8, reason="private", actor="user:2")
    other = store.start_thread(thread_id="other", messages=[Message.user("Hello")])
    branch.redact(4)
    branch.rewind(2)
    leaf = branch.fork(at=7, thread_id="leaf")
    leaf.label(topic="refund")
    leaf.delete(reason="over")
    root.append(Message.user("Four"))
    unknown(store, "other", "run-paused", b'\0sixteen bytes...{"i":"x","t":7,"n":1,"d":{}}')
    unknown(store, "other", "message-appended", b"\1key\xff\xfe")
    other.append(Message.user("Five"))
    store.start_thread(thread_id="last")


def unknown(store: Conversations, thread_id: str, type_: str, state: bytes) -> None:
    """Append an event as another version of Clew would."""
    stream, version = store._core.stream(thread_id), store.thread(thread_id).version + 1
    recorder = store._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
    recorder.submit(Append([StoredEvent(stream, version, type_, state)])).result()


def store_unchecked(store: Conversations, entries: Sequence[Entry]) -> None:
    """Append events with correct hashes without any other check, as an older Clew imported them."""
    events = [StoredEvent(row.stream, row.version, row.type, row.state) for row, _ in entries]
    forks = {row.stream: fork for row, fork in entries if fork is not None}
    recorder = store._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
    recorder.submit(Append(events, forks=forks)).result()


def import_lines(store: Conversations, lines: Iterable[bytes], **more: Any) -> EventsReport:
    """Import lines."""
    return store.import_events(io.BytesIO(b"".join(lines)), **more)


def heads(store: Conversations) -> dict[str, str]:
    """The hash of every thread's newest event."""
    return {summary.id: summary.head for summary in store.threads()}


def state(*, t: int = 1, n: int = 0, r: str | None = None, **data: Any) -> bytes:
    """Return the stored bytes of an event with these data.

    It was recorded at ``t`` in the run ``r``, with ``n`` messages on the path.
    """
    run = {} if r is None else {"r": r}
    return bytes(17) + json.dumps({"i": "e", "t": t, "n": n, **run, "d": data}).encode()


STUB = b'\2{"i":"e","t":1,"n":1,"o":"user"}'
STARTED = state(title="T")
HELLO = {"role": "user", "contents": [{"type": "text", "text": "Hello"}]}
STORED_MESSAGE = state(n=1, message=HELLO)
"""The first message of a thread."""


def redaction(version: int, shredded_digest: bytes = STORED_MESSAGE, stub: str = STUB.decode(), *, n: int = 1) -> bytes:
    """Return the stored bytes of the event that records a redaction."""
    return state(n=n, version=version, digest=digest(shredded_digest).hex(), stub=stub)


ForgedRow = tuple[str, bytes] | tuple[str, bytes, bytes | None]


def forged(*rows: ForgedRow, name: str = "default/thread/f", after: Sequence[Entry] = (), cut: int = 0) -> list[Entry]:
    """Return entries of one stream with correct hashes; a row is a type, bytes and an optional digest.

    With ``cut`` the stream is a fork of the stream ``after``, at that version.
    """
    entries: list[Entry] = []
    previous = after[cut - 1].row.hash if cut else ROOT
    for version, (type_, stored, *shredded_digest) in enumerate(rows, start=cut + 1):
        shredded = shredded_digest[0] if shredded_digest else None
        previous = link(previous, name, version, type_, shredded or digest(stored))
        fork = Fork(after[0].row.stream, cut) if cut and not entries else None
        entries.append(Entry(Row(0, name, version, type_, stored, previous, shredded), fork))
    return entries


def file_of(*entries: Entry) -> list[bytes]:
    """Return the lines of a complete file with these entries."""
    end = End(sum(entry.begins and is_thread(entry.row.stream) for entry in entries), len(entries))
    return [write_line(Header()), *map(write_line, entries), write_line(end)]


def poison(store: Conversations, time: int) -> None:
    """Store a thread and a scope with events of this time and with others."""
    store.start_thread("Mine", thread_id="mine", messages=[Message.user("Hello from me")])
    store.memory("user/1").remember("Likes coffee")
    rows = (("thread-started", state(t=time, title="T")), ("message-appended", state(t=time, n=1, message=HELLO)))
    store_unchecked(store, forged(*rows))
    facts = [
        ("scope-opened", state(t=time, holds="facts")),
        (
            "fact-remembered",
            state(t=time, fact="f1", statement={"text": "Likes tea", "key": "tea", "valid_from": time}),
        ),
        ("fact-remembered", state(t=time, fact="f2", statement={"text": "Old", "valid_to": time})),
        ("fact-retracted", state(t=time, fact="f2", valid_to=time)),
    ]
    store_unchecked(store, forged(*facts, name="default/memory/user%2F2"))
