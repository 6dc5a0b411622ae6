"""The connection pool: it loses no connection, shares them fairly, and works with a low connection limit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.infrastructure.interruptions import Interruptions, signal_points
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    append,
    event,
    in_forked_child,
    in_thread,
    interrupt_when_notified,
    run_threads,
    wait_until,
)
from tests.servers.postgres_server import PostgresServer, ask

from clew import Conversations, Message
from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.infrastructure.postgres import connection_pool
from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.errors import TooManyConnectionsError
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import Append
from clew.service.effects import read, run

LIMITED = "clew_limited"
THREADS = 16
FOREVER = 3_600.0


@pytest.fixture
def limited(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a database with Clew's tables, for a user with a limit of two connections."""
    with postgres_server.database() as url:
        ask(url, f"CREATE ROLE {LIMITED} LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO {LIMITED}")
        limited_url = _as_limited(url)
        try:
            PostgresRecorder.open(limited_url).close()
            limit(url, 2)
            yield limited_url
        finally:
            others = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{LIMITED}'"  # noqa: S608 - built from constants
            ask(url, f"{others}; DROP OWNED BY {LIMITED}; DROP ROLE {LIMITED}")


@pytest.fixture
def pool(postgres: str) -> Iterator[ConnectionPool]:
    """A pool of one connection to a database with Clew's tables."""
    PostgresRecorder.open(postgres).close()
    pool = ConnectionPool(Address(postgres), 1)
    yield pool
    pool.close()


def _as_limited(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{LIMITED}@{parts.netloc.rpartition('@')[2]}"))


def limit(url: str, most: int) -> None:
    ask(url, f"ALTER ROLE {LIMITED} CONNECTION LIMIT {most}")


@contextmanager
def use_all_connections(url: str) -> Iterator[None]:
    """Another client uses all connections of the user."""
    with ExitStack() as stack:

        def connects() -> bool:
            try:
                stack.enter_context(psycopg.connect(url))
            except psycopg.OperationalError as error:
                if "too many connections" not in str(error):
                    raise
                return False  # the server counts a connection for a moment after it has left pg_stat_activity
            return True

        for _ in range(2):
            wait_until(connects)
        yield


def server_process(pool: ConnectionPool) -> int:
    """The server process of one of the pool's connections."""
    with pool.use() as session:
        return int(session.query("SELECT pg_backend_pid()")[0][0])


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that nothing wakes waits forever, until the test times out."""
    monkeypatch.setattr(connection_pool, "WAIT_TIMEOUT", FOREVER)
    monkeypatch.setattr(connection_pool, "CHECK_AFTER", FOREVER)


# A server that accepts no more connections


@pytest.mark.usefixtures("patient")
def test_many_threads_append_over_two_connections(limited: str, scale: float) -> None:
    count = max(5, round(50 * scale))
    recorder = PostgresRecorder.open(limited)
    try:

        def work(name: str) -> None:
            for version in range(1, count + 1):
                assert recorder.submit(Append([event(name, version)])).result().positions
                assert len(recorder.select_events(name)) == version

        run_threads([lambda name=f"s{n}": work(name) for n in range(THREADS)])  # type: ignore[misc] # a bound loop variable
        for number in range(THREADS):
            assert [row.originator_version for row in recorder.select_events(f"s{number}")] == [*range(1, count + 1)]
    finally:
        recorder.close()


@pytest.mark.usefixtures("patient")
def test_threads_projections_and_searches_of_a_service_share_two_connections(limited: str) -> None:
    with Conversations.open(limited) as conversations:

        def work(name: str) -> None:
            thread = conversations.start_thread(thread_id=name, messages=[Message.user("Hello")])
            for number in range(5):
                thread.append(Message.user(f"word{number}"))
                assert len(thread.history()) == number + 2

        run_threads([lambda name=f"t{n}": work(name) for n in range(THREADS)])  # type: ignore[misc] # a bound loop variable
        assert len(conversations.search("word4")) == THREADS
        assert conversations.usage()[0].threads == THREADS
        assert conversations.verify().first_bad is None


@pytest.mark.usefixtures("patient")
def test_reports_soon_that_other_clients_have_all_connections_and_recovers(
    limited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "RELEASE_TIMEOUT", 0.1)
    recorder = PostgresRecorder.open(limited)
    try:
        for _ in range(2):  # before it has its first connection, and after
            with use_all_connections(limited):
                futures = [recorder.submit(Append([event(f"s{number}", 1)])) for number in range(THREADS)]
                for future in futures:
                    error = future.exception(PATIENCE)
                    assert isinstance(error, TooManyConnectionsError)
                    assert "Raise max_connections, or open fewer stores" in str(error)
                with pytest.raises(TooManyConnectionsError):
                    recorder.last_position()
            wait_until(lambda: _free(limited))
            append(recorder, event("s", len(recorder.select_events("s")) + 1))
            recorder.datastore.writing.drop()
            recorder.datastore.reading.drop()
            wait_until(lambda: _free(limited))
    finally:
        recorder.close()


def _free(url: str) -> bool:
    """Whether the user has no connections."""
    owner = url.replace(LIMITED, "clew_tests")
    return ask(owner, f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{LIMITED}'") == [(0,)]  # noqa: S608 - built from constants


@pytest.mark.usefixtures("patient")
def test_a_pool_without_connections_replaces_an_idle_one_of_another_pool(limited: str) -> None:
    address = Address(limited)
    reading, writing = ConnectionPool(address, 8), ConnectionPool(Address(limited), 8)
    with reading.use(), reading.use():
        pass
    first = server_process(writing)
    assert server_process(writing) == first, "the pool keeps it"
    assert server_process(reading) != first
    assert server_process(writing) == first, "each pool has one now"
    for pool in (reading, writing):
        pool.close()


@pytest.mark.usefixtures("patient")
def test_a_closed_connection_is_replaced(limited: str) -> None:
    limit(limited.replace(LIMITED, "clew_tests"), 1)
    pool = ConnectionPool(Address(limited), 8)
    for _ in range(5):
        before = server_process(pool)
        with pool.use() as session:
            session.begin()  # stays open, so the pool does not reuse this connection
        assert server_process(pool) != before
    pool.close()


@pytest.mark.usefixtures("patient")
def test_opens_more_connections_when_the_server_accepts_more(limited: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "CHECK_AFTER", 0.01)
    pool = ConnectionPool(Address(limited), 4)
    ready, resumed = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        with pool.use():
            ready.release()
            assert resumed.wait(PATIENCE)

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert all(ready.acquire(timeout=PATIENCE) for _ in range(2))
    wait_until(lambda: len(pool._queue) == 2)
    limit(limited.replace(LIMITED, "clew_tests"), 4)
    assert all(ready.acquire(timeout=PATIENCE) for _ in range(2))
    resumed.set()
    for thread in threads:
        thread.join(PATIENCE)
    pool.close()


# Waiting threads


@pytest.mark.usefixtures("patient")
def test_waiting_threads_are_served_in_order(pool: ConnectionPool) -> None:
    served: list[int] = []

    def work(number: int) -> None:
        with pool.use():
            served.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    with pool.use():
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda: len(pool._queue) == number + 1)  # noqa: B023 - called at once
    with pool.use():
        served.append(THREADS)
    for thread in threads:
        thread.join(PATIENCE)
    assert served == [*range(THREADS + 1)]


@pytest.mark.usefixtures("patient")
def test_threads_that_wait_get_an_error_when_the_store_is_closed(pool: ConnectionPool) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            server_process(pool)
        except ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with pool.use():
        for thread in threads:
            thread.start()
        wait_until(lambda: len(pool._queue) == len(threads))
        pool.close()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(errors) == len(threads)
    with pytest.raises(ClosedError):
        server_process(pool)


def test_a_thread_that_waits_too_long_gets_an_error(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "WAIT_TIMEOUT", 0.01)
    with pool.use(), pytest.raises(StoreUnavailableError, match="all 1 connections of this process are busy"):
        server_process(pool)
    assert not pool._queue
    assert server_process(pool)


def test_a_forked_child_starts_with_an_empty_pool_and_does_not_wait(pool: ConnectionPool) -> None:
    before = server_process(pool)
    waiting = threading.Thread(target=lambda: server_process(pool))

    def work() -> None:
        pool.restart()
        assert server_process(pool) != before

    with pool.use():
        waiting.start()
        wait_until(lambda: len(pool._queue) == 1)
        assert in_forked_child(work) == 0
    waiting.join(PATIENCE)
    assert server_process(pool) == before


# Interruptions


def test_no_connection_is_lost_wherever_a_thread_is_interrupted(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "WAIT_TIMEOUT", PATIENCE)

    def connect() -> None:
        pool.drop()
        server_process(pool)

    def leave_open_transaction() -> None:
        with pool.use() as session:
            session.begin()

    monkeypatch.setattr(connection_pool, "CHECK_AFTER", -1.0)  # so that the pool checks each connection
    for do in (connect, lambda: server_process(pool), leave_open_transaction):
        # What a thread was about to close is closed when it is collected.
        points = Interruptions(signal_points(connection_pool.__file__, without={"drop", "_close"}))
        while points.more:
            points.interrupt_next(do)
            assert (pool._used, pool._queue) == (0, [])
            assert server_process(pool)
        assert points.count > 5
    wait_until(lambda: ask(pool.address.conninfo, _OTHERS) == [(1,)])


def test_a_waiting_thread_has_the_lock_again_before_it_is_interrupted(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "CHECK_AFTER", PATIENCE)
    used, end = threading.Event(), threading.Event()

    def use() -> None:
        with pool.use():
            used.set()
            assert end.wait(PATIENCE)

    using = in_thread(use)
    assert used.wait(PATIENCE)
    with interrupt_when_notified(lambda: next(iter(pool._queue), None)):
        server_process(pool)
    end.set()
    using.join(PATIENCE)
    assert (pool._used, pool._queue) == (0, [])


def test_gives_a_connection_back_wherever_with_itself_is_interrupted(pool: ConnectionPool) -> None:
    points = Interruptions(signal_points(connection_pool.__file__, contextlib.__file__))
    while points.more:
        interruption = points.interrupt_next(lambda: run(read(lambda: server_process(pool))))
        assert (pool._used, pool._queue) == (0, [])
        del interruption  # until here, its traceback keeps what the interrupted calls had
    assert points.count > 10


_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)
