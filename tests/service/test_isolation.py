"""Arguments and results are isolated from the service's caches; a forked process starts with empty caches."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY
from clew.domain.errors import InvalidContentError, NotRedactableError, UnknownVersionError
from clew.domain.history import ThreadState, evolve
from clew.domain.messages import Message, Text

HELLO = Message.user("Hello")


def test_changing_a_result_changes_nothing_stored(conversations: Conversations) -> None:
    thread = conversations.start_thread(metadata={"a": {"b": 1}}, labels={"c": [1]})
    thread.checkpoint("here")
    thread.append(Message.user("Hi", metadata={"m": {"n": 1}}))
    for result in (thread.summary(), thread.state(), thread.state(at=2), list(thread.replay())[-1][1]):
        result.metadata["a"]["b"] = 2  # type: ignore[index, call-overload]  # JSON of any shape
        result.labels["c"].append(2)  # type: ignore[union-attr]  # the same
        result.checkpoints["other"] = 1
    metadata: Any = thread.history().messages[-1].metadata
    metadata["m"]["n"] = 2
    thread.append([HELLO] * (SNAPSHOT_EVERY + 1))  # a snapshot is stored now
    state = thread.state()
    assert (state.metadata, state.labels, state.checkpoints) == ({"a": {"b": 1}}, {"c": [1]}, {"here": 1})
    assert thread.history(at_message=1).messages[0].metadata == {"m": {"n": 1}}


def test_changing_an_argument_changes_nothing_stored(conversations: Conversations) -> None:
    metadata: Any = {"a": {"b": 1}}
    labels: Any = {"c": [1]}
    thread = conversations.start_thread(metadata=metadata, labels=labels)
    more: Any = [1]
    thread.label(d=more)
    for argument in (metadata["a"], labels):
        argument["x"] = 1
    labels["c"].append(2)
    more.append(2)
    thread.append(HELLO)
    assert thread.summary().metadata == {"a": {"b": 1}}
    assert thread.summary().labels == {"c": [1], "d": [1]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "robot"},
        {"contents": [Text(text="a list")]},
        {"contents": ("words",)},
        {"contents": (Text(text="x").model_copy(update={"text": 5}),)},
        {"author": 5},
        {"metadata": None},
    ],
    ids=str,
)
def test_refuses_an_invalid_copy_of_a_message(conversations: Conversations, wrong: dict[str, Any]) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidContentError):
        thread.append(HELLO.model_copy(update=wrong))
    assert (thread.version, len(thread.history())) == (1, 0)


def test_replay_equals_evolving_the_events(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[HELLO] * 3)
    thread.rewind(to=2)
    thread.append(Message.user("Again"))
    thread.rewind(to=4)
    state = ThreadState()
    for event, replayed in thread.replay():
        state = evolve(state, event)
        assert replayed == state


def test_a_forked_process_appends_while_its_parents_threads_append(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    done = threading.Event()

    def work() -> None:
        mine = conversations.start_thread()
        while not done.is_set():
            mine.append(HELLO)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    thread.append(HELLO)
                    status = 0 if len(thread.history()) else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        for each in threads:
            each.join()
    assert conversations.verify().first_bad is None


def test_refuses_to_redact_or_edit_a_message_of_another_thread(conversations: Conversations) -> None:
    one, two = conversations.start_thread(), conversations.start_thread()
    mine = one.append(Message.user("secret of one"))
    two.append(Message.user("precious of two"))
    for use in (lambda: two.redact(mine), lambda: two.edit(mine, "else")):
        with pytest.raises(NotRedactableError, match="belongs to another thread"):
            use()
    assert two.history().messages[0].text == "precious of two"
    fork = one.fork()
    fork.redact(mine)
    assert one.history().messages[0].redacted


def test_refuses_an_expected_version_that_is_not_a_number(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    wrong: Any = "1"
    with pytest.raises(UnknownVersionError, match="not a version"):
        thread.append(HELLO, expected_version=wrong)


def test_accepts_one_path_or_id_without_a_list(conversations: Conversations, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text('{"id": "a", "messages": [{"role": "user", "content": "Hello"}]}')
    assert conversations.import_files(str(path)).threads == 1
    (summary,) = conversations.threads()
    assert [each["id"] for each in conversations.export(summary.id)] == ["a"]


def test_redacted_text_is_in_no_file_after_the_redaction_returns(file_url: str, tmp_path: Path) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread()
        for number in range(10):
            message = thread.append(Message.user(f"canary {number}"), idempotency_key=f"key {number}")
            assert any(b"canary" in each.read_bytes() for each in tmp_path.iterdir())
            thread.redact(message)
            assert [each.name for each in tmp_path.iterdir() if b"canary" in each.read_bytes()] == []
