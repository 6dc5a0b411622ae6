"""Several PostgreSQL servers behind a directory: the places of tenants, and readers of all shards."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import psycopg
import pytest
from examples import shards_and_standby
from tests.infrastructure.recorder_steps import PATIENCE, run_threads, wait_until
from tests.infrastructure.shards.shard_databases import address, homes, sharded
from tests.servers.postgres_server import GUARDED, PASSWORD, PostgresServer, ask

from clew import Conversations, Message
from clew.domain.errors import (
    BatchError,
    InvalidNameError,
    ShardError,
    StoreSchemaError,
    StoreUnavailableError,
    StoreUrlError,
)
from clew.domain.events import Event
from clew.domain.ports import EventLog
from clew.infrastructure import commit_listeners
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.postgres.connection import ORDINAL_BITS
from clew.infrastructure.shards import Positions, Shard
from clew.infrastructure.shards.store import shard_directory
from clew.infrastructure.stores import store_at
from clew.service import shards as service
from clew.service.shards import ShardEvents, Shards


@pytest.fixture
def three(postgres_server: PostgresServer) -> Iterator[list[str]]:
    """The URLs of three empty databases, for a directory and two shards."""
    with ExitStack() as stack:
        yield [stack.enter_context(postgres_server.database()) for _ in range(3)]


@pytest.fixture
def directory(three: list[str]) -> str:
    """The URL of a directory with the shards east and west."""
    url = sharded(three[0])
    for name, store in zip(("east", "west"), three[1:], strict=True):
        Shards.open(url).add(name, address(store))
    return url


# The places of tenants


def test_everything_of_a_tenant_is_on_its_shard(directory: str, three: list[str]) -> None:
    for tenant in ("ann", "bob", "cid"):
        with Conversations.open(directory, tenant=tenant) as conversations:
            thread = conversations.start_thread(thread_id="t", messages=[Message.user(tenant)])
            thread.fork(at_message=1).append(Message.user("again"))
            assert len(list(conversations.threads())) == 2
            conversations.memory("user/1").remember("likes tea")
    for store, tenants in zip(three[1:], (["ann", "cid"], ["bob"]), strict=True):
        for tenant in ("ann", "bob", "cid"):
            with Conversations.open(store, tenant=tenant) as conversations:
                assert len(list(conversations.threads())) == (2 if tenant in tenants else 0)
                assert len(conversations.memory("user/1").facts()) == (tenant in tenants)
    assert [(shard.name, shard.tenants) for shard in Shards.open(directory).shards()] == [("east", 2), ("west", 1)]


def test_a_batch_is_one_commit_on_the_shard_of_its_tenant(directory: str) -> None:
    with Conversations.open(directory, tenant="ann") as ann, Conversations.open(directory, tenant="bob") as bob:
        threads = [ann.start_thread(), ann.start_thread()]
        with ann.batch() as batch:
            parts = [batch.append(thread, Message.user("a")) for thread in threads]
            put = batch.put(ann.memory("user/1"), "likes", "tea")
            with pytest.raises(BatchError, match="tenant 'bob' of another service"):
                batch.append(bob.start_thread(), Message.user("b"))
        assert [part.result[0].version for part in parts] == [2, 2]
        assert put.result.value == "tea"
        positions = [(list(thread.events())[-1].position or 0) >> ORDINAL_BITS for thread in threads]
        assert positions[0] == positions[1]  # of one transaction
        assert ann.verify().first_bad is None


def test_concurrent_openers_of_a_new_tenant_agree_on_its_shard(directory: str) -> None:
    tenants = [f"tenant {number}" for number in range(6)]
    places: list[dict[str, str]] = []
    run_threads([lambda: places.append(homes(directory, tenants))] * 6)
    assert places == [places[0]] * 6
    assert [shard.tenants for shard in Shards.open(directory).shards()] == [3, 3]


def test_assigning_a_tenant_waits_for_concurrent_assignments(directory: str, three: list[str]) -> None:
    places: dict[str, str] = {}
    assigning = threading.Thread(target=lambda: places.update(homes(directory, ["bob"])))
    with psycopg.connect(three[0]) as other:
        other.execute("SELECT FROM clew_shard ORDER BY name FOR UPDATE")
        other.execute("INSERT INTO clew_tenant VALUES ('ann', 'east')")
        assigning.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: bool(ask(three[0], waits)) or not assigning.is_alive())
        other.commit()
    assigning.join(PATIENCE)
    assert places == {"bob": three[2]}


def test_adding_a_server_moves_no_tenant_and_a_closed_one_keeps_its_tenants(directory: str, postgres: str) -> None:
    shards = Shards.open(directory)
    before = homes(directory, ["a", "b", "c", "d"])
    shards.add("new", address(postgres))
    assert homes(directory, [*before]) == before
    assert set(homes(directory, ["e", "f"]).values()) == {postgres}
    shards.take_no_more("east")
    shards.take_no_more("new")
    assert homes(directory, [*before]) == before
    assert homes(directory, ["g"])["g"] == before["b"]
    shards.take_no_more("west")
    with pytest.raises(ShardError, match="no shard accepts new tenants"):
        homes(directory, ["h"])
    assert [(shard.name, shard.takes, shard.tenants) for shard in shards.shards()] == [
        ("east", False, 2),
        ("new", False, 2),
        ("west", False, 3),
    ]


def test_reading_assigns_no_shard(directory: str) -> None:
    with pytest.raises(ShardError, match="'new' has no shard yet"):
        Conversations.open(directory, tenant="new", create=False)
    assert [shard.tenants for shard in Shards.open(directory).shards()] == [0, 0]


def test_the_directory_stores_no_password_and_shards_use_the_url_s(three: list[str]) -> None:
    ask(three[0], f"GRANT ALL ON SCHEMA public TO {GUARDED}")
    ask(three[1], f"GRANT ALL ON SCHEMA public TO {GUARDED}")
    url = sharded(three[0].replace("clew_tests@", f"{GUARDED}:{PASSWORD}@"))
    Shards.open(url).add("east", address(three[1]))
    with Conversations.open(f"{url}?workers=2&application_name=clew-test") as conversations:
        conversations.start_thread(thread_id="a")
        assert ask(three[1], "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'clew-test'") == [
            (GUARDED,)
        ]
    assert PASSWORD not in str(ask(three[0], "SELECT * FROM clew_shard"))
    wrong = url.replace(PASSWORD, f"wrong-{PASSWORD}")
    for use in (Conversations.open, lambda url: Shards.open(url).shards()):
        with pytest.raises(StoreUnavailableError, match="password") as raised:
            use(wrong)
        assert PASSWORD not in str(raised.value)


def test_explains_errors_of_a_directory_and_of_its_arguments(three: list[str]) -> None:
    shards = Shards.open(sharded(three[0]))
    for use in (shards.shards, shards.positions, lambda: Conversations.open(sharded(three[0]))):
        with pytest.raises(StoreSchemaError, match="clew shards add"):
            use()
    for wrong in (f"u:{PASSWORD}@host/db", f"host/db?password={PASSWORD}", "host", "host:port/db", "service=", "/db"):
        with pytest.raises(StoreUrlError) as raised:
            shards.add("east", wrong)
        assert PASSWORD not in str(raised.value)
    with pytest.raises(InvalidNameError):
        shards.add("ea,st", address(three[1]))
    with pytest.raises(StoreUnavailableError):
        shards.add("east", "127.0.0.1:1/db")
    shards.add("east", address(three[1]))
    for name, place in (("east", three[2]), ("other", three[1])):
        with pytest.raises(ShardError, match="already"):
            shards.add(name, address(place))
    assert ask(three[2], "SELECT to_regclass('clew_event')") == [(None,)], "a refused shard gets no tables"
    with pytest.raises(ShardError, match="shard 'none' does not exist"):
        shards.take_no_more("none")
    with pytest.raises(ShardError, match="shard 'none' does not exist"):
        shards.move("none", address(three[1]))
    with pytest.raises(StoreUrlError, match="does not name a directory"):
        Shards.open(three[0])


def test_a_shard_s_address_can_be_a_service_or_several_hosts() -> None:
    directory = shard_directory("postgresql+shards://ann:pw@d1,d2:5433/directory?sslmode=require&service=x&workers=2")
    assert directory.url_at("service=east") == "postgresql://ann:pw@?sslmode=require&workers=2&service=east"
    assert directory.url_at("h1:1,h2:2/db") == "postgresql://ann:pw@h1:1,h2:2/db?sslmode=require&workers=2"
    assert shard_directory("postgresql+shards:///directory").url_at("[::1]:5/db") == "postgresql://[::1]:5/db"


def test_a_store_is_one_shard_under_any_address(directory: str, three: list[str]) -> None:
    shards = Shards.open(directory)
    again = address(three[1]).replace("127.0.0.1", "localhost")
    with pytest.raises(ShardError, match=f"this store is already the shard 'east', at {address(three[1])}"):
        shards.add("other", again)
    assert [shard.name for shard in shards.shards()] == ["east", "west"]


def test_a_shard_whose_server_moves_keeps_its_tenants(directory: str, three: list[str], postgres: str) -> None:
    shards = Shards.open(directory)
    before = homes(directory, ["ann", "bob"])
    moved = address(three[1]).replace("127.0.0.1", "localhost")
    shards.move("east", moved)
    assert [(shard.name, shard.address, shard.tenants) for shard in shards.shards()] == [
        ("east", moved, 1),
        ("west", address(three[2]), 1),
    ]
    assert homes(directory, ["ann", "bob"]) == {**before, "ann": three[1].replace("127.0.0.1", "localhost")}
    for wrong in (three[2], postgres):
        store_at(wrong).migrate()
        with pytest.raises(ShardError, match="is not the store of shard 'east'"):
            shards.move("east", address(wrong))
    with pytest.raises(StoreUnavailableError):
        shards.move("east", "127.0.0.1:1/db")
    with psycopg.connect(three[0], autocommit=True) as other:  # east's store gets the address of west's
        other.execute("UPDATE clew_shard SET address = %s WHERE name = 'west'", (address(three[1]),))
        with pytest.raises(ShardError, match=f"a shard 'east', or a shard at {address(three[1])}, already exists"):
            shards.move("east", address(three[1]))
        other.execute("UPDATE clew_shard SET address = %s WHERE name = 'west'", (address(three[2]),))
    assert [shard.address for shard in shards.shards()] == [moved, address(three[2])]


def test_moving_a_shard_creates_no_tables(directory: str, postgres: str) -> None:
    with pytest.raises(StoreSchemaError):
        Shards.open(directory).move("east", address(postgres))
    assert ask(postgres, "SELECT count(*) FROM pg_class WHERE relname LIKE 'clew%'") == [(0,)]


# Readers of all shards


def test_reads_all_shards_from_stored_positions_and_shards_that_are_added(
    directory: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DIRECTORY_POLL_SECONDS", 0.05)
    shards = Shards.open(directory)

    def write(tenant: str) -> None:
        with Conversations.open(directory, tenant=tenant, embedded=False) as conversations:
            conversations.start_thread(thread_id="t", messages=[Message.user("one")])

    def read(events: ShardEvents, count: int) -> list[tuple[str, str, int]]:
        received = [events.wait(PATIENCE) for _ in range(count)]
        assert events.wait(0.1) is None
        return sorted((each.shard, each.event.stream, each.event.version) for each in received if each is not None)

    for tenant in ("ann", "bob"):
        write(tenant)
    with shards.events() as events:
        assert read(events, 4) == [
            (shard, f"{tenant}/thread/t", version)
            for shard, tenant in (("east", "ann"), ("west", "bob"))
            for version in (1, 2)
        ]
        assert events.positions == shards.positions()
        first = str(events.positions)
        shards.add("new", address(postgres))
        write("cid")
        assert read(events, 2) == [("new", "cid/thread/t", 1), ("new", "cid/thread/t", 2)]
        assert Positions.parse(first) <= events.positions
        assert events.failing() == {}
    assert list(events) == []
    with shards.events(after=Positions.parse(first)) as events:
        assert read(events, 2) == [("new", "cid/thread/t", 1), ("new", "cid/thread/t", 2)]


def test_the_example_counts_each_event_once_after_restarts(directory: str, tmp_path: Path) -> None:
    shards = Shards.open(directory)
    file = str(tmp_path / "counts.db")
    for number in range(3):
        for tenant in ("ann", "bob"):
            with Conversations.open(directory, tenant=tenant, embedded=False) as conversations:
                conversations.open_thread(f"{number}").append(Message.user("one"))
        expected = dict.fromkeys(("ann", "bob"), 2 * (number + 1))
        assert shards_and_standby.count(directory, file, shards.positions()) == expected
        assert shards_and_standby.count(directory, file, shards.positions()) == expected


def test_a_reader_follows_a_moved_shard(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "DIRECTORY_POLL_SECONDS", 0.01)
    monkeypatch.setattr(service, "RETRY_SECONDS", 0.01)
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(thread_id="a")
    listed = [Shard("east", "old", takes=True, tenants=1)]

    def open_log_of(shard: Shard) -> EventLog:
        return store_at(postgres if shard.address == "new" else "postgresql://127.0.0.1:1/none").open_log(create=False)

    with ShardEvents(lambda: listed, open_log_of, Positions()) as events:
        wait_until(lambda: "east" in events.failing())
        listed[0] = listed[0]._replace(address="new")
        received = events.wait(PATIENCE)
    assert received is not None
    assert (received.shard, received.event.stream) == ("east", "default/thread/a")


def test_a_reader_continues_after_a_defect_of_the_log(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "RETRY_SECONDS", 0.01)
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(thread_id="a")
    failed = threading.Event()

    def open_log_of(_: Shard) -> EventLog:
        log = store_at(postgres).open_log(create=False)
        if not failed.is_set():
            monkeypatch.setattr(log, "events_after", fail)
        return log

    def fail(*_: object) -> None:
        failed.set()
        raise RuntimeError

    with ShardEvents(lambda: [Shard("east", "here", takes=True, tenants=1)], open_log_of, Positions()) as events:
        received = events.wait(PATIENCE)
    assert failed.is_set()
    assert received is not None


_DEAD = StoreUnavailableError("The server is dead.")


class DyingLog:
    """A log without events whose server dies: one more read succeeds, as from a process that outlives its server."""

    def __init__(self) -> None:
        self.is_dead = False
        self.last_answers = 1
        self._listeners = CommitListeners(self)
        self.listen = self._listeners.listen
        self.close = self._listeners.close

    def database(self) -> int:
        return id(self)

    def visible(self) -> int:
        if self.is_dead:
            raise _DEAD
        return 0

    def written(self, *_: int) -> list[tuple[int, str]]:
        raise AssertionError

    def events_after(self, *_: object) -> list[Event]:
        if self.is_dead:
            if not self.last_answers:
                raise _DEAD
            self.last_answers -= 1
        return []

    def with_blobs(self, events: list[Event]) -> list[Event]:
        return events


def test_a_reader_notices_a_dead_server_although_one_more_read_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_listeners, "FAILURE_SECONDS", 0.01)
    log = DyingLog()
    shard = Shard("east", "here", takes=True, tenants=1)
    with ShardEvents(lambda: [shard], lambda _: cast("EventLog", log), Positions()) as events:
        assert events.wait(0.01) is None
        log.is_dead = True
        wait_until(lambda: "east" in events.failing())
    assert log.last_answers == 0


def test_a_dropped_reader_ends_its_threads(directory: str, monkeypatch: pytest.MonkeyPatch, postgres: str) -> None:
    monkeypatch.setattr(service, "DIRECTORY_POLL_SECONDS", 0.01)
    events = Shards.open(directory).events()
    Shards.open(directory).add("new", address(postgres))
    wait_until(lambda: "clew-shard-new" in _reader_threads())  # it has read the directory again
    del events
    gc.collect()
    wait_until(lambda: not _reader_threads())


def _reader_threads() -> list[str]:
    """The names of the threads that read shards."""
    return [each.name for each in threading.enumerate() if each.name.startswith("clew-shard")]
