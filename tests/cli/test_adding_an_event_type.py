"""Follows the recipe of CONTRIBUTING.md: one declaration, and no other file knows the type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.clew_command import Clew

from clew import Conversations, Message
from clew.domain.decider import RecordEvents
from clew.domain.errors import InvalidContentError, ThreadStatusError
from clew.domain.event_types import UNDELETED, event_type, withdraw
from clew.domain.events import EVENT_TYPES, Opaque
from clew.domain.messages import Value
from clew.infrastructure.envelope import decode, encode
from clew.service.effects import run
from clew.service.thread_commands import change


class MessagePinned(Value):
    """A user pinned the message at ``version``."""

    version: int
    note: str | None = None


@pytest.fixture
def declared() -> Iterator[None]:
    event_type(
        "message-pinned",
        headline="A message was pinned",
        sentence="pinned version {version}",
        sample={"version": 2, "note": "important"},
        statuses=UNDELETED,
    )(MessagePinned)
    yield
    withdraw("message-pinned")


@pytest.fixture
def url(tmp_path: Path, declared: None) -> str:
    """A store with a thread in which a message was pinned."""
    del declared
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread("Refund", thread_id="trip", messages=[Message.user("Hello")])
        pin(conversations, 2, "important")
        thread.append(Message.assistant("Yes?"))
        conversations.wait(conversations.position())
    return url


def pin(conversations: Conversations, version: int, note: str | None = None) -> None:
    pinned: Any = MessagePinned(version=version, note=note)
    run(change(conversations._core, "trip", RecordEvents((pinned,)), "user:ann"))


def test_it_is_read_back_next_to_older_events(url: str) -> None:
    with Conversations.open(url) as conversations:
        thread = conversations.thread("trip")
        events = list(thread.events())
        assert [event.type for event in events] == [
            "thread-started",
            "message-appended",
            "message-pinned",
            "message-appended",
        ]
        pinned: Any = events[2].data
        assert pinned == MessagePinned(version=2, note="important")
        assert (events[2].actor, events[2].messages) == ("user:ann", 1)
        assert [message.text for message in thread.history()] == ["Hello", "Yes?"]
        assert list(thread.fork(at=3).events())[2].data == pinned


def test_it_is_audited_with_its_sentence(url: str) -> None:
    with Conversations.open(url) as conversations:
        (entry,) = conversations.audit(type="message-pinned")
    assert (entry.actor, entry.what, entry.thread_id) == ("user:ann", "pinned version 2", "trip")


@pytest.mark.usefixtures("url")  # the command finds it there
def test_commands_show_it(clew: Clew) -> None:
    log = clew.text("log", "trip")
    assert "message-pinned" in log
    assert "pinned version 2" in log
    assert "A message was pinned: pinned version 2" in clew.text("replay", "trip")
    events = [json.loads(line) for line in clew.text("log", "trip", "--json").splitlines()]
    assert "message-pinned" in json.dumps(events)
    assert "pinned version 2" in clew.text("audit")


def test_it_is_exported_imported_serialized_and_verified(url: str) -> None:
    with Conversations.open(url) as conversations, Conversations.open("memory:") as copy:
        lines = b"".join(conversations.export_events())
        assert copy.import_events(BytesIO(lines)).failed == []
        assert b"".join(copy.export_events()) == lines
        document = conversations.thread("trip").serialize()
        with Conversations.open("memory:") as other:
            assert [each.data for each in other.restore_thread(document).events()] == [
                each.data for each in conversations.thread("trip").events()
            ]
        assert conversations.verify().first_bad is None
        assert copy.verify().first_bad is None


def test_its_statuses_and_its_content_are_checked(url: str) -> None:
    with Conversations.open(url) as conversations:
        thread = conversations.thread("trip")
        with pytest.raises(InvalidContentError, match=r"message-pinned\.note"):
            pin(conversations, 2, "\udfff")
        thread.end()
        pin(conversations, 4)
        thread.delete()
        with pytest.raises(ThreadStatusError, match="'trip' is deleted: to record events is refused"):
            pin(conversations, 4)


def test_a_type_without_statuses_is_refused_with_advice() -> None:
    event_type("message-pinned")(MessagePinned)
    try:
        with Conversations.open("memory:") as conversations:
            conversations.start_thread(thread_id="trip")
            with pytest.raises(ValueError, match=r"'message-pinned' is declared without statuses.*statuses="):
                pin(conversations, 1)
    finally:
        withdraw("message-pinned")


def test_a_model_without_a_declaration_says_what_to_write() -> None:
    with Conversations.open("memory:") as conversations:
        conversations.start_thread(thread_id="trip")
        with pytest.raises(InvalidContentError, match=r"MessagePinned is not declared.*Write @event_type"):
            pin(conversations, 1)


def test_a_type_for_ended_threads_is_refused_on_an_active_one() -> None:
    event_type("message-pinned", statuses={"ended"})(MessagePinned)
    try:
        with Conversations.open("memory:") as conversations:
            thread = conversations.start_thread(thread_id="trip")
            with pytest.raises(ThreadStatusError, match=r"is active.*for threads with another status"):
                pin(conversations, 1)
            thread.end()
            pin(conversations, 1)
    finally:
        withdraw("message-pinned")


def test_a_missing_field_is_a_dash_in_the_audit_trail_and_the_log(clew: Clew) -> None:
    event_type("message-pinned", sentence="noted {note}", statuses=UNDELETED)(MessagePinned)
    try:
        with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
            conversations.start_thread(thread_id="trip")
            pin(conversations, 1)
            (entry,) = conversations.audit(type="message-pinned")
        assert entry.what == "noted —"
        assert "noted —" in clew.text("log", "trip")
    finally:
        withdraw("message-pinned")


@pytest.mark.usefixtures("declared")
def test_its_sample_can_be_stored_and_read() -> None:
    with Conversations.open("memory:") as conversations:
        conversations.start_thread(thread_id="trip")
        pin(conversations, 1)
        event = list(conversations.thread("trip").events())[-1]
    sample: Any = EVENT_TYPES["message-pinned"].model(**EVENT_TYPES["message-pinned"].sample)
    state = encode(event._replace(data=sample))
    assert decode(event.stream, event.version, event.type, state).data == sample


def test_a_clew_without_the_declaration_does_not_change_the_event(url: str) -> None:
    pinned = EVENT_TYPES["message-pinned"]
    withdraw("message-pinned")
    try:
        with Conversations.open(url) as conversations:
            assert isinstance(list(conversations.thread("trip").events())[2].data, Opaque)
            (entry,) = conversations.audit(type="message-pinned")
            assert entry.what == "recorded 'message-pinned', which this Clew does not know"
            assert conversations.verify().first_bad is None
    finally:
        event_type("message-pinned", sample=pinned.sample)(MessagePinned)
