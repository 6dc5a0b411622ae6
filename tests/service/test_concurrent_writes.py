"""Concurrent threads, services and processes on one conversation."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import ConflictError, ThreadExistsError, ThreadStatusError
from clew.domain.messages import Message
from clew.domain.ports import Submitted, Write
from clew.sync.threads import Thread

THREADS = 16
EACH = 12


def together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run ``work(number)`` in this many threads at once; raise the first error of any of them."""
    ready, failures = threading.Barrier(count), list[BaseException]()

    def start(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  # raised in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failures:
        raise failures[0]


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition set by another thread; the test's time limit ends a hopeless wait."""
    while not condition():
        time.sleep(0.001)


def check_all_messages(conversations: Conversations, thread: Thread, writers: int, each: int) -> None:
    """Check that each writer's messages are complete and in order, and that the counts match."""
    stored = [message.text for message in thread.history()]
    assert sorted(stored) == sorted(f"{writer} {number}" for writer in range(writers) for number in range(each))
    for writer in range(writers):
        own = [int(text.split()[1]) for text in stored if text.split()[0] == str(writer)]
        assert own == list(range(each))
    events = list(thread.events())
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    counted = 0
    for event, state in thread.replay():
        counted = len(state.messages)
        assert event.messages == counted, event
    assert thread.summary().messages == counted
    assert conversations.verify().first_bad is None


def test_sixteen_threads_lose_nothing_on_one_conversation(conversations: Conversations) -> None:
    thread = conversations.start_thread()

    def work(writer: int) -> None:
        for number in range(EACH):
            thread.append(Message.user(f"{writer} {number}"))

    together(work)
    assert thread.version == 1 + THREADS * EACH
    check_all_messages(conversations, thread, THREADS, EACH)


def test_sixteen_threads_share_commits(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread()
        log = conversations._core.log
        datastore = log.recorder.datastore  # type: ignore[attr-defined]  # the log is an application of the library
        before, submitted, submit = datastore._writer.commits, list[int](), log.submit

        def counting(write: Write) -> Submitted:
            submission = submit(write)
            submitted.append(1)  # the writer has it now
            return submission

        monkeypatch.setattr(log, "submit", counting)
        with datastore.lock.held():
            threads = [threading.Thread(target=thread.append, args=(Message.user("x"),)) for _ in range(THREADS)]
            for each in threads:
                each.start()
            until(lambda: len(submitted) == THREADS)
        for each in threads:
            each.join()
        assert thread.version == 1 + THREADS
        # One commit for the appends that the writer had taken before the lock, one for the rest.
        assert datastore._writer.commits - before <= 2


def test_exactly_one_of_sixteen_threads_wins_a_version(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    won: list[int] = []
    lost: list[tuple[str, int, int]] = []

    def work(writer: int) -> None:
        try:
            won.append(thread.append(Message.user(str(writer)), expected_version=1).version)
        except ConflictError as error:
            lost.append((error.stream, error.expected, error.actual))

    together(work)
    assert won == [2]
    assert lost == [(thread.id, 1, 2)] * (THREADS - 1)
    assert thread.version == 2


def test_exactly_one_of_sixteen_threads_starts_an_id(conversations: Conversations) -> None:
    won: list[int] = []

    def work(writer: int) -> None:
        try:
            conversations.start_thread(thread_id="wanted", messages=[Message.user(str(writer))])
        except ThreadExistsError:
            return
        won.append(writer)

    together(work)
    (winner,) = won
    assert [message.text for message in conversations.thread("wanted").history()] == [str(winner)]


def test_sixteen_threads_open_one_thread(conversations: Conversations) -> None:
    together(lambda writer: conversations.open_thread("shared").append(Message.user(f"{writer} 0")) and None)
    check_all_messages(conversations, conversations.thread("shared"), THREADS, 1)


def test_sixteen_threads_append_an_idempotency_key_once(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    versions: list[int] = []
    together(lambda _: versions.append(thread.append(Message.user("once"), idempotency_key="k").version))
    assert versions == [2] * THREADS
    assert thread.version == 2


def test_concurrent_appends_forks_rewinds_and_redactions_stay_consistent(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("first")])

    def work(writer: int) -> None:
        for number in range(4):
            message = thread.append(Message.user(f"{writer} {number}"))
            match writer % 4:
                case 0:
                    thread.rewind(to=message.version)
                case 1:
                    thread.fork(at=message.version).append(Message.user("in the fork"))
                case 2:
                    thread.redact(message)
                case _:
                    named: dict[str, Any] = {f"of {writer}": number}
                    thread.label(**named)

    together(work)
    for event, state in thread.replay():
        assert event.messages == len(state.messages)
    assert thread.version == 2 + THREADS * 4 + THREADS // 4 * 3 * 4
    assert sum(event.type == "message-redacted" for event in thread.events()) == THREADS
    assert conversations.verify().first_bad is None


def test_no_message_follows_the_end_in_a_race(conversations: Conversations) -> None:
    for _ in range(5):
        thread = conversations.start_thread()

        def work(writer: int, thread: Thread = thread) -> None:
            try:
                if writer == 3:
                    thread.end()
                else:
                    thread.append(Message.user(str(writer)))
            except ThreadStatusError:
                pass

        together(work)
        types = [event.type for event in thread.events()]
        assert types[-1] == "thread-ended"
        assert set(types[1:-1]) <= {"message-appended"}


def test_two_services_on_one_store_lose_nothing(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        one.start_thread(thread_id="shared")

        def work(writer: int) -> None:
            thread = (one, other)[writer % 2].thread("shared")
            for number in range(EACH):
                thread.append(Message.user(f"{writer} {number}"))
                if number % 4 == 0:
                    thread.label(writer=writer)

        together(work)
        check_all_messages(one, one.thread("shared"), THREADS, EACH)
        check_all_messages(other, other.thread("shared"), THREADS, EACH)


def test_exactly_one_of_two_services_wins_a_version(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        one.start_thread(thread_id="shared")
        for version in range(1, 8):
            outcomes: list[tuple[int, int] | int] = []

            def work(writer: int, version: int = version, outcomes: list[tuple[int, int] | int] = outcomes) -> None:
                try:
                    thread = (one, other)[writer % 2].thread("shared")
                    outcomes.append(thread.append(Message.user("x"), expected_version=version).version)
                except ConflictError as error:
                    outcomes.append((error.expected, error.actual))

            together(work, 4)
            assert sorted(outcomes, key=str) == [(version, version + 1)] * 3 + [version + 1]


PROCESS = """
import json, sys, threading
from clew import Conversations, Message
from clew.domain.errors import ConflictError

url, first, count, each = sys.argv[1], *map(int, sys.argv[2:])
conversations = Conversations.open(url)
thread = conversations.thread("shared")
won = []
print("ready", flush=True)
sys.stdin.readline()

def work(writer):
    for number in range(each):
        thread.append(Message.user(f"{writer} {number}"))
        thread.label(writer=writer)

threads = [threading.Thread(target=work, args=(writer,)) for writer in range(first, first + count)]
for one in threads:
    one.start()
for one in threads:
    one.join()
race = conversations.open_thread("race")
for version in range(1, each + 1):
    try:
        race.append(Message.user(str(first)), expected_version=version)
        won.append(version)
    except ConflictError as error:
        assert error.expected == version and error.actual > version, error
conversations.close()
print(json.dumps(won))
"""


def test_two_processes_lose_nothing_and_each_version_has_one_winner(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        conversations.start_thread(thread_id="shared")
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, shared_url, str(first), "4", str(EACH)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first in (0, 4)
        ]
        won = [version for each in run_together(processes) for version in each]
        check_all_messages(conversations, conversations.thread("shared"), 8, EACH)
        assert sorted(won) == list(range(1, EACH + 1))
        assert conversations.thread("race").version == 1 + EACH


def run_together(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """Start the work of all processes at once and return what each one printed."""
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    printed = [each.communicate()[0] for each in processes]
    assert [each.returncode for each in processes] == [0] * len(processes)
    return [json.loads(text) for text in printed]


@pytest.mark.parametrize("change", ["suspend", "end"])
def test_a_failed_start_on_an_existing_id_does_not_bypass_the_status(file_url: str, change: str) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread(thread_id="taken", messages=[Message.user("one")])
        getattr(thread, change)()
        outcomes: list[str] = []

        def start() -> None:
            try:
                conversations.start_thread(thread_id="taken", messages=[Message.user("x")] * 2)
            except ThreadExistsError:
                outcomes.append("exists")

        def append() -> None:
            try:
                thread.append(Message.user("not allowed"))
            except ThreadStatusError:
                outcomes.append("refused")

        core = conversations._core
        with core.log.recorder.datastore.lock.held():  # type: ignore[attr-defined]  # the log is an application
            starting = threading.Thread(target=start)
            starting.start()
            until(lambda: not core.log.recorder.datastore.queue.waiting)  # type: ignore[attr-defined]  # as above
            appending = threading.Thread(target=append)
            appending.start()
            appending.join(0.2)
        starting.join()
        appending.join()
        assert sorted(outcomes) == ["exists", "refused"]
        assert thread.version == 3
