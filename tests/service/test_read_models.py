"""The read models of a service: reads see earlier writes, wherever the projections are filled."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, is_waiting_for_a_lock, wait_until
from tests.service.projection_contents import batches_of

from clew.conversations import Conversations
from clew.domain.errors import (
    ClosedError,
    InvalidProjectionError,
    ProjectionBehindError,
    StoreUnavailableError,
    UnknownProjectionError,
)
from clew.domain.messages import Message
from clew.engine import Engine
from clew.infrastructure.postgres import projection_transaction, text_index
from clew.infrastructure.sqlite import projection_store
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import Change, Column, Query, Recorded, Recount, Rows, Table, Upsert, Where
from clew.service.projection_worker import Runner


class Events:
    """Stores one row per event; fails on labels."""

    name = "events"
    version = 1
    tables = (Table("event", (Column("position", "integer"), Column("type")), ("position",)),)
    texts = ()
    types = None

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        if event.type == "thread-labelled":
            raise ValueError("this projection refuses labels")
        yield Upsert("event", {"position": event.position, "type": event.type})


ALL = Query("event", order=("position",))

# In these stores the positions are 1, 2, 3.
known_positions = pytest.mark.parametrize("any_url", ["memory", "sqlite"], indirect=True)


@pytest.fixture
def conversations(url: str) -> Iterator[Conversations]:
    with Conversations.open(url, projections=[Events()]) as opened:
        yield opened


def test_reads_see_earlier_writes(conversations: Conversations) -> None:
    for count in range(1, 30):
        conversations.start_thread()
        assert len(conversations.rows("events", ALL)) == count


@known_positions
def test_reads_the_rows_that_a_query_names(conversations: Conversations) -> None:
    conversations.start_thread().append([Message.user("a"), Message.user("b")])
    rows = conversations.rows("events", Query("event", [Where("type", "=", "message-appended")], ["-position"], 1))
    assert rows == [{"position": 3, "type": "message-appended"}]


def test_refuses_unknown_projections_tables_and_columns(conversations: Conversations) -> None:
    with pytest.raises(UnknownProjectionError, match="events"):
        conversations.rows("directory", ALL)
    with pytest.raises(UnknownProjectionError, match="events"):
        conversations.rebuild("directory")
    for query in (Query("nothing"), Query("event", columns=["nothing"])):
        with pytest.raises(InvalidProjectionError, match="nothing"):
            conversations.rows("events", query)


@known_positions
def test_reports_the_position_and_parked_events_of_projections(conversations: Conversations) -> None:
    conversations._core.models.stop()  # nothing is applied before the test looks
    assert [each.state for each in conversations.projections()] == ["waiting"]
    thread = conversations.start_thread(thread_id="t")
    (status,) = conversations.projections()
    assert (status.lag, status.lag_seconds > 0) == (1, True)
    thread.label(topic="a")
    thread.append(Message.user("more"))
    conversations.wait()
    (status,) = conversations.projections()
    assert (status.name, status.version, status.state) == ("events", 1, "live")
    assert (status.position, status.last_position, status.lag, status.lag_seconds) == (3, 3, 0, 0.0)
    assert (status.parked, [each.position for each in status.parked_events]) == (1, [2])
    assert len(conversations.rows("events", ALL)) == 2


@known_positions
def test_reports_a_running_rebuild(conversations: Conversations) -> None:
    conversations.start_thread(messages=[Message.user("word")] * 9)
    conversations.wait()
    conversations._core.models.stop()  # the background worker would build too
    seen: list[tuple[str, int, int | None]] = []

    def progress(*_: int) -> None:
        (status,) = conversations.projections()
        seen.append((status.state, status.position, status.built))
        assert len(conversations.rows("events", ALL)) == 10

    with batches_of(4):
        conversations.rebuild("events", progress=progress)
    assert seen == [("building", 10, 0), ("building", 10, 4), ("building", 10, 8), ("live", 10, None)]


def test_a_service_that_only_reads_rebuilds_a_changed_projection(file_url: str) -> None:
    class Newer(Events):
        version = 2

    with Conversations.open(file_url, projections=[Events()]) as conversations:
        conversations.start_thread()
        conversations.wait()
    with Conversations.open(file_url, projections=[Newer()]) as conversations:
        assert conversations.projections()[0].state == "changed"
        assert len(conversations.rows("events", ALL)) == 1
        wait_until(lambda: conversations.projections()[0].state == "live")
        assert conversations.projections()[0].version == 2


def test_rebuilds_indexes_and_tables_with_an_old_layout_before_reading(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def states() -> dict[str, tuple[str, int]]:
        with Conversations.open(shared_url, embedded=False) as conversations:
            built = conversations._core.models.projector.store.generations()
            generations = {each.name: each.id for each in built if each.live}
            return {each.name: (each.state, generations[each.name]) for each in conversations.projections()}

    def states_after_reading() -> dict[str, tuple[str, int]]:
        with Conversations.open(shared_url) as conversations:
            assert [hit.version for hit in conversations.search("word")] == [2]
            assert conversations.thread("t").summary().messages == 1
            conversations.wait()
        return states()

    with Conversations.open(shared_url) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("word")])
        conversations.wait()
    before = states_after_reading()
    assert {state for state, _ in before.values()} == {"live"}
    # The text index has another layout.
    table = text_index._SQL["texts"]
    monkeypatch.setitem(text_index._SQL, "texts", table.replace("words text", "more integer, words text"))
    monkeypatch.setattr("clew.infrastructure.sqlite.text_index.STRETCH", 7)
    assert states() == before | {"search": ("changed", before["search"][1])}
    words = states_after_reading()
    assert words == before | {"search": words["search"]}
    assert words["search"][1] > before["search"][1]
    # So do the tables.
    for dialect in (projection_transaction.DIALECT, projection_store.DIALECT):
        create_table = dialect.create_table
        monkeypatch.setattr(
            dialect,
            "create_table",
            lambda name, table, create_table=create_table: (*create_table(name, table), f"DROP TABLE {name}"),
        )
    assert "live" not in {state for state, _ in states().values()}


@known_positions
def test_fills_in_the_background_after_an_append(conversations: Conversations) -> None:
    conversations.start_thread()
    wait_until(lambda: conversations.projections()[0].position == 1)


def test_a_reader_does_not_wait_for_a_writer_that_has_done_its_work(file_url: str) -> None:
    with Conversations.open(file_url) as filling, Conversations.open(file_url) as reading:
        filling.start_thread(thread_id="first")
        filling.wait()
        store = filling._core.models._store
        assert isinstance(store, SQLiteProjections)
        with store._lock.held():
            filling.start_thread(thread_id="second")
            listed: list[list[str]] = []
            reader = threading.Thread(target=lambda: listed.append([each.id for each in reading.threads()]))
            reader.start()
            wait_until(is_waiting_for_a_lock)
            assert not listed
            filling._core.models.projector.drain()
            reader.join(PATIENCE)
            assert listed == [["first", "second"]]


def test_work_in_the_background_does_not_wait_in_line(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(file_url) as filling, Conversations.open(file_url) as other:
        filling.wait()
        store, models = filling._core.models._store, other._core.models
        assert isinstance(store, SQLiteProjections)
        attempts: list[bool] = []
        advance = models.projector.advance

        def counted(*arguments: Any, **options: Any) -> bool:
            attempts.append(is_waiting_for_a_lock())
            return advance(*arguments, **options)

        monkeypatch.setattr(models.projector, "advance", counted)
        with store._lock.held():
            other.start_thread(thread_id="first")
            wait_until(lambda: len(attempts) > 3)
            assert not is_waiting_for_a_lock()
        wait_until(lambda: models.projector.is_current("directory", 1, models._store.generations()))


@known_positions
def test_waits_until_a_position_is_reached(conversations: Conversations) -> None:
    conversations.start_thread(messages=[Message.user("word")] * 9)
    conversations.wait(4)
    assert conversations.projections()[0].position >= 4
    with pytest.raises(ProjectionBehindError, match=r"Position 11 was not reached within 0\.01 s by: .*events"):
        conversations.wait(11, timeout=0.01)
    waiting = threading.Thread(target=conversations.wait, args=(12,))
    waiting.start()
    conversations.start_thread().append(Message.user("more"))
    waiting.join(20)
    assert not waiting.is_alive()


def test_logs_once_per_standstill_when_no_process_fills(
    file_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clew.service.read_models.STANDSTILL_SECONDS", 0.0)
    with (
        Conversations.open(file_url, projections=[Events()], embedded=False) as waiting,
        Conversations.open(file_url, projections=[Events()], embedded=False) as filling,
        batches_of(4),
    ):
        waiting.start_thread(messages=[Message.user("word")] * 9)
        looks: list[int] = []

        def progress(reached: int, last: int) -> None:
            looks.append(reached)
            assert last == 10
            if len(looks) % 5 == 0:
                assert caplog.text.count("Still waiting for position 10") == len(looks) // 5
                filling._core.models.projector.advance()

        waiting.wait(progress=progress)
    assert looks == [0] * 5 + [4] * 5 + [8] * 5
    assert "no progress of events. `clew project run`" in caplog.text


def test_waits_for_another_process_without_embedded_projections(file_url: str) -> None:
    with Conversations.open(file_url, projections=[Events()], embedded=False) as conversations:
        conversations.start_thread()
        with pytest.raises(ProjectionBehindError):
            conversations.wait(timeout=0.01)
        with pytest.raises(UnknownProjectionError, match="this process cannot build it"):
            conversations.rows("events", ALL)
        with Conversations.open(file_url, projections=[Events()], embedded=False) as other:
            runner = Runner(other._core, (), lambda *_: None)
            following = threading.Thread(target=runner.follow)
            following.start()
            for count in range(1, 4):
                conversations.wait(timeout=20)
                assert len(conversations.rows("events", ALL)) == count
                conversations.start_thread()
            runner.stop()
            following.join(20)
            assert not following.is_alive()


def test_a_stopped_runner_does_nothing(conversations: Conversations) -> None:
    conversations.start_thread()
    progress: list[tuple[int, int]] = []
    runner = Runner(conversations._core, ["events"], lambda *reached: progress.append(reached))
    runner.stop()
    runner.follow()
    assert progress == []
    with pytest.raises(UnknownProjectionError):
        Runner(conversations._core, ["nothing"], lambda *_: None)


def test_refuses_an_invalid_declaration_at_once(url: str) -> None:
    class Unnamed(Events):
        name = "No Name"

    with pytest.raises(InvalidProjectionError):
        Conversations.open(url, projections=[Unnamed()])


def test_lists_a_projection_of_another_program(file_url: str) -> None:
    with Conversations.open(file_url, projections=[Events()]) as conversations:
        conversations.start_thread()
        conversations.wait()
    with Conversations.open(file_url, projections=[]) as conversations:
        (status,) = conversations.projections()
        assert (status.name, status.state, status.position) == ("events", "other", 1)
        conversations.wait()


@known_positions
def test_the_engine_offers_the_same(url: str) -> None:
    async def work() -> None:
        async with Engine.open(url, projections=[Events()]) as engine:
            await engine.start_thread()
            assert await engine.rows("events", ALL) == [{"position": 1, "type": "thread-started"}]
            await engine.wait(timeout=20)
            await engine.rebuild("events")
            assert [each.state for each in await engine.projections()] == ["live"]

    asyncio.run(work())


def test_waits_for_one_projection_and_reports_its_progress(file_url: str) -> None:
    progress: list[tuple[int, int]] = []
    with Conversations.open(file_url, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("Hello")] * 45)
    with batches_of(20), Conversations.open(file_url) as conversations:
        conversations.wait(projection="usage", progress=lambda *reached: progress.append(reached))
        assert progress == [(0, 46), (20, 46), (40, 46)]
        assert {status.name for status in conversations.projections() if not status.lag} == {"usage"}
        with pytest.raises(UnknownProjectionError):
            conversations.wait(projection="nothing")


def test_an_unclosed_service_is_garbage_collected(tmp_path: Path) -> None:
    conversations = Conversations.open(f"sqlite:///{tmp_path}/clew.db?synchronous=OFF")
    conversations.start_thread()
    conversations.wait()
    core = weakref.ref(conversations._core.models)
    del conversations

    def is_collected() -> bool:
        gc.collect()
        return core() is None

    wait_until(is_collected)


def test_values_beyond_the_column_types_match_nothing(url: str) -> None:
    with Conversations.open(url) as service:
        service.start_thread("A title", messages=[Message.user("a word")])
        assert len(service.search("word", before=10**30, limit=10**30)) == 1
        assert not list(service.audit(after=10**30))
        assert not list(service.audit(actor="\udcff"))
        assert not list(service.threads(parent="\udcff"))
        assert len(service.rows("directory", Query("thread", limit=10**30))) == 1
        for value in ({"a": 1}, object()):
            with pytest.raises(InvalidProjectionError):
                service.rows("directory", Query("thread", [Where("title", "=", value)]))
        with pytest.raises(InvalidProjectionError, match="columns"):
            service.rows("directory", Query("thread", [Where("title", "in", Query("thread"))]))


async def wait_with_many_tasks(url: str) -> None:
    async with Engine.open(url, projections=[Events()], embedded=False) as engine:
        thread = await engine.start_thread()
        waiting = [asyncio.create_task(engine.wait()) for _ in range(100)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE):
            assert not (await thread.history()).messages
        for task in waiting[1:]:
            task.cancel()
        outcomes = await asyncio.gather(*waiting[1:], return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
    with pytest.raises(ClosedError):
        await waiting[0]


def test_waiting_tasks_occupy_no_threads(url: str) -> None:
    asyncio.run(wait_with_many_tasks(url))


class Misplaced:
    """A table that cannot be recounted: its key does not start with the tenant."""

    name = "misplaced"
    version = 1
    tables = (Table("of", (Column("thread_id"), Column("tenant"), Column("n", "integer", adds=True)), ("thread_id",)),)
    texts = ()
    types = frozenset({"message-redacted"})

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        yield Recount("of", event.tenant, event.kind, event.thread_id)


def test_parks_a_recount_of_a_table_without_thread_keys(url: str) -> None:
    with Conversations.open(url, projections=[Misplaced()]) as service:
        service.start_thread(messages=[Message.user("a word")]).redact(2)
        service.wait()
        assert "recounted" in service.projections()[0].parked_events[0].error


def test_rows_of_a_table_with_tenants_are_those_of_the_tenant(file_url: str) -> None:
    with Conversations.open(file_url, tenant="a") as one, Conversations.open(file_url, tenant="b") as other:
        one.start_thread("of a")
        other.start_thread("of b")
        all_titles = Query("thread", columns=["title"])
        assert one.rows("directory", all_titles) == [{"title": "of a"}]
        within = Where("thread_id", "in", Query("thread", columns=["thread_id"]))
        assert other.rows("directory", all_titles._replace(where=[within])) == [{"title": "of b"}]


def test_logs_an_unavailable_store_and_continues(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: object) -> dict[str, str]:
        message = "the server is unavailable"
        raise StoreUnavailableError(message)

    with Conversations.open("memory:") as conversations:
        with monkeypatch.context() as patched:
            patched.setattr(type(conversations._core.models._store), "holders", unavailable)
            conversations.start_thread()
            wait_until(lambda: bool(caplog.records))
        (record,) = caplog.records
        assert (record.levelname, record.exc_info) == ("WARNING", None)
        assert record.getMessage().endswith("the server is unavailable")
        conversations.start_thread()
        conversations.wait(timeout=10)


def test_continues_after_the_tables_are_deleted(file_url: str, tmp_path: Path) -> None:
    with Conversations.open(file_url) as conversations:
        conversations.start_thread("Refund", messages=[Message.user("parcel")])
        for _ in range(3):
            conversations.wait()
            (tmp_path / "clew.db.projections").unlink()
            assert [summary.title for summary in conversations.threads()] == ["Refund"]
            assert len(conversations.search("parcel")) == 1
