"""Events with correct hashes that make no sense: refused by imports and restores, named by verification."""

from __future__ import annotations

import copy
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.service.transferred_stores import (
    HELLO,
    STARTED,
    STORED_MESSAGE,
    STUB,
    ForgedRow,
    file_of,
    forged,
    import_lines,
    redaction,
    state,
    store_unchecked,
)

from clew.conversations import Conversations
from clew.domain.errors import ImportFormatError, ThreadDocumentError
from clew.domain.formats.clew_jsonl import Entry
from clew.domain.messages import Message
from clew.domain.ports import IntegrityFault
from clew.domain.streams import ROOT, digest, link
from clew.service import event_import

START: ForgedRow = ("thread-started", STARTED)
FIRST: ForgedRow = ("message-appended", STORED_MESSAGE)
SECOND: ForgedRow = ("message-appended", state(n=2, message=HELLO))
ENDED: ForgedRow = ("thread-ended", state(n=1))
AGENT: dict[str, Any] = {"agent": {"id": "joker"}, "fingerprint": {"client": "chat"}}
RUN: ForgedRow = ("run-started", state(r="run-1", **AGENT))
CALL: dict[str, Any] = {"definitions": 2, "client": "chat", "wire": "openai-chat", "model": "m", "digest": "ab" * 32}
CALLED: ForgedRow = ("model-called", state(r="run-1", **CALL))

THREADS: dict[str, tuple[list[ForgedRow], str]] = {
    "a rewind to version 99": (
        [START, FIRST, ("history-rewound", state(n=1, to=99))],
        "it names version 99, but only versions 1 to 2 are before it",
    ),
    "a rewind to itself": ([START, FIRST, ("history-rewound", state(n=1, to=3))], "it names version 3, but only"),
    "a rewind to -1": ([START, FIRST, ("history-rewound", state(to=-1))], "it names version -1, but only"),
    "a rewind to 0": ([START, FIRST, ("history-rewound", state(to=0))], "it names version 0, but only"),
    "a rewind that counts the abandoned messages": (
        [START, FIRST, ("history-rewound", state(n=1, to=1))],
        "it counts 1 messages on the path, but there are 0",
    ),
    "a message after the end": (
        [START, FIRST, ENDED, SECOND],
        "the thread is ended, and accepts no 'message-appended'",
    ),
    "a message after a deletion": (
        [START, ("thread-deleted", state()), FIRST],
        "the thread is deleted, and accepts no 'message-appended'",
    ),
    "a message in a suspended thread": (
        [START, ("thread-suspended", state()), FIRST],
        "the thread is suspended, and accepts no 'message-appended'",
    ),
    "a label after a deletion": (
        [START, ("thread-deleted", state()), ("thread-labelled", state(labels={"a": 1}))],
        "the thread is deleted, and accepts no 'thread-labelled'",
    ),
    "an end after the end": ([START, FIRST, ENDED, ENDED], "the thread is ended, and accepts no 'thread-ended'"),
    "no start": ([FIRST], "the first event must be 'thread-started', but it is 'message-appended'"),
    "an unknown start": ([("thread-dreamt", state())], "the first event must be 'thread-started', but it is"),
    "two starts": ([START, START], "'thread-started' begins a thread, but it is not the first event"),
    "a checkpoint twice": (
        [START, ("checkpoint-made", state(name="a", at=1)), ("checkpoint-made", state(name="a", at=2))],
        "it makes a checkpoint of a name that version 1 already has",
    ),
    "a checkpoint of version 99": (
        [START, ("checkpoint-made", state(name="a", at=99))],
        "it names version 99, but only versions 1 to 1 are before it",
    ),
    "a checkpoint of itself": ([START, ("checkpoint-made", state(name="a", at=2))], "it names version 2, but only"),
    "a count of a million": (
        [START, ("message-appended", state(n=1_000_000, message=HELLO))],
        "it counts 1000000 messages on the path, but there are 1",
    ),
    "a negative count": (
        [START, ("message-appended", state(n=-5, message=HELLO))],
        "it counts -5 messages on the path",
    ),
    "a message that is not counted": ([START, FIRST, ("message-appended", STORED_MESSAGE)], "it counts 1 messages"),
    "an unknown event with a count of a million": (
        [START, ("thread-dreamt", state(n=1_000_000))],
        "it counts 1000000 messages, but has version 2",
    ),
    "the year 11476": (
        [START, ("message-appended", state(t=300_000_000_000_000_000, n=1, message=HELLO))],
        "its time is 300000000000000000 microseconds after 1970, but the last one that exists is the end of 9999",
    ),
    "a year before Christ": (
        [("thread-started", state(t=-(10**17)))],
        "its time is 100000000000000000 microseconds before 1970, but no event is older",
    ),
    "an unknown event in the year 11476": ([START, ("thread-dreamt", state(t=10**18))], "the end of 9999"),
    "a time before the event before it": (
        [("thread-started", state(t=7)), ("message-appended", state(t=5, n=1, message=HELLO))],
        "it was recorded 2 microseconds before the event that it follows",
    ),
    "an event of a memory scope": (
        [START, ("fact-retracted", state(fact="f1"))],
        "'fact-retracted' is an event of 'memory' streams, and this is a 'thread' stream",
    ),
    "two runs at once": (
        [START, RUN, ("run-started", state(r="run-2", **AGENT))],
        "'run-started' is a step of the run 'run-2', but the open run is 'run-1', which does not allow this step now",
    ),
    "a run without a name": (
        [START, ("run-started", state(**AGENT))],
        "is a step of a run, but the event names no run",
    ),
    "a step without a run": ([START, ("run-completed", state(r="run-1"))], "of the run 'run-1', but no run is open"),
    "an answer without a call": (
        [START, RUN, ("model-answered", state(r="run-1", call=2, message=2, ms=1))],
        "'model-answered' is a step of the run 'run-1', but the open run is 'run-1', which does not",
    ),
    "an answer at a later version": (
        [START, RUN, CALLED, ("model-answered", state(r="run-1", call=3, message=9, ms=1))],
        "'message' is version 9, but only versions 1 to 3 are before it",
    ),
    "an approval that nobody requested": (
        [START, RUN, ("approval-given", state(r="run-1", request=2, approved=True))],
        "'approval-given' is a step of the run 'run-1', but",
    ),
    "a record without a type": (
        [START, ("record-appended", state(type=""))],
        "its record's type has 0 characters, but it must have 1 to 200",
    ),
    "a record with a long type": (
        [START, ("record-appended", state(type="x" * 5_000))],
        "its record's type has 5000 characters, but",
    ),
    "a record with control characters in its type": (
        [START, ("record-appended", state(type="a\x1b[2J"))],
        "its record's type has a control character",
    ),
    "a record with an empty key": (
        [START, ("record-appended", state(type="step", key=""))],
        "its record's key has 0 characters, but it must have 1 to 1000",
    ),
    "a message of a run that is not open": (
        [START, ("message-appended", state(r="run-1", n=1, message=HELLO))],
        "it belongs to the run 'run-1', which is not open",
    ),
}

STATEMENT = {"text": "Likes tea"}
OPEN: ForgedRow = ("scope-opened", state(holds="facts"))
FACT: ForgedRow = ("fact-remembered", state(fact="f1", statement=STATEMENT))
DOCUMENTS: ForgedRow = ("scope-opened", state(holds="documents"))
DOCUMENT: ForgedRow = ("document-added", state(document="d1", text="Hours", namespaces=["a"]))

SCOPES: dict[str, tuple[list[ForgedRow], str]] = {
    "no opening": ([FACT], "the first event of a scope, and no other, must be 'scope-opened'"),
    "two openings": ([OPEN, OPEN], "the first event of a scope, and no other, must be 'scope-opened'"),
    "a retraction of an unknown fact": ([OPEN, ("fact-retracted", state(fact="f1"))], "the scope has no fact 'f1'"),
    "a replacement of an unknown fact": (
        [OPEN, ("fact-superseded", state(fact="f1", by="f2", statement=STATEMENT))],
        "the scope has no fact 'f1'",
    ),
    "a replacement by a known fact": (
        [OPEN, FACT, ("fact-superseded", state(fact="f1", by="f1", statement=STATEMENT))],
        "the scope has a fact 'f1' already",
    ),
    "a fact twice": ([OPEN, FACT, FACT], "the scope has a fact 'f1' already"),
    "a document in a scope of facts": (
        [OPEN, DOCUMENT],
        "'document-added' is about documents, but the scope holds facts",
    ),
    "a fact among documents": ([DOCUMENTS, FACT], "'fact-remembered' is about facts, but the scope holds documents"),
    "a document twice": ([DOCUMENTS, DOCUMENT, DOCUMENT], "it adds the document 'd1', which the scope has already"),
    "a removal of an unknown document": (
        [DOCUMENTS, ("document-removed", state(document="d1"))],
        "the scope has no document 'd1'",
    ),
    "a removal of a removed document": (
        [DOCUMENTS, DOCUMENT, *[("document-removed", state(document="d1"))] * 2],
        "the scope has no document 'd1'",
    ),
    "a replacement of an unknown document": (
        [DOCUMENTS, ("document-added", state(document="d2", text="", namespaces=["a"], replaces="d1"))],
        "the scope has no document 'd1'",
    ),
    "a fact that is never true": (
        [OPEN, ("fact-remembered", state(fact="f1", statement={**STATEMENT, "valid_from": 9, "valid_to": 9}))],
        "its fact is true until 9, which is not after 9, when it begins",
    ),
    "a fact from the year 11476": (
        [OPEN, ("fact-remembered", state(fact="f1", statement={**STATEMENT, "valid_from": 3 * 10**17}))],
        "its fact begins or ends 300000000000000000 microseconds after 1970",
    ),
    "a fact until the year 11476": (
        [OPEN, FACT, ("fact-retracted", state(fact="f1", valid_to=3 * 10**17))],
        "its fact begins or ends 300000000000000000 microseconds after 1970",
    ),
    "a time before the event before it": (
        [OPEN, ("fact-remembered", state(t=0, fact="f1", statement=STATEMENT))],
        "1 micro",
    ),
    "the year 11476": ([("scope-opened", state(t=3 * 10**17, holds="facts"))], "the end of 9999"),
    "an event of a thread": (
        [OPEN, FIRST],
        "'message-appended' is an event of 'thread' streams, and this is a 'memory'",
    ),
}

CASES = [("default/thread/f", *case) for case in THREADS.values()]
CASES += [("default/memory/f", *case) for case in SCOPES.values()]
IDS = [f"thread: {name}" for name in THREADS] + [f"scope: {name}" for name in SCOPES]
each_case = pytest.mark.parametrize(("name", "rows", "reason"), CASES, ids=IDS)


@pytest.fixture
def store() -> Iterator[Conversations]:
    with Conversations.open("memory:") as opened:
        yield opened


def sound(name: str = "default/thread/sound") -> list[Entry]:
    """Return a thread that makes sense."""
    return forged(START, FIRST, name=name)


@each_case
def test_an_import_refuses_the_stream_and_names_the_line(
    store: Conversations, name: str, rows: list[ForgedRow], reason: str
) -> None:
    others = sound(), sound("default/thread/later")
    result = import_lines(store, file_of(*others[0], *forged(*rows, name=name), *others[1]))
    ((line, error),) = result.failed
    assert line == 1 + 2 + len(rows)
    assert isinstance(error, ImportFormatError)
    assert reason in str(error)
    assert f"version {len(rows)}: " in str(error)
    assert (result.threads, result.events, result.torn) == (2, 4, False)
    assert store._core.log.stream(name) is None
    assert [each.id for each in store.threads()] == ["sound", "later"]
    assert store.verify().first_bad is None


@each_case
def test_verification_names_a_stored_event_that_makes_no_sense(
    store: Conversations, name: str, rows: list[ForgedRow], reason: str
) -> None:
    store_unchecked(store, [*sound(), *forged(*rows, name=name)])
    fault = store.verify().first_bad
    assert fault is not None
    assert (fault.thread_id, fault.version, fault.kind) == (
        "f" if "thread" in name else "memory/f",
        len(rows),
        "senseless",
    )
    assert reason in fault.reason
    assert store.verify("sound").first_bad is None
    for summary in store.threads():  # everything can be read
        list(store.thread(summary.id).events())
    assert list(store.audit())
    list(store.tree())
    store.search("hello")
    list(store.export_events())


@pytest.mark.parametrize("name", THREADS)
def test_a_restore_refuses_the_document_and_names_the_event(store: Conversations, name: str) -> None:
    rows, reason = THREADS[name]
    with Conversations.open("memory:") as source:
        source.start_thread(thread_id="f", messages=[Message.user("Hello")])
        document: Any = copy.deepcopy(source.thread("f").serialize())
    (stream,) = document["streams"]
    previous = ROOT
    written: list[dict[str, Any]] = []
    for version, (type_, stored, *_) in enumerate(rows, 1):
        previous = link(previous, stream["name"], version, type_, digest(stored))
        written.append({"version": version, "type": type_, "state": b64encode(stored).decode(), "hash": previous.hex()})
    stream["rows"] = written
    with pytest.raises(ThreadDocumentError) as caught:
        store.restore_thread(document)
    assert f"streams[0].rows[{len(rows) - 1}]: " in str(caught.value)
    assert reason in str(caught.value)
    assert list(store.threads()) == []
    assert b64decode(written[0]["state"]) == rows[0][1]


def test_an_active_thread_that_an_older_clew_resumed_makes_sense(store: Conversations) -> None:
    assert import_lines(store, file_of(*forged(START, ("thread-resumed", state()), FIRST))).failed == []
    assert store.verify().first_bad is None


def test_nothing_of_the_thread_is_imported_and_its_forks_are_refused(store: Conversations) -> None:
    root = forged(START, FIRST, SECOND, ENDED)  # the end does not count the second message
    first = state(n=1, parent_id="f", parent_version=2, parent_hash=root[1].row.hash.hex())
    fork = forged(("thread-forked", first), name="default/thread/g", after=root, cut=2)
    result = import_lines(store, file_of(*root[:2], *fork, *root[2:], *sound()))
    assert [line for line, _ in result.failed] == [4, 6]
    assert "it is a fork of a thread that was refused" in str(result.failed[0].error)
    assert "it counts 1 messages on the path, but there are 2" in str(result.failed[1].error)
    assert [each.id for each in store.threads()] == ["sound"]
    assert import_lines(store, file_of(*root[:3])).events == 3
    assert import_lines(store, file_of(*root[:3], *fork)).events == 1


def test_a_redacted_message_of_a_refused_thread_is_not_waited_for(store: Conversations) -> None:
    shredded = ("message-appended", STUB, digest(STORED_MESSAGE))
    rows = forged(START, shredded, SECOND, ENDED, ("message-redacted", redaction(2)))
    result = import_lines(store, file_of(*rows, *sound()))
    assert [line for line, _ in result.failed] == [5]
    assert (result.events, result.torn) == (2, False)
    assert store.verify().first_bad is None


def test_a_redaction_of_a_stored_message_is_not_made_by_a_refused_thread(store: Conversations) -> None:
    rows = forged(START, FIRST, ("message-redacted", redaction(2)), ("history-rewound", state(n=1, to=99)))
    import_lines(store, file_of(*rows[:2]))
    assert import_lines(store, file_of(*rows)).events == 0
    assert [each.text for each in store.thread("f").history()] == ["Hello"]
    assert store.verify().first_bad is None


@pytest.mark.parametrize("commit", [1, 2, 3, 500])
def test_what_an_earlier_commit_stored_makes_sense_and_can_be_continued(
    store: Conversations, commit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_import, "MOST_EVENTS", commit)
    rows = forged(START, FIRST, SECOND, ("history-rewound", state(n=9, to=2)))
    facts = forged(OPEN, FACT, ("fact-retracted", state(fact="f2")), name="default/memory/user")
    result = import_lines(store, file_of(*rows, *facts, *sound()))
    assert [line for line, _ in result.failed] == [5, 8]
    assert result.events == {1: 3 + 2 + 2, 2: 2 + 2 + 2, 3: 3 + 2 + 2, 500: 2}[commit]
    assert store.verify().first_bad is None
    if commit < 500:
        store.thread("f").append(Message.user("More"))
        assert store.verify().first_bad is None


def test_an_import_continues_stored_streams_by_their_state(store: Conversations) -> None:
    rows = forged(START, FIRST, ("checkpoint-made", state(n=1, name="a", at=1)), SECOND)
    facts = forged(OPEN, FACT, ("fact-retracted", state(fact="f1")), name="default/memory/user")
    import_lines(store, file_of(*rows[:3], *facts[:2]))
    assert import_lines(store, file_of(*rows, *facts)).failed == []
    again = forged(START, FIRST, ("checkpoint-made", state(n=1, name="a", at=1)), SECOND, ENDED)
    ((line, _),) = import_lines(store, file_of(*again)).failed
    assert line == 6
    assert store.verify().first_bad is None


def test_a_changed_event_is_named_before_one_that_makes_no_sense(tmp_path: Path) -> None:
    with Conversations.open(tmp_path / "clew.db") as store:
        store_unchecked(store, forged(START, START, name="default/thread/a"))
        store.start_thread(thread_id="b", messages=[Message.user("Hello")])
        assert store.verify().first_bad == IntegrityFault(
            "a", 2, "'thread-started' begins a thread, but it is not the first event", "senseless"
        )
    with closing(sqlite3.connect(tmp_path / "clew.db")) as file, file:
        file.execute("UPDATE event SET state = state || x'20' WHERE version = 2 AND position = 4")
    with Conversations.open(tmp_path / "clew.db") as store:
        fault = store.verify().first_bad
        assert fault is not None
        assert (fault.thread_id, fault.version, fault.kind) == ("b", 2, "changed")


def test_a_fork_is_checked_from_the_state_at_its_cut(store: Conversations) -> None:
    thread = store.start_thread(thread_id="root", messages=[Message.user("Hello")] * 130)
    thread.checkpoint("here")
    fork = thread.fork(at=131, thread_id="fork")
    fork.append([Message.user("More")] * 130)
    fork.rewind(5)
    fork.fork().append(Message.user("There"))
    assert store.verify().first_bad is None
    with Conversations.open("memory:") as copied:
        assert import_lines(copied, store.export_events()).failed == []
        assert copied.verify().first_bad is None
        copied.restore_thread(fork.serialize())
