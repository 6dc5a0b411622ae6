"""Starting, opening and listing threads; labels, actors and closing."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from tests.service.settable_clock import SettableClock

from clew.conversations import Conversations
from clew.domain.errors import (
    ClosedError,
    InvalidContentError,
    InvalidNameError,
    StoreUrlError,
    ThreadDeletedError,
    ThreadExistsError,
    UnknownThreadError,
)
from clew.domain.messages import Message

HELLO = Message.user("Hello.")


def texts(thread: Any, **at: Any) -> list[str]:
    return [message.text for message in thread.history(**at)]


# Starting


def test_starts_a_thread_with_title_labels_metadata_and_messages_in_one_commit(conversations: Conversations) -> None:
    thread = conversations.start_thread(
        "Refund",
        labels={"topic": "parcel"},
        metadata={"order": 10**30},
        messages=[Message.system("Be kind."), HELLO],
        actor="user:42",
    )
    summary = thread.summary()
    assert (summary.title, summary.labels, summary.metadata) == ("Refund", {"topic": "parcel"}, {"order": 10**30})
    assert (summary.version, summary.messages, summary.status, summary.imported) == (3, 2, "active", False)
    assert (summary.parent_id, summary.forked_at, summary.checkpoints) == (None, None, {})
    assert [event.actor for event in thread.events()] == ["user:42"] * 3
    positions = [event.position or 0 for event in thread.events()]
    assert sorted(set(positions)) == positions
    assert len(positions) == 3


def test_gives_each_thread_its_own_id(conversations: Conversations) -> None:
    first, second = conversations.start_thread(), conversations.start_thread()
    assert first.id != second.id
    assert conversations.thread(first.id).version == 1


def test_refuses_to_start_a_thread_with_an_id_in_use(conversations: Conversations) -> None:
    conversations.start_thread(thread_id="mine", messages=[HELLO])
    with pytest.raises(ThreadExistsError, match="mine"):
        conversations.start_thread("Another", thread_id="mine")
    assert conversations.thread("mine").summary().title is None


@pytest.mark.parametrize(
    "thread_id", ["x" * 200, "a/b%2Fc d", "Größe 漢字 🧵", "../..", "UPPER", "~", "a\nb", "%", "'\""]
)
def test_accepts_any_unicode_of_up_to_200_characters_as_an_id(conversations: Conversations, thread_id: str) -> None:
    thread = conversations.start_thread(thread_id=thread_id, messages=[HELLO])
    fork = thread.fork(thread_id=thread_id[:199] + "'")
    assert thread.id == thread_id
    assert texts(conversations.thread(thread_id)) == ["Hello."]
    assert [each.id for each in conversations.threads()] == [thread_id, fork.id]
    assert [event.thread_id for event in fork.events()] == [thread_id, thread_id, fork.id]


@pytest.mark.parametrize("thread_id", ["", "x" * 201, "x" * 10_000, "lone \ud800", cast("str", 7), cast("str", b"x")])
def test_refuses_an_invalid_id(conversations: Conversations, thread_id: str) -> None:
    for use in (
        lambda: conversations.start_thread(thread_id=thread_id),
        lambda: conversations.open_thread(thread_id),
        lambda: conversations.thread(thread_id),
        lambda: conversations.verify(thread_id),
    ):
        with pytest.raises(InvalidNameError, match="thread id"):
            use()
    assert list(conversations.threads()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"title": 7},
        {"title": "lone \ud800"},
        {"labels": {"x": float("nan")}},
        {"labels": {1: "x"}},
        {"metadata": {"x": (1, 2)}},
        {"messages": ["Hello."]},
        {"messages": [HELLO, None]},
    ],
)
def test_invalid_arguments_start_no_thread(conversations: Conversations, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError):
        conversations.start_thread(thread_id="mine", **wrong)
    with pytest.raises(UnknownThreadError):
        conversations.thread("mine")


def test_opens_an_existing_thread_or_starts_it(conversations: Conversations) -> None:
    conversations.open_thread("mine", actor="user:1").append(HELLO)
    assert texts(conversations.open_thread("mine")) == ["Hello."]
    assert [event.actor for event in conversations.thread("mine").events()] == ["user:1", None]


def test_refuses_to_open_a_deleted_thread_or_to_start_it_again(conversations: Conversations) -> None:
    conversations.start_thread(thread_id="mine").delete()
    with pytest.raises(ThreadDeletedError):
        conversations.open_thread("mine")
    with pytest.raises(ThreadExistsError):
        conversations.start_thread(thread_id="mine")


def test_an_error_names_the_missing_thread(conversations: Conversations) -> None:
    with pytest.raises(UnknownThreadError, match="'missing'"):
        conversations.thread("missing")
    with pytest.raises(UnknownThreadError):
        conversations.verify("missing")


def test_keeps_tenants_apart_in_one_store(shared_url: str) -> None:
    with Conversations.open(shared_url) as ours, Conversations.open(shared_url, tenant="Ä/theirs") as theirs:
        ours.start_thread(thread_id="same", messages=[HELLO])
        theirs.start_thread(thread_id="same")
        theirs.start_thread(thread_id="other")
        assert [each.id for each in ours.threads()] == ["same"]
        assert [each.id for each in theirs.threads()] == ["same", "other"]
        assert texts(theirs.thread("same")) == []
        with pytest.raises(UnknownThreadError):
            ours.thread("other")
        with ours.subscribe() as events:
            assert [events.wait(0) is not None for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("tenant", ["", "x" * 201])
def test_refuses_an_invalid_tenant(url: str, tenant: str) -> None:
    with pytest.raises(InvalidNameError, match="tenant"):
        Conversations.open(url, tenant=tenant)


@pytest.mark.parametrize("wrong", ["", "memory:x", "postgres", "sqlite:", "sqlite://host/x", "file:", cast("str", 7)])
def test_refuses_a_url_without_a_known_store(wrong: str) -> None:
    with pytest.raises(StoreUrlError):
        Conversations.open(wrong)


# Listing


def test_lists_all_threads_in_order_of_creation(conversations: Conversations, clock: SettableClock) -> None:
    began = clock.move(1)
    first = conversations.start_thread("First", thread_id="z", messages=[HELLO])
    conversations.start_thread(thread_id="a").delete()
    updated = clock.move(1)
    fork = first.fork(at=1, title="What if")
    first.label(topic="x")
    listed = list(conversations.threads())
    assert [each.id for each in listed] == ["z", "a", fork.id]
    assert [each.status for each in listed] == ["active", "deleted", "active"]
    assert [(each.created_at, each.updated_at) for each in listed] == [
        (began, updated),
        (began, began),
        (updated, updated),
    ]
    assert listed[2] == fork.summary()
    assert (listed[2].title, listed[2].parent_id, listed[2].forked_at, listed[2].messages) == ("What if", "z", 1, 0)
    heads = [list(conversations.thread(each.id).events())[-1].hash for each in listed]
    assert [each.head for each in listed] == [head.hex() for head in heads if head is not None]


@pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
def test_lists_every_thread_once_for_any_page_size(
    conversations: Conversations, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.effects.PAGE", page)
    ids = [conversations.start_thread().id for _ in range(6)]
    assert [each.id for each in conversations.threads()] == ids


def test_lists_the_forks_of_a_thread_but_not_their_forks(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[HELLO])
    fork = thread.fork(title="one")
    fork.append(HELLO)
    fork.fork(title="of the fork")
    thread.fork(title="two", at=1)
    fork.fork(title="inside the ancestor", at=2)
    assert [each.title for each in thread.forks()] == ["one", "two", "inside the ancestor"]
    assert [each.title for each in fork.forks()] == ["of the fork"]


# Labels, actors, closing


def test_sets_and_removes_labels(conversations: Conversations) -> None:
    thread = conversations.start_thread(labels={"topic": "refund", "tier": 1})
    thread.label(topic="parcel", ids=[1, {"x": None}], actor="user:1")
    thread.label(tier=None, unknown=None)
    assert thread.summary().labels == {"topic": "parcel", "ids": [1, {"x": None}]}
    assert thread.state(at=1).labels == {"topic": "refund", "tier": 1}
    for wrong in ({}, {"x": float("nan")}, {"x": {1: 2}}, {"x": object()}):
        with pytest.raises(InvalidContentError):
            thread.label(**cast("dict[str, Any]", wrong))
    assert thread.version == 3


def test_acts_as_an_actor_unless_a_call_names_another(conversations: Conversations) -> None:
    acting = conversations.acting_as("user:42")
    thread = acting.start_thread(messages=[HELLO])
    thread.checkpoint("here")
    thread.label(x=1, actor="user:7")
    thread.fork().end()
    conversations.thread(thread.id).suspend()
    acting.acting_as(None).thread(thread.id).resume()
    assert [event.actor for event in thread.events()] == ["user:42"] * 3 + ["user:7", None, None]
    assert [event.actor for event in acting.thread(thread.forks()[0].id).events(after=4)] == ["user:42"] * 2
    for wrong in ("", "x" * 201, cast("str", 7)):
        with pytest.raises(InvalidNameError, match="actor"):
            conversations.acting_as(wrong)


def test_refuses_everything_after_close(url: str) -> None:
    conversations = Conversations.open(url)
    thread = conversations.start_thread(messages=[HELLO])
    conversations.close()
    conversations.close()
    for use in (
        conversations.start_thread,
        lambda: conversations.open_thread("x"),
        lambda: conversations.thread(thread.id),
        lambda: list(conversations.threads()),
        lambda: list(conversations.tree()),
        lambda: conversations.search("hello"),
        lambda: list(conversations.audit()),
        conversations.usage,
        conversations.verify,
        thread.summary,
        lambda: thread.version,
        lambda: thread.append(HELLO),
        lambda: thread.append(HELLO, idempotency_key="k"),
        lambda: thread.checkpoint("x"),
        thread.fork,
        lambda: thread.rewind(to=1),
        lambda: thread.edit(2, "x"),
        lambda: thread.redact(2),
        thread.delete,
        thread.history,
        thread.state,
        lambda: list(thread.events()),
        lambda: list(thread.replay()),
        thread.forks,
        thread.verify,
    ):
        with pytest.raises(ClosedError):
            use()


def test_reads_everything_after_reopening(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread("Refund", messages=[HELLO])
        thread.fork(title="What if").append(Message.user("Else."))
        before = [json.dumps(each, default=str) for each in conversations.threads()]
    with Conversations.open(shared_url) as conversations:
        assert [json.dumps(each, default=str) for each in conversations.threads()] == before
        assert texts(conversations.thread(thread.id)) == ["Hello."]
