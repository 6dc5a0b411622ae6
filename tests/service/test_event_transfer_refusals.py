"""Files that no export wrote: refused at the line that is wrong, what is before stays, and the copy verifies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.service.moving_stores import (
    SAID,
    STARTED,
    STUB,
    Written,
    copied,
    file_of,
    fill,
    forged,
    heads,
    redaction,
    state,
)

from clew.conversations import Conversations
from clew.domain.errors import ClewError, ImportFormatError
from clew.domain.formats.clew_jsonl import write_line
from clew.domain.messages import Message
from clew.domain.ports import Blob, Fork
from clew.domain.streams import digest
from clew.infrastructure import event_files
from clew.service import event_transfer

GONE = digest(SAID)
OTHER = STUB.decode().replace("user", "tool")
WIDE = STUB.decode().replace("e", "\u0101", 1)
"""A stub is bytes, as text of one character each: this is none."""


@pytest.fixture
def copy() -> Iterator[Conversations]:
    with Conversations.open("memory:") as store:
        yield store


def changed(line: bytes, **more: Any) -> bytes:
    """An event's line with other fields, or with None without them."""
    fields = {**json.loads(line)["event"], **more}
    return json.dumps({"event": {key: value for key, value in fields.items() if value is not None}}).encode() + b"\n"


def refused(copy: Conversations, lines: list[bytes], line: int, events: int) -> ClewError:
    """The error with which a file is refused at a line, after so many events."""
    found = copied(copy, lines)
    ((number, error),) = found.failed
    assert (number, found.events, found.torn) == (line, events, False)
    assert copy.verify().first_bad is None
    assert copy.verify().events == events
    return error


BLOB = write_line(Blob(digest(b"Be kind."), "definition", b"Be kind."))

DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "half a line": (lambda line: line[:-3] + b"\n", "not valid JSON"),
    "no UTF-8": (lambda line: line.replace(b"o", b"\xff", 1), "not UTF-8"),
    "another text": (lambda line: line.replace(b"Hello", b"Hallo"), "its hash does not match"),
    "another salt": (lambda line: changed(line, salt="A" * 22 + "=="), "its hash does not match"),
    "no base64": (lambda line: changed(line, salt="?"), "'salt' is not base64"),
    "another hash": (lambda line: changed(line, hash="0" * 64), "its hash does not match"),
    "another type": (lambda line: changed(line, type="thread-ended"), "its hash does not match"),
    "a later version": (lambda line: changed(line, version=4), "it follows version 3 of 'default/thread/t', which is"),
    "an earlier version": (lambda line: changed(line, version=1), "its hash does not match"),
    "version 0": (lambda line: changed(line, version=0), "nor in the store"),
    "another thread": (
        lambda line: changed(line, stream="default/thread/u"),
        "it follows version 1 of 'default/thread/u', which is neither earlier in the file nor in the store",
    ),
    "no thread": (lambda line: changed(line, stream="default/chat/t"), "is not the name of a thread"),
    "a needless escape": (lambda line: changed(line, stream="default/thread/%74"), "is not the name of a thread"),
    "an empty id": (lambda line: changed(line, stream="default/thread/"), "is not the name of a thread"),
    "a name without parts": (lambda line: changed(line, stream="x"), "is not the name of a thread"),
    "another tenant": (
        lambda line: changed(line, stream="b/thread/t"),
        "has threads of tenant 'b', but the store is open for 'default'",
    ),
    "a fork": (lambda line: changed(line, parent="default/thread/t", cut=1), "different fork points"),
    "a fork of nothing": (lambda line: changed(line, parent="default/thread/t", cut=0), "after its cut"),
    "a digest": (lambda line: changed(line, digest=digest(SAID).hex()), "its hash does not match"),
    "no line": (lambda _: b"", "it follows version 2 of 'default/thread/t', which is neither"),
    "a kind": (lambda line: b'{"bolt":{}}\n' + line, "'bolt' is not a kind of line that this Clew knows. A newer Clew"),
    "a blob": (lambda line: BLOB + line, "is not named by the event after it"),
    "another blob": (lambda line: BLOB.replace(b"kind.", b"good.") + line, "does not match its digest"),
    "a blob at the end": (
        lambda line: BLOB + b'{"end":{"threads":1,"events":1,"blobs":1}}\n' + line,
        "without the event",
    ),
    "a missing blob": (lambda line: b'{"end":{"threads":1,"events":1,"blobs":1}}\n' + line, "0 were found"),
    "a header": (lambda line: b'{"format":{"name":"clew","version":1}}\n' + line, "A second file begins here"),
    "an end": (lambda line: b'{"end":{"threads":1,"events":1}}\n' + line, "continues after its end"),
    "a wrong end": (lambda line: b'{"end":{"threads":2,"events":1}}\n' + line, "Lines are missing"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_line_is_refused_and_what_is_before_stays(copy: Conversations, name: str) -> None:
    damage, said = DAMAGE[name]
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user("Hello"), Message.user("Again")])
        lines = list(store.export_events())
    line = 4 if name in {"an end", "a blob", "a blob at the end"} else 3
    error = refused(copy, [*lines[:2], damage(lines[2]), *lines[3:]], line, 1)
    assert isinstance(error, ImportFormatError)
    assert said in str(error)
    assert copied(copy, lines).events == 2
    assert list(copy.export_events()) == lines


FORGED: dict[str, tuple[list[Written], int, str]] = {
    "a start that is a message": ([("thread-started", SAID)], 0, "version 1: its bytes are not an event of its type"),
    "no JSON": ([("thread-started", STARTED), ("message-appended", b"\0" * 17 + b"{")], 1, "not an event of its type"),
    "a stub alone": (
        [("thread-started", STARTED), ("message-appended", STUB)],
        1,
        "both a digest and a stub, or neither",
    ),
    "a digest alone": (
        [("thread-started", STARTED), ("message-appended", SAID, GONE)],
        1,
        "both a digest and a stub, or neither",
    ),
    "a bad stub": ([("thread-started", STARTED), ("message-appended", b"\2x", GONE)], 1, "not an event of its type"),
    "a shredded start": ([("thread-started", STUB, GONE)], 0, "events of its type are never shredded"),
    "a fork without a parent": (
        [("thread-forked", state(parent_id="p", parent_version=1, parent_hash=""))],
        0,
        "different fork points",
    ),
    "a fork in the middle": (
        [("thread-started", STARTED), ("thread-forked", b"\1unreadable")],
        1,
        "different fork points",
    ),
    "its own redaction": ([("thread-started", STARTED), ("message-redacted", redaction(2))], 1, "is missing"),
    "a redacted start": ([("thread-started", STARTED), ("message-redacted", redaction(1, STARTED))], 1, "is missing"),
    "a redaction of other text": (
        [("thread-started", STARTED), ("message-appended", SAID), ("message-redacted", redaction(2, STARTED))],
        2,
        "the event that it redacts is missing",
    ),
    "a redaction without a stub": (
        [("thread-started", STARTED), ("message-appended", SAID), ("message-redacted", redaction(2, stub="x"))],
        2,
        "both a digest and a stub, or neither",
    ),
    "a stub of no bytes": (
        [("thread-started", STARTED), ("message-appended", SAID), ("message-redacted", redaction(2, stub=WIDE))],
        2,
        "the stub of the message does not match the event",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_an_event_with_the_right_hash_must_still_be_one(copy: Conversations, name: str) -> None:
    rows, events, said = FORGED[name]
    assert said in str(refused(copy, file_of(*forged(*rows)), len(rows) + 1, events))


RESTS: dict[str, list[Written]] = {
    "nothing": [],
    "a message": [("message-appended", SAID)],
    "a redaction of nothing": [("message-redacted", redaction(3))],
    "another stub": [("message-redacted", redaction(2, stub=OTHER))],
    "what cannot be read": [("message-redacted", b"\1unreadable")],
}


@pytest.mark.parametrize("rest", RESTS)
def test_what_is_shredded_must_have_its_redaction(copy: Conversations, rest: str) -> None:
    entries = forged(("thread-started", STARTED), ("message-appended", STUB, GONE), *RESTS[rest])
    found = copied(copy, file_of(*entries))
    assert found.events == 1
    assert [type(error) for _, error in found.failed] == [ImportFormatError]
    assert copy.verify().first_bad is None


@pytest.mark.parametrize("held", [0, 32 << 20])
@pytest.mark.parametrize("ended", [False, True])
def test_a_redaction_that_is_not_there_is_not_waited_for(
    copy: Conversations,
    held: int,
    ended: bool,  # noqa: FBT001 - the file
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_transfer, "MOST_EVENTS", 2)
    monkeypatch.setattr(event_transfer, "MOST_HELD", held)
    said = [("message-appended", SAID)] * 9
    entries = forged(("thread-started", STARTED), ("message-appended", STUB, GONE), *said)
    lines = file_of(*entries)[: None if ended else -1]
    found = copied(copy, lines)
    assert (found.events, found.torn) == (1, not ended)
    assert ["does not hold the redaction" in str(error) for _, error in found.failed] == [True] * ended
    assert copy.verify().first_bad is None


@pytest.mark.parametrize("there", [0, 2, 3, 4])
def test_a_message_can_be_redacted_twice_only_if_both_say_the_same(copy: Conversations, there: int) -> None:
    rows: list[Written] = [("thread-started", STARTED), ("message-appended", SAID)]
    twice = forged(*rows, ("message-redacted", redaction(2)), ("message-redacted", redaction(2)))
    copied(copy, file_of(*twice[:there]))
    other = forged(*rows, ("message-redacted", redaction(2)), ("message-redacted", redaction(2, stub=OTHER)))
    if there < 4:
        found = copied(copy, file_of(*other))
        assert "the stub of the message does not match the event" in str(found.failed[0].error)
        assert copy.verify().first_bad is None
    assert copied(copy, file_of(*twice)).failed == []
    assert copy.verify().first_bad is None
    assert copy.verify().events == 4


def test_a_fork_must_come_after_what_it_is_a_fork_of(copy: Conversations) -> None:
    root = forged(("thread-started", STARTED), ("message-appended", SAID))
    said = state(parent_id="f", parent_version=2, parent_hash=root[-1].row.hash.hex())
    fork = forged(("thread-forked", said), ("message-appended", SAID), name="default/thread/g", after=root, cut=2)
    assert "nor in the store" in str(refused(copy, file_of(root[0], *fork), 3, 1))
    assert copied(copy, file_of(*root, *fork)).events == 3
    assert heads(copy) == {"f": root[-1].row.hash.hex(), "g": fork[-1].row.hash.hex()}


@pytest.mark.parametrize(
    ("fork", "said"),
    [
        (Fork("default/thread/f", 1), "must begin with the version after its cut"),
        (Fork("default/thread/f", 7), "must begin with the version after its cut"),
        (Fork("default/thread/nobody", 2), "nor in the store"),
        (Fork("b/thread/f", 2), "tenant 'b'"),
        (Fork("default/memory/f", 2), "is not the name of a thread"),
        (None, "nor in the store"),
    ],
    ids=["a cut before", "a cut after", "of nobody", "of another tenant", "of no thread", "of nothing"],
)
def test_a_fork_must_say_what_it_is_a_fork_of(copy: Conversations, fork: Fork | None, said: str) -> None:
    root = forged(("thread-started", STARTED), ("message-appended", SAID))
    first = state(parent_id="f", parent_version=2, parent_hash="")
    (entry,) = forged(("thread-forked", first), name="default/thread/g", after=root, cut=2)
    assert said in str(refused(copy, file_of(*root, entry._replace(fork=fork)), 4, 2))


@pytest.mark.parametrize(("parent", "version"), [("f", 1), ("g", 2), (None, 0)])
def test_a_fork_must_be_of_what_its_event_says(copy: Conversations, parent: str | None, version: int) -> None:
    said = STARTED if parent is None else state(parent_id=parent, parent_version=version, parent_hash="")
    type_ = "thread-started" if parent is None else "thread-forked"
    root = forged(("thread-started", STARTED), ("message-appended", SAID))
    (entry,) = forged((type_, said), name="default/thread/g", after=root, cut=2)
    assert "different fork points" in str(refused(copy, file_of(*root, entry), 4, 2))


def test_what_this_clew_does_not_know_is_imported_as_it_is(copy: Conversations) -> None:
    lines = file_of(
        *forged(
            ("thread-started", STARTED),
            ("run-paused", b""),
            ("message-appended", b"\1key"),
            ("run-paused", b"\2stub of a type to come", GONE),
        )
    )
    found = copied(copy, lines)
    assert found.events == 3  # what is shredded has no redaction here
    assert "not an event of its type" in str(found.failed[0].error)
    assert copy.verify().first_bad is None


def test_a_whole_thread_that_is_missing_is_noticed(copy: Conversations) -> None:
    with Conversations.open("memory:") as store:
        fill(store)
        lines = list(store.export_events())
    left = [line for line in lines if b"default/thread/other" not in line]
    ((number, error),) = copied(copy, left).failed
    assert number == len(left)
    assert "Lines are missing" in str(error)
    assert copy.verify().first_bad is None
    assert copied(copy, lines).failed == []
    assert sorted(heads(copy)) == ["branch", "last", "leaf", "other", "root/ä"]


def test_a_line_that_no_event_makes_is_refused(copy: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "LONGEST_LINE", 1_000)
    (entry,) = forged(("thread-started", state(title="x" * 2_000)))
    assert "longer than any event" in str(refused(copy, file_of(entry), 2, 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "It is not in Clew's own JSONL"),
        (b'{"messages":[]}\n', "It is not in Clew's own JSONL"),
        (b'{"format":{"name":"cl', "It is not in Clew's own JSONL"),
        (b'{"format":{"name":"clew","version":2}}\n', "A newer Clew wrote the file"),
    ],
)
def test_what_is_no_such_file_is_an_error(copy: Conversations, text: bytes, said: str, tmp_path: Any) -> None:
    with pytest.raises(ImportFormatError, match=said):
        copied(copy, [text])
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ImportFormatError, match=said):
        copy.import_events(tmp_path / "file")


def test_a_path_that_cannot_be_read_is_an_error(copy: Conversations, tmp_path: Any) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ImportFormatError, match="cannot be read"):
            copy.import_events(path)


def test_a_line_that_is_there_twice_is_refused(copy: Conversations) -> None:
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user("Hello")])
        lines = list(store.export_events())
    error = refused(copy, [*lines[:3], lines[2], *lines[3:]], 4, 2)
    assert "it occurs twice in the file" in str(error)
    assert copied(copy, lines).events == 0
