"""Forged files are refused at the wrong line; earlier events are imported and the copy verifies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.service.transferred_stores import (
    HELLO,
    STARTED,
    STORED_MESSAGE,
    STUB,
    ForgedRow,
    file_of,
    fill,
    forged,
    heads,
    import_lines,
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
from clew.service import event_import

SHREDDED = digest(STORED_MESSAGE)
OTHER = STUB.decode().replace("user", "tool")
WIDE = STUB.decode().replace("e", "\u0101", 1)
"""An invalid stub: a stub is text in which each character stands for one byte."""


@pytest.fixture
def copy() -> Iterator[Conversations]:
    with Conversations.open("memory:") as store:
        yield store


def changed(line: bytes, **more: Any) -> bytes:
    """Change fields in the line of an event; None removes a field."""
    fields = {**json.loads(line)["event"], **more}
    return json.dumps({"event": {key: value for key, value in fields.items() if value is not None}}).encode() + b"\n"


def refused(copy: Conversations, lines: list[bytes], line: int, events: int) -> ClewError:
    """Return the error that refuses the file at this line, after this number of events."""
    result = import_lines(copy, lines)
    ((number, error),) = result.failed
    assert (number, result.events, result.torn) == (line, events, False)
    assert copy.verify().first_bad is None
    assert copy.verify().events == events
    return error


BLOB = write_line(Blob(digest(b"Be kind."), "definition", b"Be kind."))

DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "half a line": (lambda line: line[:-3] + b"\n", "not valid JSON"),
    "not UTF-8": (lambda line: line.replace(b"o", b"\xff", 1), "not UTF-8"),
    "another text": (lambda line: line.replace(b"Hello", b"Hallo"), "its hash does not match"),
    "another salt": (lambda line: changed(line, salt="A" * 22 + "=="), "its hash does not match"),
    "not base64": (lambda line: changed(line, salt="?"), "'salt' is not base64"),
    "another hash": (lambda line: changed(line, hash="0" * 64), "its hash does not match"),
    "another type": (lambda line: changed(line, type="thread-ended"), "its hash does not match"),
    "a later version": (lambda line: changed(line, version=4), "it follows version 3 of 'default/thread/t', which is"),
    "an earlier version": (lambda line: changed(line, version=1), "its hash does not match"),
    "version 0": (lambda line: changed(line, version=0), "nor in the store"),
    "another thread": (
        lambda line: changed(line, stream="default/thread/u"),
        "it follows version 1 of 'default/thread/u', which is neither earlier in the file nor in the store",
    ),
    "not a thread": (lambda line: changed(line, stream="default/chat/t"), "is not the name of a thread"),
    "a needless escape": (lambda line: changed(line, stream="default/thread/%74"), "is not the name of a thread"),
    "an empty id": (lambda line: changed(line, stream="default/thread/"), "is not the name of a thread"),
    "a name without parts": (lambda line: changed(line, stream="x"), "is not the name of a thread"),
    "another tenant": (
        lambda line: changed(line, stream="b/thread/t"),
        "has threads of tenant 'b', but the store is open for 'default'",
    ),
    "a fork": (lambda line: changed(line, parent="default/thread/t", cut=1), "different fork points"),
    "a fork of nothing": (lambda line: changed(line, parent="default/thread/t", cut=0), "after its cut"),
    "a digest": (lambda line: changed(line, digest=digest(STORED_MESSAGE).hex()), "its hash does not match"),
    "missing line": (lambda _: b"", "it follows version 2 of 'default/thread/t', which is neither"),
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
def test_refuses_a_damaged_line_and_keeps_the_lines_before(copy: Conversations, name: str) -> None:
    damage, reason = DAMAGE[name]
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user("Hello"), Message.user("Again")])
        lines = list(store.export_events())
    line = 4 if name in {"an end", "a blob", "a blob at the end"} else 3
    error = refused(copy, [*lines[:2], damage(lines[2]), *lines[3:]], line, 1)
    assert isinstance(error, ImportFormatError)
    assert reason in str(error)
    assert import_lines(copy, lines).events == 2
    assert list(copy.export_events()) == lines


FORGED: dict[str, tuple[list[ForgedRow], int, str]] = {
    "a start that is a message": (
        [("thread-started", STORED_MESSAGE)],
        0,
        "version 1: its bytes are not an event of its type",
    ),
    "not JSON": ([("thread-started", STARTED), ("message-appended", b"\0" * 17 + b"{")], 1, "not an event of its type"),
    "a stub alone": (
        [("thread-started", STARTED), ("message-appended", STUB)],
        1,
        "both a digest and a stub, or neither",
    ),
    "a digest alone": (
        [("thread-started", STARTED), ("message-appended", STORED_MESSAGE, SHREDDED)],
        1,
        "both a digest and a stub, or neither",
    ),
    "a bad stub": (
        [("thread-started", STARTED), ("message-appended", b"\2x", SHREDDED)],
        1,
        "not an event of its type",
    ),
    "a shredded start": ([("thread-started", STUB, SHREDDED)], 0, "events of its type are never shredded"),
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
    "its own redaction": ([("thread-started", STARTED), ("message-redacted", redaction(2, n=0))], 1, "is missing"),
    "a redacted start": (
        [("thread-started", STARTED), ("message-redacted", redaction(1, STARTED, n=0))],
        1,
        "events of its type are never shredded",
    ),
    "a redaction of other text": (
        [
            ("thread-started", STARTED),
            ("message-appended", STORED_MESSAGE),
            ("message-redacted", redaction(2, STARTED)),
        ],
        2,
        "the event that it redacts is missing",
    ),
    "a redaction without a stub": (
        [
            ("thread-started", STARTED),
            ("message-appended", STORED_MESSAGE),
            ("message-redacted", redaction(2, stub="x")),
        ],
        2,
        "both a digest and a stub, or neither",
    ),
    "a stub of no bytes": (
        [
            ("thread-started", STARTED),
            ("message-appended", STORED_MESSAGE),
            ("message-redacted", redaction(2, stub=WIDE)),
        ],
        2,
        "the stub of the message does not match the event",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_refuses_an_invalid_event_with_a_correct_hash(copy: Conversations, name: str) -> None:
    rows, events, reason = FORGED[name]
    assert reason in str(refused(copy, file_of(*forged(*rows)), len(rows) + 1, events))


OTHER_EVENTS: dict[str, list[ForgedRow]] = {
    "nothing": [],
    "a message": [("message-appended", state(n=2, message=HELLO))],
    "a redaction of nothing": [("message-redacted", redaction(3))],
    "another stub": [("message-redacted", redaction(2, stub=OTHER))],
    "unreadable bytes": [("message-redacted", b"\1unreadable")],
}


@pytest.mark.parametrize("name", OTHER_EVENTS)
def test_refuses_a_shredded_event_without_its_redaction(copy: Conversations, name: str) -> None:
    entries = forged(("thread-started", STARTED), ("message-appended", STUB, SHREDDED), *OTHER_EVENTS[name])
    result = import_lines(copy, file_of(*entries))
    assert result.events == 1
    assert [type(error) for _, error in result.failed] == [ImportFormatError]
    assert copy.verify().first_bad is None


@pytest.mark.parametrize("held", [0, 32 << 20])
@pytest.mark.parametrize("ended", [False, True])
def test_does_not_wait_for_a_missing_redaction(
    copy: Conversations,
    held: int,
    ended: bool,  # noqa: FBT001  # pytest passes it by name
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_import, "MOST_EVENTS", 2)
    monkeypatch.setattr(event_import, "MOST_WAITING_BYTES", held)
    messages = [("message-appended", state(n=number, message=HELLO)) for number in range(2, 11)]
    entries = forged(("thread-started", STARTED), ("message-appended", STUB, SHREDDED), *messages)
    lines = file_of(*entries)[: None if ended else -1]
    result = import_lines(copy, lines)
    assert (result.events, result.torn) == (1, not ended)
    assert ["does not hold the redaction" in str(error) for _, error in result.failed] == [True] * ended
    assert copy.verify().first_bad is None


@pytest.mark.parametrize("stored", [0, 2, 3, 4])
def test_two_redactions_of_a_message_need_equal_stubs(copy: Conversations, stored: int) -> None:
    rows: list[ForgedRow] = [("thread-started", STARTED), ("message-appended", STORED_MESSAGE)]
    twice = forged(*rows, ("message-redacted", redaction(2)), ("message-redacted", redaction(2)))
    import_lines(copy, file_of(*twice[:stored]))
    other = forged(*rows, ("message-redacted", redaction(2)), ("message-redacted", redaction(2, stub=OTHER)))
    if stored < 4:
        result = import_lines(copy, file_of(*other))
        assert "the stub of the message does not match the event" in str(result.failed[0].error)
        assert copy.verify().first_bad is None
    assert import_lines(copy, file_of(*twice)).failed == []
    assert copy.verify().first_bad is None
    assert copy.verify().events == 4


def test_a_fork_needs_its_parent_earlier_in_the_file(copy: Conversations) -> None:
    root = forged(("thread-started", STARTED), ("message-appended", STORED_MESSAGE))
    forked = state(n=1, parent_id="f", parent_version=2, parent_hash=root[-1].row.hash.hex())
    message = state(n=2, message=HELLO)
    fork = forged(("thread-forked", forked), ("message-appended", message), name="default/thread/g", after=root, cut=2)
    assert "nor in the store" in str(refused(copy, file_of(root[0], *fork), 3, 1))
    assert import_lines(copy, file_of(*root, *fork)).events == 3
    assert heads(copy) == {"f": root[-1].row.hash.hex(), "g": fork[-1].row.hash.hex()}


@pytest.mark.parametrize(
    ("fork", "reason"),
    [
        (Fork("default/thread/f", 1), "must begin with the version after its cut"),
        (Fork("default/thread/f", 7), "must begin with the version after its cut"),
        (Fork("default/thread/unknown", 2), "nor in the store"),
        (Fork("b/thread/f", 2), "tenant 'b'"),
        (Fork("default/memory/f", 2), "is not the name of a thread"),
        (None, "nor in the store"),
    ],
    ids=["a cut before", "a cut after", "of an unknown thread", "of another tenant", "of a scope", "without a parent"],
)
def test_a_fork_needs_a_valid_fork_point(copy: Conversations, fork: Fork | None, reason: str) -> None:
    root = forged(("thread-started", STARTED), ("message-appended", STORED_MESSAGE))
    first = state(parent_id="f", parent_version=2, parent_hash="")
    (entry,) = forged(("thread-forked", first), name="default/thread/g", after=root, cut=2)
    assert reason in str(refused(copy, file_of(*root, entry._replace(fork=fork)), 4, 2))


@pytest.mark.parametrize(("parent", "version"), [("f", 1), ("g", 2), (None, 0)])
def test_the_fork_point_needs_to_match_the_event(copy: Conversations, parent: str | None, version: int) -> None:
    stored = STARTED if parent is None else state(parent_id=parent, parent_version=version, parent_hash="")
    type_ = "thread-started" if parent is None else "thread-forked"
    root = forged(("thread-started", STARTED), ("message-appended", STORED_MESSAGE))
    (entry,) = forged((type_, stored), name="default/thread/g", after=root, cut=2)
    assert "different fork points" in str(refused(copy, file_of(*root, entry), 4, 2))


def test_imports_unknown_event_types_unchanged(copy: Conversations) -> None:
    lines = file_of(
        *forged(
            ("thread-started", STARTED),
            ("run-paused", b""),
            ("message-appended", b"\1key"),
            ("run-paused", b"\2stub of a type to come", SHREDDED),
        )
    )
    result = import_lines(copy, lines)
    assert result.events == 3  # the shredded event has no redaction here
    assert "not an event of its type" in str(result.failed[0].error)
    assert copy.verify().first_bad is None


def test_reports_a_missing_thread(copy: Conversations) -> None:
    with Conversations.open("memory:") as store:
        fill(store)
        lines = list(store.export_events())
    remaining = [line for line in lines if b"default/thread/other" not in line]
    ((number, error),) = import_lines(copy, remaining).failed
    assert number == len(remaining)
    assert "Lines are missing" in str(error)
    assert copy.verify().first_bad is None
    assert import_lines(copy, lines).failed == []
    assert sorted(heads(copy)) == ["branch", "last", "leaf", "other", "root/ä"]


def test_refuses_a_line_longer_than_any_event(copy: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "LONGEST_LINE", 1_000)
    (entry,) = forged(("thread-started", state(title="x" * 2_000)))
    assert "longer than any event" in str(refused(copy, file_of(entry), 2, 0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "It is not in Clew's own JSONL"),
        (b'{"messages":[]}\n', "It is not in Clew's own JSONL"),
        (b'{"format":{"name":"cl', "It is not in Clew's own JSONL"),
        (b'{"format":{"name":"clew","version":2}}\n', "A newer Clew wrote the file"),
    ],
)
def test_refuses_a_file_in_another_format(copy: Conversations, text: bytes, reason: str, tmp_path: Any) -> None:
    with pytest.raises(ImportFormatError, match=reason):
        import_lines(copy, [text])
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ImportFormatError, match=reason):
        copy.import_events(tmp_path / "file")


def test_refuses_an_unreadable_path(copy: Conversations, tmp_path: Any) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ImportFormatError, match="cannot be read"):
            copy.import_events(path)


def test_refuses_a_repeated_line(copy: Conversations) -> None:
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user("Hello")])
        lines = list(store.export_events())
    error = refused(copy, [*lines[:3], lines[2], *lines[3:]], 4, 2)
    assert "it occurs twice in the file" in str(error)
    assert import_lines(copy, lines).events == 0
