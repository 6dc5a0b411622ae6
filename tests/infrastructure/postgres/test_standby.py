"""Stores on standby servers: reads, refused writes, and their promotion."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from examples import shards_and_standby
from tests.infrastructure.postgres.tailing import transaction
from tests.infrastructure.recorder_steps import PATIENCE, append, event, recomputed_hashes, run_threads, wait_until
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgres_server import OWNER, VERSIONS, PostgresServer, Standby, ask

from clew import Conversations, Engine, Message
from clew.cli import main
from clew.domain.errors import ProjectionBehindError, ReadOnlyStoreError, StoreError, StoreUnavailableError
from clew.domain.ports import Claim, Draft, Key
from clew.infrastructure.postgres import datastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.stores import store_at


class Pair(NamedTuple):
    """The URLs of a database on a primary and on its standby."""

    primary: str
    standby: str


def on(server: PostgresServer, url: str) -> str:
    """The URL of the same database on another server."""
    return server.url(urlsplit(url).path.lstrip("/"))


def has_tables(url: str) -> Callable[[], bool]:
    """Whether a database has Clew's tables."""
    return lambda: bool(ask(url, "SELECT 1 FROM pg_class WHERE relname = 'clew_meta'"))


@contextmanager
def recorder_at(url: str) -> Iterator[PostgresRecorder]:
    """The recorder of a database, until the block ends."""
    recorder = PostgresRecorder.open(url)
    try:
        yield recorder
    finally:
        recorder.close()


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    """A separate server: the standby copies it, and the shared server has many databases of other tests."""
    with PostgresServer(VERSIONS[-1]) as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[Standby]:
    with Standby(primary) as server:
        yield server


@pytest.fixture
def pair(primary: PostgresServer, standby: Standby) -> Iterator[Pair]:
    """A database with Clew's tables on both servers."""
    with primary.database() as url:
        store_at(url).migrate()
        name = urlsplit(url).path.lstrip("/")
        wait_until(lambda: bool(standby.ask(f"SELECT 1 FROM pg_database WHERE datname = '{name}'")))  # noqa: S608 - our own name
        follower = on(standby, url)
        wait_until(has_tables(follower))
        yield Pair(url, follower)


def test_writes_are_readable_on_a_standby_after_waiting_for_their_position(pair: Pair, standby: Standby) -> None:
    with Conversations.open(pair.primary) as here, Conversations.open(pair.standby) as there:
        first = here.start_thread("Refund", thread_id="a", messages=[Message.user("one")])
        there_first = here.position()
        there.wait(there_first, timeout=PATIENCE)
        standby.ask("SELECT pg_wal_replay_pause()")
        wait_until(lambda: standby.ask("SELECT pg_get_wal_replay_pause_state()") == [("paused",)])
        try:
            first.append(Message.assistant("two"))
            branch = first.fork(at_message=1, thread_id="b")
            branch.append(Message.assistant("instead"))
            written = here.position()
            assert [message.text for message in there.thread("a").history().messages] == ["one"]
            assert there.position() == there_first < written
            with pytest.raises(ProjectionBehindError, match="the log"):
                there.wait(written, timeout=0)
            waiting = threading.Thread(target=there.wait, args=(written,))
            waiting.start()
        finally:
            standby.ask("SELECT pg_wal_replay_resume()")
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        for thread in ("a", "b"):
            assert there.thread(thread).history() == here.thread(thread).history()
        assert [each.id for each in there.threads()] == ["a", "b"]
        assert [hit.thread_id for hit in there.search("instead")] == ["b"]
        assert there.verify() == here.verify()


def test_the_example_reads_its_own_writes_on_the_standby(pair: Pair) -> None:
    for number in range(1, 4):
        written = shards_and_standby.say(pair.primary, "a", str(number))
        assert shards_and_standby.read(pair.standby, "a", written) == [str(each + 1) for each in range(number)]


def test_a_subscription_on_a_standby_receives_new_events(pair: Pair) -> None:
    async def read(written: int) -> list[str]:
        async with Engine.open(pair.standby) as there:
            await there.wait(written, timeout=PATIENCE)
            return [message.text for message in (await (await there.thread("a")).history()).messages]

    with Conversations.open(pair.primary) as here, Conversations.open(pair.standby) as there:
        with there.subscribe(after=there.position()) as events:
            thread = here.start_thread(thread_id="a", messages=[Message.user("one")])
            received = [events.wait(PATIENCE) for _ in range(2)]
            thread.append(Message.assistant("two"))
            received.append(events.wait(PATIENCE))
        assert received == list(here.thread("a").events())
        assert asyncio.run(read(here.position())) == ["one", "two"]


def test_a_standby_of_a_restored_dump_is_unavailable_until_its_primary_was_opened(pair: Pair) -> None:
    with recorder_at(pair.primary) as recorder:
        append(recorder, event("a", 1))
    ask(pair.primary, f"UPDATE clew_event SET position = position + {1 << 50}")  # noqa: S608 - a number
    restored = ask(pair.primary, "SELECT position FROM clew_event")
    wait_until(lambda: ask(pair.standby, "SELECT position FROM clew_event") == restored)
    with recorder_at(pair.standby) as follower:
        with pytest.raises(StoreUnavailableError, match="Open the primary first"):
            follower.last_position()
        with recorder_at(pair.primary) as recorder:
            appended = append(recorder, event("a", 2))
        wait_until(lambda: ask(pair.standby, "SELECT count(*) FROM clew_event") == [(2,)])
        wait_until(lambda: follower.last_position() == appended.positions[0])


def test_the_newest_position_includes_own_writes_even_while_readers_are_held_back(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datastore, "OWN_WAIT", 0.05)
    with recorder_at(postgres) as recorder, transaction(postgres):
        position = append(recorder, event("a", 1)).positions[-1]
        assert recorder.last_position() < position == recorder.newest_position()


def test_a_standby_refuses_every_write_and_names_the_primary(pair: Pair) -> None:
    with recorder_at(pair.primary) as primary:
        position = append(primary, event("default/thread/a", 1)).positions[-1]
    with recorder_at(pair.standby) as recorder:
        wait_until(lambda: recorder.last_position() >= position)
        name = "default/thread/a"
        for refused in (
            Append([event(name, 2)]),
            Append([event("default/thread/b", 1)]),
            Append((), claims=[Claim(name, "me", 1, 2)]),
            Append((), drafts=[Draft(name, "run", b"part")]),
        ):
            error = recorder.submit(refused).exception(PATIENCE)
            assert isinstance(error, StoreUnavailableError)
            assert "Name the primary" in str(error)
        assert [row.version for row in recorder.lineage(name)] == [1]
    with Conversations.open(pair.standby) as there, pytest.raises(StoreUnavailableError, match="Name the primary"):
        there.start_thread()


def test_a_standby_can_be_opened_only_for_reading(pair: Pair) -> None:
    with Conversations.open(pair.primary) as primary:
        primary.start_thread(thread_id="refund", messages=[Message.user("It is lost.")])
        primary.wait(primary.position())
        position = primary.position()
    with Conversations.open(pair.standby, read_only=True) as there:
        there.wait(position, timeout=PATIENCE)
        assert [hit.thread_id for hit in there.search("lost")] == ["refund"]
        with pytest.raises(ReadOnlyStoreError):
            there.thread("refund").append(Message.user("More"))


def test_a_standby_explains_where_to_update_a_missing_projection(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--db", pair.standby, "threads"]) == 1
    assert "was not built yet" in (message := capsys.readouterr().err)
    assert "on its primary" in message


def test_no_tables_are_created_in_an_empty_database_on_a_standby(primary: PostgresServer, standby: Standby) -> None:
    with primary.database() as url:
        name = urlsplit(url).path.lstrip("/")
        wait_until(lambda: bool(standby.ask(f"SELECT 1 FROM pg_database WHERE datname = '{name}'")))  # noqa: S608 - our own name
        wait_until(lambda: not has_tables(on(standby, url))())
        for use in (Conversations.open, lambda url: store_at(url).migrate()):
            with pytest.raises(StoreError, match="Name the primary"):
                use(on(standby, url))


def test_no_event_appears_on_a_standby_below_a_position_that_was_read(pair: Pair, scale: float) -> None:
    count = max(40, round(1000 * scale))
    done = threading.Event()
    seen: list[int] = []
    with recorder_at(pair.primary) as primary, recorder_at(pair.standby) as follower:

        def tail() -> None:
            while not done.is_set() or follower.last_position() < primary.last_position():
                seen.extend(row.position for row in follower.rows(after=seen[-1] if seen else 0, limit=50))
            seen.extend(row.position for row in follower.rows(after=seen[-1] if seen else 0, limit=10_000))

        def write(number: int) -> None:
            for version in range(1, count + 1):
                append(primary, event(f"s{number}", version), event(f"t{number}", version))

        def hold() -> None:
            with psycopg.connect(pair.primary) as other:
                while not done.is_set():
                    other.execute("SELECT pg_current_xact_id()")
                    done.wait(0.003)
                    other.rollback()

        background = [threading.Thread(target=work) for work in (tail, hold)]
        for thread in background:
            thread.start()
        try:
            run_threads([lambda number=number: write(number) for number in range(4)])  # type: ignore[misc] # a bound loop
        finally:
            done.set()
            for thread in background:
                thread.join(PATIENCE)
        everything = [row.position for row in primary.rows(after=0, limit=100_000)]
        assert len(everything) == 8 * count
        assert seen == everything


def test_a_query_that_a_standby_cancels_is_repeated(pair: Pair, standby: Standby) -> None:
    """A standby cancels queries that can still see removed rows, after max_standby_streaming_delay."""
    standby.ask("ALTER SYSTEM SET max_standby_streaming_delay = 0")
    standby.ask("SELECT pg_reload_conf()")
    with recorder_at(pair.primary) as primary:
        position = append(primary, event("a", 1)).positions[-1]
    with psycopg.connect(pair.standby, autocommit=True) as gate, recorder_at(pair.standby) as follower:
        wait_until(lambda: follower.last_position() >= position)
        gate.execute("SELECT pg_advisory_lock(7)")
        rows: list[object] = []
        # It waits before it reads a page: the standby also cancels who uses a page, and that as often as it likes.
        slow = "SELECT count(*) FROM clew_event WHERE (SELECT pg_advisory_lock_shared(7)) IS NOT NULL"
        querying = threading.Thread(target=lambda: rows.extend(follower.datastore.query(slow)))
        querying.start()
        wait_until(lambda: standby.ask("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        ask(pair.primary, "UPDATE clew_event SET type = type")
        ask(pair.primary, "VACUUM clew_event")
        conflicts = "SELECT confl_snapshot FROM pg_stat_database_conflicts WHERE datname = current_database()"
        wait_until(lambda: ask(pair.standby, conflicts)[0][0] == 1)
        # The repeated query must not be cancelled again: the primary may have removed more rows.
        standby.ask("ALTER SYSTEM SET max_standby_streaming_delay = -1")
        standby.ask("SELECT pg_reload_conf()")
        gate.execute("SELECT pg_advisory_unlock(7)")
        querying.join(PATIENCE)
        assert rows == [(1,)]


def test_a_writer_finds_the_promoted_standby_and_acknowledges_only_stored_events(
    primary: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        primary.database() as url,
        Standby(primary) as second,
        CuttingProxy(primary.port) as proxy,
        ExitStack() as later,
    ):

        def both(first: int) -> str:
            hosts = f"127.0.0.1:{first},127.0.0.1:{second.port}"
            return f"postgresql://{OWNER}@{hosts}{urlsplit(url).path}?target_session_attrs=read-write"

        with recorder_at(both(proxy.port)) as recorder, Conversations.open(both(primary.port)) as conversations:
            conversations.start_thread(thread_id="before", messages=[Message.user("Are you there?")])
            assert [each.id for each in conversations.threads()] == ["before"]
            replicated = append(recorder, *[event("a", version) for version in range(1, 9)])
            wait_until(lambda: _replayed(primary, second))
            there = later.enter_context(Conversations.open(on(second, url)))
            second.ask("ALTER SYSTEM SET primary_conninfo = ''")
            second.ask("SELECT pg_reload_conf()")
            wait_until(lambda: not second.ask("SELECT 1 FROM pg_stat_wal_receiver"))
            read = recorder.last_position()
            writing = recorder.datastore.writing

            def fail_over() -> None:
                """Fail over before a client can ask the first server for the outcome, and use up the transaction id."""
                monkeypatch.undo()
                primary.kill()
                second.promote()
                for _ in range(20):
                    second.ask("SELECT pg_current_xact_id()")

            monkeypatch.setattr(writing, "drop", fail_over)
            try:
                proxy.lose_reply(b"COMMIT")
                # The append did not reach the second server, so the recorder writes it there.
                outcome = append(recorder, event("a", 9), key=Key("a", "k", b""))
                assert proxy.lost.is_set()
                append(recorder, event("a", 10))
                rows = recorder.lineage("a")
                assert [row.version for row in rows] == list(range(1, 11))
                assert (rows[8].position,) == outcome.positions > (read,)
                assert [row.hash for row in rows] == recomputed_hashes(rows)
                assert tuple(row.hash for row in rows[:8]) == replicated.hashes
                conversations.start_thread(thread_id="after", messages=[Message.user("Still?")])
                assert [each.id for each in conversations.threads()] == ["before", "after"]
                assert [hit.thread_id for hit in conversations.search("still")] == ["after"]
                assert conversations.verify().first_bad is None
            finally:
                primary.start()
        # A service that was opened on the standby updates read models from the first append.
        there.start_thread(thread_id="last")
        assert [each.id for each in there.threads()] == ["before", "after", "last"]


def _replayed(primary: PostgresServer, follower: PostgresServer) -> bool:
    ((written,),) = primary.ask("SELECT pg_current_wal_lsn()")
    return bool(follower.ask(f"SELECT pg_last_wal_replay_lsn() >= '{written}'")[0][0])
