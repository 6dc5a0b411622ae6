"""Readers that tail a PostgreSQL store see every event once and in order, with concurrent transactions and cuts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.infrastructure.postgres import tailing
from tests.infrastructure.postgres.tailing import Seen, follow, follow_until, insert, transaction, write
from tests.infrastructure.recorder_steps import PATIENCE, append, event, fill, recomputed_hashes, run_threads
from tests.infrastructure.waiting_contract import HANDED_OVER, Woken, hand_over, wait_for_polls
from tests.servers.postgres_server import Databases, ask

from clew import Conversations, Message
from clew.domain.errors import ProjectionBehindError
from clew.domain.ports import Appended, Key, Row
from clew.infrastructure.postgres import datastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import Append

ROOT = Path(__file__).parent.parent.parent.parent

THREAD_WRITERS = [f"thread-{number}" for number in range(8)]
PROGRAM_WRITERS = [[f"program-{program}-{number}" for number in range(4)] for program in range(2)]

END = "the-end"
"""The stream of the last event."""


@pytest.fixture
def recorder(postgres: str) -> Iterator[PostgresRecorder]:
    recorder = PostgresRecorder.open(postgres)
    yield recorder
    recorder.close()


# Transactions with a low id that commit late


@pytest.mark.parametrize("ends", ["committed", "rolled back", "cut"])
def test_readers_stop_below_an_open_transaction(
    postgres: str, recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(datastore, "OWN_WAIT", 0.05)
    first = fill(recorder, "first", 1).positions[0]
    with transaction(postgres) as late:
        insert(late, "late")
        append(recorder, event("above", 1))
        append(recorder, event("above", 2), key=Key("above", "k", b""))
        tailing.fork(recorder, "above", 1, "fork")
        assert [seen[1] for seen in tailing.page(recorder, 0)] == ["first"]
        assert [info.name for info in recorder.streams(limit=9)] == ["first"]
        assert recorder.last_position() == first
        assert recorder.rows_at(append(recorder, event("above", 3)).positions) == []
        # A read by the stream's name sees its events.
        assert [row.version for row in recorder.lineage("above")] == [1, 2, 3]
        if ends == "committed":
            late.commit()
        elif ends == "rolled back":
            late.rollback()
        else:
            ask(postgres, f"SELECT pg_terminate_backend({late.info.backend_pid}, 5000)")
        late_events = [("late", 1)] if ends == "committed" else []
        seen = tailing.page(recorder, 0)
        assert [each[1:] for each in seen] == [
            ("first", 1), *late_events, ("above", 1), ("above", 2), ("fork", 2), ("above", 3)
        ]  # fmt: skip
        assert [each[0] for each in seen] == sorted({each[0] for each in seen})


def test_a_reader_of_older_events_does_not_wait_for_newer_ones(
    postgres: str, recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projection reads events in its own transaction, and another thread appends meanwhile."""
    monkeypatch.setattr(datastore, "OWN_WAIT", math.inf)
    positions = fill(recorder, "x/a", 2).positions
    last = recorder.last_position()
    pages: list[list[Row]] = []

    def read() -> None:
        pages.append(recorder.rows(after=0, limit=9, upto=last))
        pages.append(recorder.rows(after=0, limit=9, upto=last, prefix="x/"))
        pages.append(recorder.rows_at(positions))

    with transaction(postgres) as late:
        insert(late, "late")
        append(recorder, event("x/a", 3))
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(PATIENCE)
        while_open = [*pages]
    reader.join(PATIENCE)
    assert [[row.position for row in page] for page in while_open] == [list(positions)] * 3


def test_a_subscription_waits_for_the_lowest_of_several_open_transactions(
    postgres: str, recorder: PostgresRecorder
) -> None:
    seen: list[Seen] = []
    reader = threading.Thread(target=lambda: seen.extend(follow(recorder, 5)))
    with ExitStack() as transactions:
        late = [transactions.enter_context(transaction(postgres)) for _ in range(3)]
        reader.start()
        fill(recorder, "above", 2)
        for number in (1, 2, 0):  # the lowest commits last
            insert(late[number], f"late-{number}")
            late[number].commit()
        reader.join(PATIENCE)
    assert [each[1:] for each in seen] == [("late-0", 1), ("late-1", 1), ("late-2", 1), ("above", 1), ("above", 2)]


def test_no_wake_up_is_lost_while_older_transactions_delay_what_readers_see(
    postgres: str, recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listeners of a commit are woken before its events are visible in position order, and then again."""
    monkeypatch.setattr(datastore, "OWN_WAIT", 0.002)
    ended = threading.Event()

    def delay() -> None:
        while not ended.is_set():
            with transaction(postgres):
                ended.wait(0.05)

    delaying = threading.Thread(target=delay)
    delaying.start()
    try:
        run_threads([lambda name=name: hand_over(recorder, recorder, name, 25) for name in HANDED_OVER[:2]])  # type: ignore[misc] # a bound loop variable
    finally:
        ended.set()
        delaying.join(PATIENCE)


def test_no_wake_up_is_lost_if_it_is_interrupted(recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = recorder.datastore.listeners
    told: list[bool] = []
    monkeypatch.setattr(listeners, "_join_poller", lambda: None)  # nothing else wakes
    end = recorder.listen(lambda: told.append(True), "a")

    def interrupt(_: object) -> None:
        monkeypatch.undo()
        listeners.notify_visible(1, [(1, "a")])  # the poller sees the commit, and leaves it to this thread
        assert not told
        raise KeyboardInterrupt

    monkeypatch.setattr(listeners, "notify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        recorder.datastore._notify([(Append([event("a", 1)]), Appended((1,), (b"",), (1,)))])
    end()
    assert told


def test_a_reader_that_does_not_wait_asks_to_be_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a crash, when the server assigns lower transaction ids again, and after it has waited in vain."""
    monkeypatch.setattr(datastore, "OWN_WAIT", 0.01)
    now, overtaken = [100], list[int]()
    horizon = datastore.Horizon(lambda: now[0], overtaken.append)
    horizon.newest = 50
    horizon.await_own(80)
    assert overtaken == []
    now[0] = 40
    horizon.await_own(80)
    assert overtaken == [], "it has seen a higher horizon"
    horizon.lower(40)
    horizon.await_own(80)
    horizon.await_own(80)
    assert overtaken == [50, 50]
    now[0] = 60
    horizon.newest = 55
    horizon.await_own(80)
    assert overtaken == [50, 50]


def test_the_end_of_another_transaction_wakes_no_listener(postgres: str, recorder: PostgresRecorder) -> None:
    woken = Woken(recorder, "", "a")
    for _ in range(5):
        with transaction(postgres) as other:
            other.execute("CREATE TEMPORARY TABLE t ON COMMIT DROP AS SELECT 1")
            other.commit()
        wait_for_polls(recorder)
    append(recorder, event("a", 1))
    woken.wait_for({"": 1, "a": 1})
    woken.end()


def test_a_transaction_in_another_database_holds_readers_back_without_loss(
    databases: Databases, recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datastore, "OWN_WAIT", 0.05)
    with databases.one() as other:
        with transaction(other) as open_transaction:
            open_transaction.execute("CREATE TABLE t AS SELECT 1")
            fill(recorder, "a", 3)
            assert tailing.page(recorder, 0) == []
            open_transaction.commit()
        assert [each[1:] for each in tailing.page(recorder, 0)] == [("a", 1), ("a", 2), ("a", 3)]


def test_a_service_waits_for_its_own_appends_while_another_append_stays_open(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datastore, "OWN_WAIT", 0.05)
    with Conversations.open(postgres) as conversations:
        with transaction(postgres) as late:
            conversations.start_thread(thread_id="t", messages=[Message.user("a parcel")])
            with pytest.raises(ProjectionBehindError, match="was not reached within"):
                conversations.wait(timeout=0.1)
            late.commit()
        conversations.wait(timeout=PATIENCE)
        assert len(conversations.search("parcel")) == 1


# Sixteen writers and four readers


class Progress:
    """The number of successful appends, which other threads wait for, and the final number of events."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.written = threading.Event()
        self._ended = False
        self._count = 0
        self._changed = threading.Condition()

    def notify(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> bool:
        """Wait for more appends. False if the writers have ended."""
        with self._changed:
            target = self._count + count
            assert self._changed.wait_for(lambda: self._ended or self._count >= target, PATIENCE)
            return not self._ended

    def is_complete(self, seen: list[Seen]) -> bool:
        """Whether a reader has seen all events."""
        return self.written.is_set() and len(seen) >= self.total


def commit_late(url: str, progress: Progress) -> None:
    """Run transactions with a low id. Every second one commits late; the others are rolled back."""
    number = 0
    while progress.wait_for_more(1):
        with transaction(url) as late:
            progress.wait_for_more(10)
            insert(late, f"late-{number}")
            if number % 2 == 0:
                late.commit()
                progress.total += 1
        number += 1


def hold(url: str, progress: Progress, *statements: str) -> None:
    while progress.wait_for_more(1):
        with transaction(url) as open_transaction:
            progress.wait_for_more(10)
            for statement in statements:
                open_transaction.execute(statement.encode())


def cut(url: str, progress: Progress, application: str) -> None:
    """Close the connections of the application from time to time."""
    while progress.wait_for_more(40):
        condition = f"datname = current_database() AND application_name = '{application}'"
        ask(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {condition}")  # noqa: S608 - built from constants


def tail(recorder: PostgresRecorder, progress: Progress, seen: list[Seen]) -> None:
    while not progress.is_complete(seen):
        seen.extend(tailing.page(recorder, seen[-1][0] if seen else 0))


def tail_reconnecting(url: str, progress: Progress, seen: list[Seen]) -> None:
    while not progress.is_complete(seen):
        own = PostgresRecorder.open(url, readers=1)
        for _ in range(20):
            seen.extend(tailing.page(own, seen[-1][0] if seen else 0))
        own.close()


def tail_subscribed(recorder: PostgresRecorder, seen: list[Seen]) -> None:
    seen.extend(follow_until(recorder, lambda seen: bool(seen) and seen[-1][1] == END))


def test_sixteen_writers_and_four_readers_lose_duplicate_and_reorder_nothing(
    postgres: str, databases: Databases, recorder: PostgresRecorder, scale: float
) -> None:
    count = max(20, round(2_500 * scale))
    writers = [*THREAD_WRITERS, *(name for names in PROGRAM_WRITERS for name in names)]
    assert len(writers) == 16
    written = tailing.events_of(writers, count)
    progress = Progress(written)
    pages: list[Seen] = []
    reconnecting: list[Seen] = []
    subscribed: list[Seen] = []
    with ExitStack() as running, databases.one() as other:
        ask(other, "CREATE TABLE t (n integer)")
        programs = [_program(running, "write", postgres, count, *names) for names in PROGRAM_WRITERS]
        follower = _program(running, "follow", f"{postgres}?application_name=follower", written)
        assert follower.stdout is not None
        assert follower.stdout.readline() == "open\n", "an error while it opens would be reported"
        disturbances: list[Callable[[], None]] = [
            lambda: commit_late(postgres, progress),
            lambda: hold(postgres, progress),
            lambda: hold(other, progress, "INSERT INTO t VALUES (1)", "COMMIT"),
            lambda: cut(postgres, progress, "follower"),
        ]
        readers: list[Callable[[], None]] = [
            lambda: tail(recorder, progress, pages),
            lambda: tail_reconnecting(postgres, progress, reconnecting),
            lambda: tail_subscribed(recorder, subscribed),
        ]
        others, reading = ([threading.Thread(target=work) for work in works] for works in (disturbances, readers))
        for thread in (*others, *reading):
            thread.start()
        try:
            run_threads([lambda name=name: write(recorder, name, count, progress.notify) for name in THREAD_WRITERS])  # type: ignore[misc] # a bound loop variable
            assert [program.wait(PATIENCE * 3) for program in programs] == [0, 0]
        finally:
            progress.end()
            for thread in others:
                thread.join(PATIENCE)
            append(recorder, event(END, 1))
            progress.total += 1
            progress.written.set()
            for thread in reading:
                thread.join(PATIENCE)
        followed = [tuple(each) for each in json.loads(follower.communicate(timeout=PATIENCE)[0])]
    everything = [(row.position, row.stream, row.version) for row in recorder.rows(after=0, limit=10**6)]
    assert len(everything) == len({each[1:] for each in everything}) == progress.total > written
    assert [each[0] for each in everything] == sorted({each[0] for each in everything})
    assert everything[-1][1] == END
    assert pages == reconnecting == subscribed == follow(recorder, progress.total) == everything
    assert followed == everything[:written]
    for stream in (*writers, "shared", "late-0"):
        rows = recorder.lineage(stream)
        assert [row.version for row in rows] == list(range(1, len(rows) + 1))
        assert [row.hash for row in rows] == recomputed_hashes(rows)


def _program(running: ExitStack, job: str, url: str, count: int, *names: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", tailing.__name__, job, url, str(count), *names]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    running.enter_context(program)
    running.callback(program.kill)
    return program
