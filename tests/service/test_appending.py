"""Appending: messages, expected versions and idempotency keys."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.settable_clock import SettableClock

from clew.conversations import Conversations
from clew.domain.errors import (
    ConflictError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    InvalidNameError,
    ThreadStatusError,
)
from clew.domain.messages import FunctionCall, Message

HELLO = Message.user("Hello.")


def texts(thread: Any, **at: Any) -> list[str]:
    return [message.text for message in thread.history(**at)]


def test_appends_one_message_and_returns_it(conversations: Conversations, clock: SettableClock) -> None:
    thread = conversations.start_thread()
    at = clock.move(5)
    message = thread.append(Message.user("Where is it?", author="Kim", metadata={"n": 1}), actor="user:7")
    assert (message.version, message.role, message.text, message.author, message.metadata) == (
        2,
        "user",
        "Where is it?",
        "Kim",
        {"n": 1},
    )
    assert (message.time, message.actor, message.redacted) == (at, "user:7", False)
    assert thread.history().messages == (message,)


def test_appends_many_messages_in_one_commit(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    call = FunctionCall(call_id="1", name="find", arguments='{"n": 1}')
    messages = thread.append((Message.assistant(calls=[call]), Message.tool("1", {"found": [1, None, 2.5]}), HELLO))
    assert [each.version for each in messages] == [2, 3, 4]
    assert thread.history().messages == tuple(messages)
    assert (thread.version, thread.summary().messages) == (4, 3)
    assert thread.append([HELLO])[0].version == 5


def test_an_append_with_one_invalid_message_stores_nothing(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    for wrong in (Message.user("lone \ud800"), Message.user("x", metadata={"x": float("inf")})):
        with pytest.raises(InvalidContentError):
            thread.append([HELLO, wrong])
    assert thread.version == 1


@pytest.mark.parametrize(
    "wrong", ["Hello.", b"bytes", None, 7, {"role": "user"}, ["Hello."], [HELLO, 7], [], (), iter([HELLO])]
)
def test_appends_only_messages(conversations: Conversations, wrong: Any) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidContentError):
        thread.append(wrong)
    assert thread.version == 1


def test_refuses_a_message_of_more_than_16_mebibytes(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidContentError, match="16"):
        thread.append(Message.user("x" * (17 * 2**20)))
    assert thread.append(HELLO).version == 2


def test_refuses_an_append_that_expects_another_version(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[HELLO])
    assert thread.append(HELLO, expected_version=2).version == 3
    for expected in (0, 1, 2, 4):
        with pytest.raises(ConflictError) as caught:
            thread.append(HELLO, expected_version=expected)
        assert (caught.value.stream, caught.value.expected, caught.value.actual) == (thread.id, expected, 3)
    assert thread.version == 3


def test_expected_versions_consider_the_writes_of_another_process(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        here = one.start_thread(thread_id="shared")
        there = other.thread("shared")
        there.append(HELLO)
        assert here.append(HELLO, expected_version=2).version == 3
        with pytest.raises(ConflictError) as caught:
            there.append(HELLO, expected_version=2)
        assert (caught.value.expected, caught.value.actual) == (2, 3)
        here.end()
        with pytest.raises(ThreadStatusError):
            there.append(HELLO)


def test_appends_once_under_an_idempotency_key(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    first = thread.append([HELLO, Message.user("Again?")], idempotency_key="k")
    thread.append(Message.assistant("Hi."))
    assert thread.append([HELLO, Message.user("Again?")], idempotency_key="k") == first
    assert thread.version == 4
    one = thread.append(HELLO, idempotency_key="one")
    assert thread.append(HELLO, idempotency_key="one") == one
    assert thread.append(HELLO).version == 6


@pytest.mark.parametrize(
    "other", [Message.user("Other."), [HELLO, HELLO], Message.assistant("Hello."), Message.user("Hello.", author="Kim")]
)
def test_refuses_a_key_that_was_used_for_other_content(conversations: Conversations, other: Any) -> None:
    thread = conversations.start_thread()
    thread.append(HELLO, idempotency_key="k")
    with pytest.raises(IdempotencyKeyReusedError, match="'k'"):
        thread.append(other, idempotency_key="k")
    assert thread.version == 2


def test_each_thread_has_separate_keys(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.append(HELLO, idempotency_key="k")
    assert thread.fork().append(Message.user("Other."), idempotency_key="k").version == 4
    assert conversations.start_thread().append(Message.user("Other."), idempotency_key="k").version == 2


@pytest.mark.parametrize("change", ["suspend", "end", "delete"])
def test_repeats_the_outcome_of_a_key_on_a_thread_that_refuses_new_appends(
    conversations: Conversations, change: str
) -> None:
    thread = conversations.start_thread()
    first = thread.append(HELLO, idempotency_key="k")
    getattr(thread, change)()
    assert thread.append(HELLO, idempotency_key="k") == first
    with pytest.raises(ThreadStatusError):
        thread.append(HELLO, idempotency_key="new")
    with pytest.raises(IdempotencyKeyReusedError):
        thread.append(Message.user("Other."), idempotency_key="k")


def test_repeats_the_outcome_of_a_key_whose_expected_version_has_passed(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    first = thread.append(HELLO, idempotency_key="k", expected_version=1)
    thread.append(HELLO)
    assert thread.append(HELLO, idempotency_key="k", expected_version=1) == first
    with pytest.raises(ConflictError):
        thread.append(HELLO, idempotency_key="new", expected_version=1)


def test_repeats_the_outcome_of_a_key_after_its_message_was_redacted(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    message = thread.append(HELLO, idempotency_key="k")
    thread.redact(message)
    again = thread.append(HELLO, idempotency_key="k")
    assert (again.version, again.redacted, again.role) == (2, True, "user")


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "lone \ud800", 7])
def test_refuses_an_invalid_key(conversations: Conversations, key: Any) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidNameError, match="idempotency key"):
        thread.append(HELLO, idempotency_key=key)
    assert thread.version == 1
