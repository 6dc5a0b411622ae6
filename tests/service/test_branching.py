"""Checkpoints, forks, rewinds and edits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from eventsourcing.persistence import StoredEvent
from tests.service.settable_clock import SettableClock

from clew import Engine, Record
from clew.conversations import Conversations
from clew.domain.decider import Start
from clew.domain.errors import (
    CheckpointExistsError,
    ClewError,
    ConflictError,
    InvalidContentError,
    InvalidNameError,
    InvalidTimeError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadStatusError,
    UnknownCheckpointError,
    UnknownVersionError,
)
from clew.domain.events import Source, ThreadForked
from clew.domain.messages import FunctionCall, Message
from clew.infrastructure.recorder_ports import Append
from clew.service import thread_commands
from clew.service.effects import run
from clew.sync.threads import LocalThread


@pytest.fixture
def thread(conversations: Conversations) -> LocalThread:
    """Versions 2 to 5 are the messages one, two, three and four."""
    return conversations.start_thread(
        "Count", thread_id="counted", labels={"topic": "numbers"}, metadata={"n": 4}, messages=counted(1, 4)
    )


WORDS = ["zero", "one", "two", "three", "four", "five", "six"]


def counted(first: int, last: int) -> list[Message]:
    return [Message.user(word) for word in WORDS[first : last + 1]]


def texts(thread: LocalThread, **at: Any) -> list[str]:
    return [message.text for message in thread.history(**at)]


# Checkpoints


def test_a_checkpoint_names_the_newest_or_a_given_version(thread: LocalThread) -> None:
    assert thread.checkpoint("now") == 5
    assert thread.checkpoint("then", at=3) == 3
    assert thread.checkpoint("the same", at="then", actor="user:1") == 3
    assert thread.summary().checkpoints == {"now": 5, "then": 3, "the same": 3}
    assert texts(thread, at="then") == ["one", "two"]
    assert thread.state(at=6).checkpoints == {"now": 5}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "12",
        "0007",
        "message:3",
        "2024-05-01",
        "2024-05-01T10:00:00+00:00",
        "20240501",
        " x",
        "x\n",
        "x" * 201,
        "\ud800",
        7,
        None,
    ],
)
def test_refuses_a_checkpoint_name_that_looks_like_another_reference(thread: LocalThread, name: Any) -> None:
    with pytest.raises(InvalidNameError, match="checkpoint name"):
        thread.checkpoint(name)
    assert thread.version == 5


@pytest.mark.parametrize("name", ["message:", "message:x", "v7", "-7", "7.", "Größe", "x" * 200, "before refund"])
def test_accepts_any_other_checkpoint_name(thread: LocalThread, name: str) -> None:
    thread.checkpoint(name)
    assert texts(thread.fork(at=name)) == ["one", "two", "three", "four"]


def test_refuses_a_checkpoint_name_that_exists_in_the_lineage(thread: LocalThread) -> None:
    thread.checkpoint("here")
    fork = thread.fork()
    with pytest.raises(CheckpointExistsError, match="at version 5"):
        thread.checkpoint("here", at=2)
    with pytest.raises(CheckpointExistsError):
        fork.checkpoint("here")
    thread.checkpoint("later")
    assert fork.checkpoint("later") == 7


def test_a_fork_has_only_the_checkpoints_before_its_cut(thread: LocalThread) -> None:
    thread.checkpoint("early", at=3)
    before, after = thread.fork(at=5), thread.fork(at=6)
    assert before.summary().checkpoints == {}
    assert after.summary().checkpoints == {"early": 3}
    with pytest.raises(UnknownCheckpointError, match="It has none"):
        before.history(at="early")
    assert before.checkpoint("early") == 6


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (0, UnknownVersionError),
        (6, UnknownVersionError),
        ("nowhere", UnknownCheckpointError),
        (True, UnknownVersionError),
    ],
)
def test_refuses_a_missing_version(thread: LocalThread, at: Any, error: type[Exception]) -> None:
    for use in (lambda: thread.checkpoint("x", at=at), lambda: thread.fork(at=at), lambda: thread.rewind(to=at)):
        with pytest.raises(error):
            use()
    assert thread.version == 5


# Forks


def test_forks_at_a_version_a_checkpoint_a_time_or_a_message(
    conversations: Conversations, clock: SettableClock
) -> None:
    thread = conversations.start_thread(messages=counted(1, 2))
    then = clock.move(1)
    thread.append(counted(3, 3))
    thread.checkpoint("three", at=4)
    clock.move(1)
    thread.append(counted(4, 4))
    assert texts(thread.fork()) == ["one", "two", "three", "four"]
    assert texts(thread.fork(at=2)) == ["one"]
    assert texts(thread.fork(at="three")) == ["one", "two", "three"]
    assert texts(thread.fork(at=then)) == ["one", "two", "three"]
    assert texts(thread.fork(at_message=2)) == ["one", "two"]
    assert texts(thread.fork(at_message=0)) == []
    with pytest.raises(UnknownVersionError, match="Give one of them"):
        thread.fork(at=2, at_message=2)
    with pytest.raises(InvalidTimeError, match="no offset"):
        thread.fork(at=then.replace(tzinfo=None))


def test_a_fork_costs_one_event_and_ignores_later_changes_of_its_parent(
    conversations: Conversations, thread: LocalThread
) -> None:
    fork = thread.fork(at=3, title="What if", actor="user:9")
    thread.append(counted(5, 5))
    thread.rewind(to=1)
    assert conversations.verify().events == 5 + 1 + 2
    (event,) = list(fork.events(after=3))
    cut = list(thread.events(at=3))[-1]
    assert cut.hash is not None
    assert event.data == ThreadForked(
        parent_id="counted", parent_version=3, parent_hash=cut.hash.hex(), title="What if"
    )
    assert (event.version, event.actor, fork.version) == (4, "user:9", 4)
    assert texts(fork) == ["one", "two"]
    fork.append(Message.user("else"))
    assert texts(fork) == ["one", "two", "else"]
    assert texts(thread) == []


def test_a_fork_inherits_title_labels_and_metadata_at_the_cut(thread: LocalThread) -> None:
    thread.label(topic="words")
    early, late = thread.fork(at=5).summary(), thread.fork(title="Mine").summary()
    assert (early.title, early.labels, early.metadata) == ("Count", {"topic": "numbers"}, {"n": 4})
    assert (late.title, late.labels, late.metadata) == ("Mine", {"topic": "words"}, {"n": 4})


def test_a_fork_names_the_ancestor_that_owns_the_cut(thread: LocalThread) -> None:
    fork = thread.fork(at=4)
    fork.append(counted(5, 5))
    inside, outside = fork.fork(at=3).summary(), fork.fork(at=5).summary()
    assert (inside.parent_id, inside.forked_at) == ("counted", 3)
    assert (outside.parent_id, outside.forked_at) == (fork.id, 5)


@pytest.mark.parametrize("change", ["suspend", "end"])
def test_a_fork_of_a_suspended_or_ended_thread_is_active(thread: LocalThread, change: str) -> None:
    getattr(thread, change)()
    for fork in (thread.fork(), thread.fork(at=3), thread.edit(3, "else")):
        assert fork.status == "active"
        fork.append(counted(5, 5))


def test_refuses_to_fork_a_deleted_thread_but_its_forks_stay_usable(thread: LocalThread) -> None:
    fork = thread.fork(at=3)
    thread.delete()
    refused: list[Callable[[], object]] = [
        thread.fork,
        lambda: thread.fork(at=99),
        lambda: thread.edit(3, "x"),
        lambda: thread.edit(1, "x"),
    ]
    for use in refused:
        with pytest.raises(ThreadDeletedError):
            use()
    fork.append(counted(5, 5))
    assert texts(fork) == ["one", "two", "five"]
    assert texts(fork.fork(at=2)) == ["one"]
    assert fork.verify().first_bad is None


def test_refuses_a_fork_with_an_id_in_use(conversations: Conversations, thread: LocalThread) -> None:
    thread.end()
    for taken in ("counted", thread.fork(thread_id="free").id):
        with pytest.raises(ThreadExistsError, match=taken):
            thread.fork(thread_id=taken)
        with pytest.raises(ThreadExistsError):
            thread.edit(3, "x", thread_id=taken)
    assert conversations.verify().events == 7
    assert thread.status == "ended"


def test_a_fork_of_an_imported_thread_is_not_imported(conversations: Conversations) -> None:
    intent = Start(metadata={"a": 1}, source=Source(id="task-1", fields={"x": 1}), messages=tuple(counted(1, 2)))
    imported = conversations.thread(run(thread_commands.start(conversations._core, "imported", intent, None)))
    assert (imported.summary().imported, imported.summary().metadata) == (True, {"a": 1, "source_id": "task-1"})
    for fork in (imported.fork(), imported.fork(at=2), imported.fork().fork()):
        assert (fork.summary().imported, fork.summary().metadata) == (False, {"a": 1})


# Rewinds


def test_rewinds_back_and_then_forward_to_abandoned_messages(thread: LocalThread) -> None:
    assert thread.rewind(to=3) == 6
    assert texts(thread) == ["one", "two"]
    thread.append(counted(5, 5))
    assert texts(thread) == ["one", "two", "five"]
    assert thread.summary().messages == 3
    assert thread.rewind(to=5, actor="user:1") == 8
    assert texts(thread) == ["one", "two", "three", "four"]
    assert thread.summary().messages == 4
    assert thread.rewind(to=7) == 9
    assert texts(thread) == ["one", "two", "five"]
    assert [texts(thread, at=version) for version in (6, 7, 8)] == [
        ["one", "two"],
        ["one", "two", "five"],
        ["one", "two", "three", "four"],
    ]
    assert [m.version for m in thread.history()] == [2, 3, 7]


def test_rewinds_to_a_checkpoint_or_a_time(conversations: Conversations, clock: SettableClock) -> None:
    thread = conversations.start_thread(messages=counted(1, 2))
    then = clock.move(1)
    clock.move(1)
    thread.checkpoint("one", at=2)
    thread.append(counted(3, 3))
    thread.rewind(to="one")
    assert texts(thread) == ["one"]
    thread.rewind(to=then)
    assert texts(thread) == ["one", "two"]
    with pytest.raises(UnknownVersionError, match="to= is missing"):
        thread.rewind(to=None)


def test_forks_at_a_version_that_was_abandoned(thread: LocalThread) -> None:
    thread.rewind(to=2)
    thread.append(counted(5, 5))
    assert texts(thread.fork(at=5)) == ["one", "two", "three", "four"]
    assert texts(thread.fork(at=6)) == ["one"]
    assert texts(thread.fork()) == ["one", "five"]


def test_rewinds_a_fork_into_its_ancestors(thread: LocalThread) -> None:
    fork = thread.fork(at=4)
    fork.append(counted(5, 5))
    fork.rewind(to=2)
    fork.append(counted(6, 6))
    assert texts(fork) == ["one", "six"]
    assert texts(fork.fork()) == ["one", "six"]
    assert texts(thread) == ["one", "two", "three", "four"]


def test_rewinds_a_suspended_but_not_an_ended_thread(thread: LocalThread) -> None:
    thread.suspend()
    thread.rewind(to=3)
    thread.end()
    with pytest.raises(ThreadStatusError, match="ended: rewind is refused"):
        thread.rewind(to=2)
    thread.delete()
    for to in (2, 99, "nowhere"):
        with pytest.raises(ThreadDeletedError):
            thread.rewind(to=to)


def test_a_rewind_affects_only_messages(thread: LocalThread) -> None:
    thread.label(topic="words")
    thread.checkpoint("here")
    thread.suspend()
    thread.rewind(to=2)
    summary = thread.summary()
    assert (summary.status, summary.labels, summary.checkpoints) == ("suspended", {"topic": "words"}, {"here": 6})


def test_counts_messages_after_a_rewind_to_an_unknown_event_type(
    conversations: Conversations, thread: LocalThread
) -> None:
    stream = "default/thread/counted"
    recorder = cast("Any", conversations._core.log).recorder
    future: Any = StoredEvent  # the library does not type its constructor
    recorder.submit(Append([future(stream, 6, "seen-in-the-future", b"\x63 whatever")])).result()
    thread.append(counted(5, 5))
    assert thread.summary().messages == 5
    thread.rewind(to=6)
    assert texts(thread) == ["one", "two", "three", "four"]
    assert thread.summary().messages == 4


# Edits


def test_edits_a_message_by_forking_before_it(thread: LocalThread) -> None:
    message = thread.history().messages[2]
    for target in (message, 4):
        branch = thread.edit(target, "drei", title="German", actor="user:1")
        assert texts(branch) == ["one", "two", "drei"]
        assert branch.summary().title == "German"
        assert [event.actor for event in branch.events(after=3)] == ["user:1", "user:1"]
    assert texts(thread) == ["one", "two", "three", "four"]
    assert thread.version == 5


def test_an_edit_with_only_text_keeps_role_and_author(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    call = FunctionCall(call_id="1", name="find", arguments="{}")
    thread.append([Message.assistant("Look.", calls=[call], author="Joker"), Message.tool("1", 7)])
    edited = thread.edit(2, "Wait.").history().messages[-1]
    assert (edited.role, edited.author, edited.text, len(edited.contents)) == ("assistant", "Joker", "Wait.", 1)
    replaced = thread.edit(2, Message.user("Something else.", author="Kim")).history().messages[-1]
    assert (replaced.role, replaced.author) == ("user", "Kim")


def test_edits_an_inherited_message_an_abandoned_one_and_a_redacted_one(thread: LocalThread) -> None:
    fork = thread.fork(at=4)
    branch = fork.edit(3, "zwei")
    assert (texts(branch), branch.summary().parent_id) == (["one", "zwei"], "counted")
    thread.rewind(to=2)
    assert texts(thread.edit(5, "vier")) == ["one", "two", "three", "vier"]
    thread.redact(3)
    redacted = thread.edit(3, "again")
    assert (texts(redacted), redacted.history().messages[1].role) == (["one", "again"], "user")


@pytest.mark.parametrize(
    ("message", "new", "error"),
    [
        (1, "x", NotRedactableError),
        (0, "x", UnknownVersionError),
        (6, "x", UnknownVersionError),
        ("three", "x", NotRedactableError),
        (True, "x", NotRedactableError),
        (None, "x", NotRedactableError),
        (3, 7, InvalidContentError),
        (3, "lone \ud800", InvalidContentError),
    ],
)
def test_edits_only_messages(
    conversations: Conversations, thread: LocalThread, message: Any, new: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        thread.edit(message, new)
    assert conversations.verify().threads == 1


# One commit


def test_a_fork_begins_with_labels_metadata_messages_and_records(thread: LocalThread) -> None:
    then: list[Message | Record] = [Record("step", 1, key="main"), Message.user("five")]
    fork = thread.fork(at=3, labels={"tier": 2, "topic": None}, metadata={"m": 1}, then=then, actor="app")
    assert texts(fork) == ["one", "two", "five"]
    assert [each.data for each in fork.records("step")] == [1]
    assert fork.state().labels == fork.summary().labels == {"tier": 2}
    assert fork.state().metadata == fork.summary().metadata == {"m": 1}
    events = list(fork.events(after=3))
    assert [each.type for each in events] == ["thread-forked", "thread-labelled", "record-appended", "message-appended"]
    assert [each.messages for each in events] == [2, 2, 2, 3]
    assert {each.actor for each in events} == {"app"}
    inherited = fork.fork(then=Message.user("six"))
    assert (inherited.summary().labels, inherited.summary().metadata) == ({"tier": 2}, {"m": 1})
    assert texts(inherited) == ["one", "two", "five", "six"]
    assert thread.summary().metadata == thread.fork().summary().metadata == {"n": 4}
    assert thread.fork(metadata={}).summary().metadata == {}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"then": "x"}, InvalidContentError),
        ({"then": [Message.user("x"), 1]}, InvalidContentError),
        ({"then": [Message.user("x"), Record("step", float("nan"))]}, InvalidContentError),
        ({"then": [Message.user("x", metadata={"k": float("nan")})]}, InvalidContentError),
        ({"labels": ["topic"]}, InvalidContentError),
        ({"labels": {"x" * 201: 1}}, InvalidNameError),
        ({"metadata": [1]}, InvalidContentError),
        ({"metadata": {"k": float("nan")}}, InvalidContentError),
    ],
    ids=range(8),
)
def test_a_fork_that_is_refused_leaves_no_thread(
    conversations: Conversations, thread: LocalThread, options: dict[str, Any], error: type[ClewError]
) -> None:
    with pytest.raises(error):
        thread.fork(thread_id="fork", **options)
    assert [each.id for each in conversations.threads()] == ["counted"]


def test_a_rewind_appends_in_the_same_commit(thread: LocalThread) -> None:
    assert thread.rewind(3, then=[Message.user("five"), Record("step", 1)], expected_version=5, actor="app") == 6
    assert texts(thread) == ["one", "two", "five"]
    assert [each.version for each in thread.records()] == [8]
    assert [each.actor for each in thread.events(after=5)] == ["app"] * 3
    assert thread.rewind(5, then=Message.user("six"), abandon_run=True) == 9
    assert texts(thread) == ["one", "two", "three", "four", "six"]


def test_a_rewind_that_is_refused_changes_nothing(thread: LocalThread) -> None:
    with pytest.raises(ConflictError):
        thread.rewind(3, then=Message.user("x"), expected_version=4)
    with pytest.raises(ConflictError):
        thread.rewind(3, expected_version=4, abandon_run=True)
    with pytest.raises(UnknownVersionError):
        thread.rewind(3, expected_version="5")  # type: ignore[arg-type]
    with pytest.raises(InvalidContentError):
        thread.rewind(3, then=[Message.user("x"), Record("step", float("nan"))])
    with pytest.raises(InvalidContentError):
        thread.rewind(3, then=["x"])  # type: ignore[list-item]
    thread.suspend()
    with pytest.raises(ThreadStatusError):
        thread.rewind(3, then=Message.user("x"))
    assert thread.version == 6
    assert texts(thread) == ["one", "two", "three", "four"]
    thread.rewind(3)
    assert texts(thread) == ["one", "two"]


@pytest.mark.anyio
async def test_an_engine_rewinds_and_forks_in_one_commit(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(messages=counted(1, 2))
        version = await thread.rewind(2, then=[Message.user("three")], expected_version=3)
        fork = await thread.fork(at=version, labels={"a": 1}, then=[Message.user("four")])
        assert [message.text for message in await thread.history()] == ["one", "three"]
        assert [message.text for message in await fork.history()] == ["one", "four"]
        assert (await fork.summary()).labels == {"a": 1}
