"""Many threads, services and processes on one conversation."""

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
    """Run ``work(number)`` in so many threads at once; what one of them raises is raised here."""
    ready, failures = threading.Barrier(count), list[BaseException]()

    def begin(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  # raised in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failures:
        raise failures[0]


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to get somewhere; the time limit of the test ends a wait in vain."""
    while not condition():
        time.sleep(0.001)


def holds_everything(conversations: Conversations, thread: Thread, writers: int, each: int) -> None:
    """Every message of every writer is there, in its writer's order, and the counts say so."""
    said = [message.text for message in thread.history()]
    assert sorted(said) == sorted(f"{writer} {number}" for writer in range(writers) for number in range(each))
    for writer in range(writers):
        own = [int(text.split()[1]) for text in said if text.split()[0] == str(writer)]
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
    holds_everything(conversations, thread, THREADS, EACH)


def test_sixteen_threads_share_commits(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread()
        log = conversations._core.log
        datastore = log.recorder.datastore  # type: ignore[attr-defined]  # the log is an application of the library's
        before, submitted, submit = datastore._writer.commits, list[int](), log.submit

        def counting(write: Write) -> Submitted:
            found = submit(write)
            submitted.append(1)  # only then is it the writer's
            return found

        monkeypatch.setattr(log, "submit", counting)
        with datastore.exclusive():
            threads = [threading.Thread(target=thread.append, args=(Message.user("x"),)) for _ in range(THREADS)]
            for each in threads:
                each.start()
            until(lambda: len(submitted) == THREADS)
        for each in threads:
            each.join()
        assert thread.version == 1 + THREADS
        # What the writer had taken when it met the lock, and the rest.
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
    holds_everything(conversations, conversations.thread("shared"), THREADS, 1)


def test_says_a_key_once_when_sixteen_threads_say_it(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    versions: list[int] = []
    together(lambda _: versions.append(thread.append(Message.user("once"), idempotency_key="k").version))
    assert versions == [2] * THREADS
    assert thread.version == 2


def test_appends_forks_rewinds_and_redactions_of_many_threads_agree_in_the_end(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("first")])

    def work(writer: int) -> None:
        for number in range(4):
            said = thread.append(Message.user(f"{writer} {number}"))
            match writer % 4:
                case 0:
                    thread.rewind(to=said.version)
                case 1:
                    thread.fork(at=said.version).append(Message.user("in the fork"))
                case 2:
                    thread.redact(said)
                case _:
                    named: dict[str, Any] = {f"of {writer}": number}
                    thread.label(**named)

    together(work)
    for event, state in thread.replay():
        assert event.messages == len(state.messages)
    assert thread.version == 2 + THREADS * 4 + THREADS // 4 * 3 * 4
    assert sum(message.type == "message-redacted" for message in thread.events()) == THREADS
    assert conversations.verify().first_bad is None


def test_nothing_is_said_after_the_end_when_many_threads_race_for_it(conversations: Conversations) -> None:
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
        holds_everything(one, one.thread("shared"), THREADS, EACH)
        holds_everything(other, other.thread("shared"), THREADS, EACH)


def test_exactly_one_of_two_services_wins_a_version(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        one.start_thread(thread_id="shared")
        for version in range(1, 8):
            found: list[tuple[int, int] | int] = []

            def work(writer: int, version: int = version, found: list[tuple[int, int] | int] = found) -> None:
                try:
                    thread = (one, other)[writer % 2].thread("shared")
                    found.append(thread.append(Message.user("x"), expected_version=version).version)
                except ConflictError as error:
                    found.append((error.expected, error.actual))

            together(work, 4)
            assert sorted(found, key=str) == [(version, version + 1)] * 3 + [version + 1]


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


def test_two_processes_on_one_store_lose_nothing_and_share_the_versions_that_they_race_for(shared_url: str) -> None:
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
        won = [version for each in raced(processes) for version in each]
        holds_everything(conversations, conversations.thread("shared"), 8, EACH)
        assert sorted(won) == list(range(1, EACH + 1))
        assert conversations.thread("race").version == 1 + EACH


def raced(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """Let the processes begin at once, and give what each printed at the end."""
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
def test_a_failed_start_on_a_taken_id_opens_no_way_around_the_status(file_url: str, change: str) -> None:
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
        with core.log.recorder.datastore.exclusive():  # type: ignore[attr-defined]  # the log is an application
            starting = threading.Thread(target=start)
            starting.start()
            until(lambda: not core.log.recorder.datastore.queue._waiting.qsize())  # type: ignore[attr-defined]  # as above
            appending = threading.Thread(target=append)
            appending.start()
            appending.join(0.2)
        starting.join()
        appending.join()
        assert sorted(outcomes) == ["exists", "refused"]
        assert thread.version == 3
