"""Batches: one commit over threads and scopes, in both APIs and on each store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.service.colours import COLOURS, opened
from tests.service.settable_clock import SettableClock

from clew import Conversations, Engine, Message, Record
from clew.domain.decider_state import Control, advance
from clew.domain.errors import (
    BatchError,
    ConflictError,
    FactConflictError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    InvalidNameError,
    NotAuthorizedError,
    ReadOnlyStoreError,
    ThreadStatusError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.history import HistoryMessage
from clew.domain.memory.events import Provenance
from clew.domain.records import ThreadRecord
from clew.domain.streams import thread_stream
from clew.service.memory.streams import scope_stream


@pytest.fixture(params=COLOURS)
def service(request: pytest.FixtureRequest, url: str, clock: SettableClock) -> Iterator[Any]:
    with opened(request.param, url, now=clock) as service:
        yield service


def said(thread: Any) -> list[str]:
    return [message.text for message in thread.history().messages]


def write(service: Any, *parts: Callable[[Any], Any], **options: Any) -> None:
    with service.batch(**options) as batch:
        for part in parts:
            part(batch)


def stored(service: Any) -> int:
    count: int = service.verify().events
    return count


def test_a_batch_writes_threads_and_scopes_in_one_commit(service: Any) -> None:
    one, two = service.start_thread(thread_id="one"), service.start_thread(thread_id="two")
    user, settings = service.memory("user/42"), service.memory("settings")
    before = stored(service)
    commits = _commits(service)
    with service.batch() as batch:
        first = batch.append(one, [Message.user("a"), Record("step", {"n": 1})])
        second = batch.append(two, Message.user("b"), expected_version=1)
        third = batch.append(one, Message.assistant("c"), expected_version=3)
        put = batch.put(user, "units", "km", expected=0)
        again = batch.put(user, "units", "miles")
        batch.put(settings, "theme", {"dark": True}, text="a dark theme")
        batch.delete(user, "units")
        batch.delete(user, "never")
        last = batch.put(user, "units", "m", expected=0)
        assert (stored(service), said(one), user.facts()) == (before, [], [])
    assert len(commits) == 1
    assert [(type(item), item.version) for item in first.result] == [(HistoryMessage, 2), (ThreadRecord, 3)]
    assert ([item.version for item in second.result], [item.version for item in third.result]) == ([2], [4])
    assert (said(one), said(two), one.version, two.version) == (["a", "c"], ["b"], 4, 2)
    assert [fact.status for fact in (put.result, again.result, last.result)] == ["superseded", "retracted", "live"]
    assert [fact.version for fact in (put.result, again.result, last.result)] == [2, 3, 5]
    assert user.get("units") == last.result
    assert [hit.fact.value for hit in settings.search("dark")] == [{"dark": True}]
    assert [hit.thread_id for hit in service.search("b")] == ["two"]
    verdict = service.verify()
    assert (verdict.events, verdict.first_bad) == (before + 11, None)


def _commits(service: Any) -> list[Any]:
    """The writes that are submitted from now on."""
    log: Any = (service if isinstance(service, Conversations) else service._wrapped)._core.log
    submit, commits = log.submit, list[Any]()

    def counted(write: Any) -> Any:
        commits.append(write)
        return submit(write)

    log.submit = counted
    return commits


def test_later_appends_follow_a_batch(service: Any) -> None:
    thread, other = service.start_thread(), service.start_thread()
    for number in range(3):
        with service.batch() as batch:
            batch.append(thread, Message.user(f"{number}"))
            batch.append(other, Message.user(f"{number}"))
        thread.append(Message.user("between"))
    assert said(thread) == ["0", "between", "1", "between", "2", "between"]
    assert said(other) == ["0", "1", "2"]


def test_an_error_in_the_block_stores_nothing(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    before = stored(service)
    parts: list[Any] = []

    def failing(batch: Any) -> None:
        parts.extend([batch.append(thread, Message.user("a")), batch.put(scope, "units", "km")])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(service, failing)
    assert stored(service) == before
    for part in parts:
        with pytest.raises(BatchError, match="not stored"):
            _ = part.result


def test_an_empty_batch_stores_nothing(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    commits = _commits(service)
    with service.batch():
        pass
    with service.batch() as batch:
        batch.delete(scope, "never")
    assert (commits, thread.version) == ([], 1)


def test_an_unexpected_version_of_a_thread_refuses_the_whole_batch(service: Any) -> None:
    one, two = service.start_thread(thread_id="one"), service.start_thread(thread_id="two")
    scope = service.memory("user/42")
    two.append(Message.user("first"))
    before = stored(service)
    with pytest.raises(ConflictError) as raised:
        write(
            service,
            lambda batch: batch.append(one, Message.user("a")),
            lambda batch: batch.put(scope, "units", "km"),
            lambda batch: batch.append(two, Message.user("b"), expected_version=1),
        )
    assert (raised.value.stream, raised.value.expected, raised.value.actual) == ("two", 1, 2)
    assert (stored(service), said(one)) == (before, [])
    one.append(Message.user("c"))
    assert said(one) == ["c"]


def test_an_unexpected_fact_refuses_the_whole_batch(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    fact = scope.put("units", "km")
    before = stored(service)
    for expected in (0, fact.version + 1):
        with pytest.raises(FactConflictError, match="'units'"):
            write(
                service,
                lambda batch: batch.append(thread, Message.user("a")),
                lambda batch, expected=expected: batch.put(scope, "units", "miles", expected=expected),  # type: ignore[misc]  # bound
            )
    with pytest.raises(FactConflictError):
        write(
            service,
            lambda batch: batch.put(scope, "units", "miles", expected=fact.version),
            lambda batch: batch.delete(scope, "units", expected=fact.version),
        )
    assert stored(service) == before


def test_a_refused_thread_refuses_the_whole_batch(service: Any) -> None:
    one, ended = service.start_thread(), service.start_thread()
    ended.end()
    before = stored(service)
    with pytest.raises(ThreadStatusError):
        write(
            service,
            lambda batch: batch.append(one, Message.user("a")),
            lambda batch: batch.append(ended, Message.user("b")),
        )
    assert (stored(service), said(one)) == (before, [])


def test_arguments_are_checked_at_once(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    before = stored(service)
    wrong: list[tuple[type[Exception], Callable[[Any], Any]]] = [
        (InvalidContentError, lambda batch: batch.append(thread, [])),
        (InvalidContentError, lambda batch: batch.append(thread, "text")),
        (UnknownVersionError, lambda batch: batch.append(thread, Message.user("a"), expected_version="1")),
        (InvalidNameError, lambda batch: batch.append(thread, Message.user("a"), actor="")),
        (InvalidNameError, lambda batch: batch.append(thread, Message.user("a"), on_behalf_of="")),
        (InvalidContentError, lambda batch: batch.put(scope, "units", object())),
        (InvalidContentError, lambda batch: batch.put(scope, "", 1)),
        (InvalidNameError, lambda batch: batch.put(scope, "units", 1, actor="")),
        (UnknownVersionError, lambda batch: batch.delete(scope, "units", expected=-1)),
        (BatchError, lambda batch: batch.append("one", Message.user("a"))),
        (BatchError, lambda batch: batch.put("user/42", "units", 1)),
    ]
    for error, part in wrong:
        with service.batch() as batch, pytest.raises(error):
            part(batch)
    assert stored(service) == before


def test_parts_are_copies(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    data: dict[str, Any] = {"list": [1]}
    with service.batch() as batch:
        batch.append(thread, Record("step", data))
        batch.put(scope, "units", data)
        data["list"].append(2)
    assert (thread.records("step")[0].data, scope.get("units").value) == ({"list": [1]}, {"list": [1]})


def test_a_batch_takes_parts_only_in_its_block(service: Any) -> None:
    thread, scope, batch = service.start_thread(), service.memory("user/42"), service.batch()
    parts: list[Callable[[], Any]] = [
        lambda: batch.append(thread, Message.user("a")),
        lambda: batch.put(scope, "units", 1),
        lambda: batch.delete(scope, "units"),
    ]
    for part in parts:
        with pytest.raises(BatchError, match="only inside its block"):
            part()
    with batch:
        pass
    for part in parts:
        with pytest.raises(BatchError, match="only inside its block"):
            part()
    with pytest.raises(BatchError, match="written once"):
        batch.__enter__()
    assert (thread.version, scope.facts()) == (1, [])


def test_the_actor_is_that_of_the_thread_and_the_scope(service: Any) -> None:
    ann = service.acting_as("user:ann")
    thread, scope = ann.start_thread(thread_id="one"), ann.memory("user/42")
    same, other = service.thread("one"), service.memory("user/42")
    time = datetime(2020, 1, 1, tzinfo=UTC)
    with service.batch() as batch:
        parts = [batch.append(thread, Message.user("a"), said_at=time, on_behalf_of="user:eve")]
        parts += [batch.append(same, Message.user("b")), batch.append(same, Message.user("c"), actor="user:bob")]
        facts = [batch.put(scope, "a", 1), batch.put(other, "b", 1), batch.put(other, "c", 1, actor="user:bob")]
    assert [part.result[0].actor for part in parts] == ["user:ann", None, "user:bob"]
    assert [fact.result.actor for fact in facts] == ["user:ann", None, "user:bob"]
    (first,) = parts[0].result
    assert (first.said_at, first.on_behalf_of) == (time, "user:eve")


def test_a_fact_of_a_batch_has_its_source(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    source = Provenance(thread=thread.id, version=1)
    with service.batch() as batch:
        put = batch.put(scope, "units", "km", source=source)
    assert put.result.learned == source
    with pytest.raises(InvalidContentError, match="not a version"), service.batch() as batch:
        batch.put(scope, "units", "km", source=Provenance(thread=thread.id, version=0))


# Idempotency keys


def test_a_repeated_batch_stores_nothing_and_returns_the_first_results(service: Any) -> None:
    one, two, scope, other = (
        service.start_thread(), service.start_thread(), service.memory("user/42"), service.memory("other")
    )  # fmt: skip
    for number in range(2):
        scope.remember(f"{number}", key="units")
    results = []
    for _ in range(2):
        with service.batch(idempotency_key="k") as batch:
            parts = [
                batch.append(one, [Message.user("a"), Message.user("b")], expected_version=1),
                batch.append(two, Record("step", 1)),
                batch.append(one, Message.user("c")),
                batch.put(other, "z", 1, expected=0),
                batch.put(scope, "units", "km"),
                batch.put(scope, "units", "miles"),
                batch.put(other, "y", 2),
            ]
            batch.delete(other, "y")
        results.append([part.result for part in parts])
        one.append(Message.user("between"))
    assert results[0] == results[1]
    assert said(one) == ["a", "b", "c", "between", "between"]
    assert [fact.value for fact in other.facts()] == [1]


def test_a_store_with_keyed_batches_verifies(service: Any) -> None:
    thread, one, two = service.start_thread(), service.memory("one"), service.memory("two")
    write(service, lambda b: b.put(one, "a", 1), lambda b: b.append(thread, Message.user("A")), idempotency_key="k1")
    write(service, lambda b: b.delete(one, "a"), lambda b: b.put(two, "b", 2), idempotency_key="k2")
    assert service.verify().first_bad is None


def test_a_key_with_other_parts_is_refused(service: Any) -> None:
    thread, scope = service.start_thread(), service.memory("user/42")
    with service.batch(idempotency_key="k") as batch:
        batch.append(thread, Message.user("a"))
        batch.put(scope, "units", "km")
    before = stored(service)
    same = (lambda batch: batch.append(thread, Message.user("a")), lambda batch: batch.put(scope, "units", "km"))
    for others in (
        (same[0], lambda batch: batch.put(scope, "units", "miles")),
        (*same, lambda batch: batch.delete(scope, "units")),
        same[:1],
    ):
        with pytest.raises(IdempotencyKeyReusedError):
            write(service, *others, idempotency_key="k")
    with pytest.raises(IdempotencyKeyReusedError):
        thread.append(Message.user("a"), idempotency_key="k")
    with pytest.raises(BatchError, match="needs an append or a put"), service.batch(idempotency_key="k") as batch:
        batch.delete(scope, "units")
    with pytest.raises(InvalidNameError), service.batch(idempotency_key="") as batch:
        batch.append(thread, Message.user("a"))
    assert stored(service) == before


# Whose threads


def test_refuses_threads_and_scopes_of_another_tenant_or_service(url: str) -> None:
    if url == "memory:":
        return
    with Conversations.open(url) as a, Conversations.open(url, tenant="b") as b, Conversations.open(url) as again:
        mine, theirs, same = a.start_thread(), b.start_thread(), again.start_thread()
        with a.batch() as batch:
            for part in (theirs, same):
                with pytest.raises(BatchError, match=f"tenant {part._core.tenant!r} of another service than the batch"):
                    batch.append(part, Message.user("a"))
            with pytest.raises(BatchError, match="the scope 'user/42' belongs to the tenant 'b'"):
                batch.put(b.memory("user/42"), "units", 1)
            batch.append(mine, Message.user("mine"))
        assert (theirs.version, same.version, said(mine)) == (1, 1, ["mine"])


def test_asks_for_each_thread_and_scope(url: str) -> None:
    def authorize(actor: str | None, action: str, thread: str | None) -> bool:
        return actor is None or (action != "memory" and thread != "hidden")

    with Conversations.open(url, authorize=authorize) as service:
        shown, hidden, scope = service.start_thread(), service.start_thread(thread_id="hidden"), service.memory("s")
        ann = service.acting_as("user:ann")
        before = stored(service)
        hers = ann.thread(shown.id)
        hidden._core = ann._core
        hidden_scope = type(scope)(type(scope._scope)(ann._core, "s"))
        refused: list[Callable[[Any], Any]] = [
            lambda batch: batch.append(hidden, Message.user("b")),
            lambda batch: batch.put(hidden_scope, "k", 1),
            lambda batch: (batch.put(scope, "k", 1), batch.put(hidden_scope, "k", 1)),
        ]
        for part in refused:
            with pytest.raises(NotAuthorizedError):
                write(ann, lambda batch: batch.append(hers, Message.user("a")), part)
        assert stored(service) == before


def test_refuses_a_missing_thread(url: str) -> None:
    with Conversations.open(url) as service:
        thread = service.start_thread()
        missing = service.start_thread()
        missing.id = "missing"
        with pytest.raises(UnknownThreadError):
            write(
                service,
                lambda batch: batch.append(thread, Message.user("a")),
                lambda batch: batch.append(missing, Message.user("a")),
            )
        assert thread.version == 1


def test_a_store_that_is_only_read_refuses_a_batch(file_url: str) -> None:
    with Conversations.open(file_url) as service:
        thread_id = service.start_thread().id
    with Conversations.open(file_url, read_only=True) as service:
        thread = service.thread(thread_id)
        with pytest.raises(ReadOnlyStoreError):
            write(service, lambda batch: batch.append(thread, Message.user("a")))


# Conflicts and concurrency


def test_a_batch_is_decided_again_after_a_conflict(shared_url: str) -> None:
    with Conversations.open(shared_url) as service, Conversations.open(shared_url) as other:
        one, two, scope = service.start_thread(), service.start_thread(), service.memory("user/42")
        with service.batch() as batch:
            batch.append(one, Message.user("a"))
            batch.append(two, Message.user("a"))
        other.thread(two.id).append(Message.user("other"))
        other.memory("user/42").put("units", "km")
        with service.batch() as batch:
            part = batch.append(one, Message.user("b"))
            batch.append(two, Message.user("b"), expected_version=3)
            put = batch.put(scope, "units", "miles")
        assert (part.result[0].version, put.result.version) == (3, 3)
        other.thread(two.id).append(Message.user("more"))
        with pytest.raises(ConflictError) as raised:
            write(
                service,
                lambda batch: batch.append(one, Message.user("c")),
                lambda batch: batch.append(two, Message.user("c"), expected_version=4),
            )
        assert (raised.value.stream, raised.value.expected, raised.value.actual) == (two.id, 4, 5)
        assert (said(one), said(two)) == (["a", "b"], ["a", "other", "b", "more"])


def test_a_scope_that_changes_before_the_commit_is_decided_again(conversations: Conversations) -> None:
    scope, core = conversations.memory("user/42"), conversations._core
    lock_of_scope = core.caches.lock(scope_stream(core, scope.name))
    thread = conversations.start_thread()
    while core.caches.lock(core.stream(thread.id)) is lock_of_scope:  # held below, where the test writes to the scope
        thread = conversations.start_thread()
    log = core.log
    submit, attempts = log.submit, []

    def interfering(write: Any) -> Any:
        attempts.append(write)
        if len(attempts) == 1:
            log.submit = submit  # type: ignore[method-assign]
            scope.put("units", "km")
            log.submit = interfering  # type: ignore[method-assign]
        return submit(write)

    log.submit = interfering  # type: ignore[method-assign]
    with conversations.batch() as batch:
        batch.append(thread, Message.user("a"))
        put = batch.put(scope, "units", "miles")
    assert (len(attempts), put.result.version, said(thread)) == (2, 3, ["a"])
    assert [fact.value for fact in scope.facts()] == ["miles"]


def test_batches_and_appends_of_many_threads_lose_and_repeat_nothing(conversations: Conversations) -> None:
    threads = [conversations.start_thread() for _ in range(3)]
    together = threading.Barrier(4)
    failed: list[BaseException] = []

    def write(number: int) -> None:
        scope = conversations.memory("counts")
        try:
            together.wait()
            for each in range(6):
                pair = [threads[(number + each) % 3], threads[(number + 1 + each) % 3]]
                with conversations.batch() as batch:
                    for thread in reversed(pair) if number % 2 else pair:
                        batch.append(thread, Message.user(f"{number}.{each}"))
                    batch.put(scope, f"writer {number}", each)
                    batch.put(scope, "last", [number, each])
                threads[number % 3].append(Message.user(f"alone {number}.{each}"))
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failed == []
    texts = [text for thread in threads for text in said(thread)]
    pairs = [f"{number}.{each}" for number in range(4) for each in range(6)]
    assert sorted(texts) == sorted([*pairs, *pairs, *(f"alone {pair}" for pair in pairs)])
    facts = {fact.key: fact.value for fact in conversations.memory("counts").facts()}
    assert len(facts) == 5
    assert [facts[f"writer {number}"] for number in range(4)] == [5] * 4
    assert conversations.verify().first_bad is None


def test_a_batch_writes_snapshots(conversations: Conversations) -> None:
    threads = [conversations.start_thread() for _ in range(2)]
    for _ in range(5):
        with conversations.batch() as batch:
            for thread in threads:
                batch.append(thread, [Message.user("x")] * 150)
    assert [thread.version for thread in threads] == [751, 751]
    recorder: Any = conversations._core.log
    for thread in threads:
        snapshot = recorder._recorder.snapshot(thread_stream("default", thread.id))
        assert snapshot is not None
        assert recorder.control(thread_stream("default", thread.id)) == _folded(recorder, thread.id)


def _folded(log: Any, thread_id: str) -> Control:
    control = Control()
    for event in log.lineage(thread_stream("default", thread_id)):
        control = advance(control, event)
    return control


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_block_stores_nothing(url: str) -> None:
    async with Engine.open(url) as engine:
        thread, scope = await engine.start_thread(), await engine.memory("user/42")
        inside = asyncio.Event()

        async def write() -> None:
            async with engine.batch() as batch:
                batch.append(thread, Message.user("a"))
                batch.put(scope, "units", "km")
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(write())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await thread.version, await scope.facts()) == (1, [])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_commit_is_stored_as_a_whole_or_not_at_all(url: str, turns: int) -> None:
    async with Engine.open(url) as engine:
        one, two, scope = await engine.start_thread(), await engine.start_thread(), await engine.memory("user/42")

        async def write() -> None:
            async with engine.batch() as batch:
                batch.append(one, Message.user("a"))
                batch.append(two, Message.user("a"))
                batch.put(scope, "units", "km")

        task = asyncio.create_task(write())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await one.append(Message.user("after"))
        written = (await two.version) - 1
        assert (await one.version, len(await scope.facts())) == (2 + written, written)
