"""The operations that each status allows, and redaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import (
    InvalidContentError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadStatusError,
    UnknownVersionError,
)
from clew.domain.events import MessageRedacted, Shredded, ThreadEnded, ThreadSuspended
from clew.domain.messages import Message
from clew.domain.ports import Draft, Write
from clew.sync.threads import LocalThread

REACH: dict[str, tuple[str, ...]] = {
    "active": (),
    "suspended": ("suspend",),
    "resumed": ("suspend", "resume"),
    "ended": ("end",),
    "deleted": ("delete",),
    "suspended, then deleted": ("suspend", "delete"),
    "ended, then deleted": ("end", "delete"),
}

WRITES: dict[str, Callable[[LocalThread], object]] = {
    "append": lambda thread: thread.append(Message.user("more")),
    "label": lambda thread: thread.label(x=1),
    "checkpoint": lambda thread: thread.checkpoint("x"),
    "checkpoint at": lambda thread: thread.checkpoint("x", at=2),
    "rewind": lambda thread: thread.rewind(to=2),
    "fork": lambda thread: thread.fork(),
    "edit": lambda thread: thread.edit(2, "x"),
    "redact": lambda thread: thread.redact(2),
    "suspend": lambda thread: thread.suspend(),
    "resume": lambda thread: thread.resume(),
    "end": lambda thread: thread.end(),
    "delete": lambda thread: thread.delete(),
}

READS: dict[str, Callable[[LocalThread], object]] = {
    "history": lambda thread: thread.history(),
    "history at": lambda thread: thread.history(at=2),
    "view": lambda thread: thread.view(),
    "state": lambda thread: thread.state(),
    "replay": lambda thread: list(thread.replay()),
}

REFUSED: dict[str, set[str]] = {
    "active": {"resume"},
    "suspended": {"append", "suspend"},
    "ended": {"append", "rewind", "suspend", "resume", "end"},
    "deleted": set(WRITES) - {"redact"} | set(READS),
}


@pytest.fixture
def thread(conversations: Conversations) -> LocalThread:
    return conversations.start_thread(messages=[Message.user("one"), Message.assistant("two")])


def texts(thread: LocalThread, **at: Any) -> list[str | None]:
    return [None if message.redacted else message.text for message in thread.history(**at)]


@pytest.mark.parametrize("operation", [*WRITES, *READS])
@pytest.mark.parametrize("reached", list(REACH))
def test_each_status_allows_only_its_operations(thread: LocalThread, reached: str, operation: str) -> None:
    for change in REACH[reached]:
        getattr(thread, change)()
    status, version = thread.status, thread.version
    do = (WRITES | READS)[operation]
    if operation in REFUSED[status]:
        with pytest.raises(ThreadStatusError) as caught:
            do(thread)
        assert type(caught.value) is (ThreadDeletedError if status == "deleted" else ThreadStatusError)
        assert (caught.value.status, caught.value.thread_id) == (status, thread.id)
        assert (thread.status, thread.version) == (status, version)
    else:
        do(thread)


def test_deleting_a_thread_deletes_its_partial_answer(thread: LocalThread) -> None:
    log, stream = thread._core.log, thread._core.stream(thread.id)
    log.submit(Write((), {}, drafts=(Draft(stream, "run", b"words"),))).outcome.result()
    thread.end()
    assert log.draft(stream) is not None
    thread.delete()
    assert log.draft(stream) is None


def test_reads_the_events_of_a_deleted_thread_and_verifies_them(thread: LocalThread) -> None:
    thread.delete(reason="asked for", actor="user:1")
    assert [event.type for event in thread.events()][-1] == "thread-deleted"
    assert thread.verify().first_bad is None
    assert (thread.status, thread.version, thread.summary().messages) == ("deleted", 4, 2)


def test_keeps_the_reasons(thread: LocalThread) -> None:
    thread.suspend(reason="waits for the parcel", actor="user:1")
    thread.end(reason="lone again")
    suspended, ended = list(thread.events(after=3))
    assert (suspended.data, suspended.actor) == (ThreadSuspended(reason="waits for the parcel"), "user:1")
    assert ended.data == ThreadEnded(reason="lone again")
    fork = thread.fork()
    wrong: Any
    for wrong in (7, "lone \ud800"):
        for use in (fork.suspend, fork.end, fork.delete):
            with pytest.raises(InvalidContentError, match="reason"):
                use(reason=wrong)
    assert fork.version == 6


# Redaction


def test_a_redaction_applies_to_forks_earlier_versions_and_after_rewinds(thread: LocalThread) -> None:
    fork = thread.fork()
    assert (texts(fork), texts(thread)) == (["one", "two"], ["one", "two"])
    message = thread.history().messages[0]
    assert thread.redact(message, reason="private", actor="user:1").version == 4
    assert texts(thread) == texts(fork) == texts(fork.fork(at=3)) == [None, "two"]
    assert texts(thread, at=2) == [None]
    thread.rewind(to=2)
    assert texts(thread) == [None]
    assert texts(fork, at_message=1) == [None]
    assert [state.messages[0].redacted for _, state in thread.replay() if state.messages] == [True] * 4
    event = list(thread.events(at=4))[-1]
    assert isinstance(event.data, MessageRedacted)
    assert (event.data.version, event.data.reason, event.actor) == (2, "private", "user:1")
    assert list(thread.events(at=2))[-1].data == Shredded("user")
    redacted = thread.history().messages[0]
    assert (redacted.role, redacted.text, redacted.contents, redacted.event_id) == ("user", "", (), message.event_id)


def test_appends_a_redaction_to_the_thread_that_owns_the_message(
    conversations: Conversations, thread: LocalThread
) -> None:
    fork = thread.fork()
    inner = fork.fork()
    inner.append(Message.user("own"))
    assert inner.redact(3).version == 4
    assert (thread.version, fork.version, inner.version) == (4, 4, 6)
    assert texts(thread) == texts(fork) == ["one", None]
    assert texts(inner) == ["one", None, "own"]
    assert inner.redact(6).version == 7
    assert conversations.verify().first_bad is None


@pytest.mark.parametrize("change", ["suspend", "end", "delete"])
def test_redacts_in_a_thread_of_any_status(conversations: Conversations, thread: LocalThread, change: str) -> None:
    fork = thread.fork()
    getattr(thread, change)()
    assert thread.redact(2).version == 5
    assert fork.redact(3).version == 6
    assert texts(fork) == [None, None]
    assert conversations.verify().first_bad is None


def test_redacts_a_message_only_once_and_nothing_but_messages(thread: LocalThread) -> None:
    fork = thread.fork()
    thread.redact(2)
    wrong: Any
    for wrong in (2, 1, 4, "two", None, True, 2.0):
        with pytest.raises(NotRedactableError):
            thread.redact(wrong)
    for wrong in (2, 4):
        with pytest.raises(NotRedactableError):
            fork.redact(wrong)
    for wrong in (0, 5, -1):
        with pytest.raises(UnknownVersionError):
            thread.redact(wrong)
    assert (thread.version, fork.version) == (4, 4)


def test_redacts_a_message_once_under_concurrent_calls(conversations: Conversations, thread: LocalThread) -> None:
    outcomes: list[object] = []
    ready = threading.Barrier(8)

    def redact() -> None:
        ready.wait()
        try:
            outcomes.append(thread.redact(2).version)
        except NotRedactableError:
            outcomes.append("refused")

    threads = [threading.Thread(target=redact) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(map(str, outcomes)) == ["4"] + ["refused"] * 7
    assert conversations.verify().first_bad is None


def test_removes_a_redacted_message_from_the_file(tmp_path: Path) -> None:
    word = "unmistakable-secret"
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db") as conversations:
        thread = conversations.start_thread(messages=[Message.user("one")])
        message = thread.append(Message.user(f"It is {word}."), idempotency_key="k")
        fork = thread.fork()
        assert any(word.encode() in path.read_bytes() for path in tmp_path.iterdir())
        fork.redact(message)
        assert fork.history().messages[1].redacted
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db") as conversations:
        assert conversations.verify().first_bad is None
    assert not any(word.encode() in path.read_bytes() for path in tmp_path.iterdir())
