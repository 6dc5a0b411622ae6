from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given as drawn
from tests.domain.strategies import event, messages, nested

from clew.domain.control import Control, Status, advance
from clew.domain.decisions import (
    Branch,
    Checkpoint,
    Decided,
    Delete,
    End,
    Intent,
    Label,
    Redact,
    Resume,
    Rewind,
    Say,
    Start,
    Suspend,
    check_readable,
    decide,
)
from clew.domain.errors import (
    CheckpointExistsError,
    ClewError,
    InvalidContentError,
    InvalidNameError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadStatusError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.events import (
    CheckpointMade,
    HistoryRewound,
    MessageAppended,
    MessageRedacted,
    Source,
    ThreadDeleted,
    ThreadEnded,
    ThreadEvent,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.messages import Message

HELLO = Message.user("Hello")
BYE = Message.assistant("Bye")
STARTED = ThreadStarted(title="Refund")
SAID = MessageAppended(message=HELLO)
BRANCH = Branch("parent", 2, "ab", "What if")


@dataclass(frozen=True)
class Given:
    control: Control

    def when(self, intent: Intent) -> When:
        return When(self.control, intent)


@dataclass(frozen=True)
class When:
    control: Control
    intent: Intent

    def then(self, *expected: ThreadEvent) -> list[int]:
        """These events; returns the counts of messages after them."""
        decided = decide("t", self.control, self.intent)
        assert [each.data for each in decided] == list(expected)
        return [each.messages for each in decided]

    def then_refused(self, error: type[ClewError], said: str = ".") -> None:
        with pytest.raises(error, match=said) as caught:
            decide("t", self.control, self.intent)
        assert type(caught.value) is error


def given(*happened: ThreadEvent) -> Given:
    control = Control()
    count = 0
    for version, data in enumerate(happened, start=1):
        count += isinstance(data, MessageAppended)
        control = advance(control, event(data, version, messages=count))
    return Given(control)


# The status table

STATUSES: dict[Status, tuple[ThreadEvent, ...]] = {
    "active": (),
    "suspended": (ThreadSuspended(),),
    "ended": (ThreadEnded(),),
    "deleted": (ThreadDeleted(),),
}
INTENTS: dict[type[Any], tuple[Intent, ThreadEvent]] = {
    Branch: (BRANCH, ThreadForked(parent_id="parent", parent_version=2, parent_hash="ab", title="What if")),
    Say: (Say((BYE,)), MessageAppended(message=BYE)),
    Label: (Label({"a": 1}), ThreadLabelled(labels={"a": 1})),
    Checkpoint: (Checkpoint("here", 2), CheckpointMade(name="here", at=2)),
    Rewind: (Rewind(1, 0), HistoryRewound(to=1)),
    Redact: (Redact(2, "d", "s", "asked"), MessageRedacted(version=2, digest="d", stub="s", reason="asked")),
    Suspend: (Suspend("rest"), ThreadSuspended(reason="rest")),
    Resume: (Resume(), ThreadResumed()),
    End: (End("done"), ThreadEnded(reason="done")),
    Delete: (Delete("wish"), ThreadDeleted(reason="wish")),
}
ALLOWED: dict[Status, set[type[Any]]] = {
    "active": {Branch, Say, Label, Checkpoint, Rewind, Redact, Suspend, Resume, End, Delete},
    "suspended": {Branch, Label, Checkpoint, Rewind, Redact, Resume, End, Delete},
    "ended": {Branch, Label, Checkpoint, Redact, Delete},
    "deleted": {Redact},
}


def test_the_table_has_every_intent_and_every_status() -> None:
    assert {Start, *INTENTS} == set(get_args(Intent))
    assert set(STATUSES) == set(ALLOWED) == set(get_args(Status))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("kind", INTENTS, ids=lambda kind: kind.__name__)
def test_each_status_allows_what_the_design_says(status: Status, kind: type[Any]) -> None:
    intent, outcome = INTENTS[kind]
    when = given(STARTED, SAID, *STATUSES[status]).when(intent)
    if kind in ALLOWED[status]:
        when.then(outcome)
    elif status == "deleted":
        when.then_refused(ThreadDeletedError, "is deleted")
    else:
        when.then_refused(ThreadStatusError, f"is {status}")


@pytest.mark.parametrize("status", STATUSES)
def test_no_thread_can_be_started_twice(status: Status) -> None:
    given(STARTED, *STATUSES[status]).when(Start()).then_refused(ThreadExistsError, "already a thread 't'")


@pytest.mark.parametrize("kind", [kind for kind in INTENTS if kind is not Branch], ids=lambda kind: kind.__name__)
def test_nothing_happens_to_a_thread_that_is_not_there(kind: type[Any]) -> None:
    given().when(INTENTS[kind][0]).then_refused(UnknownThreadError, "no thread 't'")


def test_a_resumed_thread_takes_messages_again() -> None:
    given(STARTED, ThreadSuspended(), ThreadResumed()).when(Say((HELLO,))).then(SAID)


def test_a_fork_of_an_ended_thread_takes_messages() -> None:
    forked = ThreadForked(parent_id="p", parent_version=2, parent_hash="")
    given(STARTED, ThreadEnded(), forked).when(Say((HELLO,))).then(SAID)


@pytest.mark.parametrize(
    ("status", "intent", "said"),
    [
        ("suspended", Say((HELLO,)), "Thread 't' is suspended: append is refused. Resume it first."),
        ("ended", Say((HELLO,)), "Thread 't' is ended: append is refused. Fork it to go on."),
        ("deleted", Label({}), "Thread 't' is deleted: label is refused. Only its events can be read."),
    ],
)
def test_a_refusal_says_what_was_asked_what_was_found_and_what_to_do(status: Status, intent: Intent, said: str) -> None:
    given(STARTED, *STATUSES[status]).when(intent).then_refused(
        ThreadDeletedError if status == "deleted" else ThreadStatusError, said
    )


@pytest.mark.parametrize("status", STATUSES)
def test_all_but_a_deleted_thread_can_be_read(status: Status) -> None:
    control = given(STARTED, *STATUSES[status]).control
    if status == "deleted":
        with pytest.raises(ThreadDeletedError, match="history is refused"):
            check_readable("t", control, "history")
    else:
        check_readable("t", control, "history")


# What each intent leads to


def test_starts_with_its_first_messages() -> None:
    source = Source(id=None, fields={"topic": None})
    intent = Start("Refund", {"a": 1}, {"b": None}, source, (HELLO, BYE))
    begun = ThreadStarted(title="Refund", labels={"a": 1}, metadata={"b": None}, source=source)
    counts = given().when(intent).then(begun, SAID, MessageAppended(message=BYE))
    assert counts == [0, 1, 2]


def test_a_fork_goes_on_counting_from_its_parent() -> None:
    intent = Branch("parent", 3, "ab", None, (BYE,))
    forked = ThreadForked(parent_id="parent", parent_version=3, parent_hash="ab")
    assert given(STARTED, SAID, SAID).when(intent).then(forked, MessageAppended(message=BYE)) == [2, 3]


def test_each_message_is_one_event() -> None:
    assert given(STARTED, SAID).when(Say((HELLO, HELLO))).then(SAID, SAID) == [2, 3]


@drawn(messages)
def test_a_message_is_recorded_as_it_was_said(message: Message) -> None:
    given(STARTED).when(Say((message,))).then(MessageAppended(message=message))


def test_a_checkpoint_names_the_newest_version_unless_told() -> None:
    given(STARTED, SAID).when(Checkpoint("here")).then(CheckpointMade(name="here", at=2))
    given(STARTED, SAID).when(Checkpoint("here", 1)).then(CheckpointMade(name="here", at=1))


def test_a_rewind_takes_the_count_of_where_it_goes() -> None:
    assert given(STARTED, SAID, SAID).when(Rewind(2, 1)).then(HistoryRewound(to=2)) == [1]


def test_what_is_no_message_leaves_the_count() -> None:
    for intent, outcome in INTENTS.values():
        if not isinstance(intent, Say | Rewind):
            assert given(STARTED, SAID, SAID).when(intent).then(outcome) == [2]


def test_a_checkpoints_name_is_taken_once_along_the_lineage() -> None:
    made = CheckpointMade(name="here", at=1)
    forked = ThreadForked(parent_id="p", parent_version=2, parent_hash="")
    given(STARTED, made).when(Checkpoint("here", 1)).then_refused(CheckpointExistsError, "'here', at version 1")
    given(STARTED, made, forked).when(Checkpoint("here")).then_refused(CheckpointExistsError)


@pytest.mark.parametrize("version", [-1, 0, 3, 10**30])
@pytest.mark.parametrize(
    "make",
    [lambda version: Checkpoint("here", version), lambda version: Rewind(version, 0)],
    ids=["checkpoint", "rewind"],
)
def test_versions_that_are_not_there_are_refused(version: int, make: Callable[[int], Intent]) -> None:
    given(STARTED, SAID).when(make(version)).then_refused(UnknownVersionError, "its versions are 1 to 2")


@pytest.mark.parametrize("name", ["", "12", "message:1", "2026-01-01", " a"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    given(STARTED).when(Checkpoint(name)).then_refused(InvalidNameError)


BAD: list[Any] = [float("nan"), float("-inf"), nested(101), "\ud800", {1: 2}, (1,), {"k": b""}, 1 << 20_000]


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize(
    "make",
    [
        lambda value: Start(labels={"k": value}),
        lambda value: Start(metadata={"k": [value]}),
        lambda value: Start(source=Source(id=value)),
        lambda value: Start(source=Source(fields={"k": value})),
        lambda value: Start(messages=(HELLO, Message.tool("c", value))),
        lambda value: Branch("p", 1, "", None, (Message.user("x", metadata={"k": value}),)),
        lambda value: Say((HELLO, Message(role="user", contents=(), source={"k": value}))),
        lambda value: Label({"k": value}),
    ],
    ids=["labels", "metadata", "source-id", "source", "first-messages", "branch", "say", "label"],
)
def test_content_that_would_not_come_back_equal_is_refused(make: Callable[[Any], Intent], value: Any) -> None:
    intent = make(value)
    before = given() if isinstance(intent, Start) else given(STARTED, SAID)
    before.when(intent).then_refused(InvalidContentError)


@pytest.mark.parametrize("text", ["\udfff", 5, b"x"])
@pytest.mark.parametrize("kind", [Start, Suspend, End, Delete, Branch, Redact])
def test_titles_and_reasons_are_text(kind: type[Any], text: Any) -> None:
    intents: dict[type[Any], Intent] = {
        Branch: Branch("p", 1, "", text),
        Redact: Redact(2, "", "", text),
    }
    intent = intents.get(kind) or kind(text)
    before = given() if kind is Start else given(STARTED, SAID)
    before.when(intent).then_refused(InvalidContentError)


def test_deciding_is_pure() -> None:
    control = given(STARTED, SAID).control
    shown = repr(control)
    for intent, _ in INTENTS.values():
        first: list[Decided] = decide("t", control, intent)
        assert decide("t", control, intent) == first
    assert repr(control) == shown
