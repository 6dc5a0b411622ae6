"""The engine: the essentials of the service, cancellation, and concurrent tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest
from tests.service.settable_clock import SettableClock

from clew.aio.threads import LocalThread
from clew.domain.decider_state import Control
from clew.domain.errors import (
    CheckpointExistsError,
    ClosedError,
    ConflictError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadExistsError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.messages import Message
from clew.engine import Engine
from clew.infrastructure.postgres.datastore import WORKERS
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.service.core import CACHE_BYTES

HELLO = Message.user("Hello.")


@pytest.fixture
def with_engine(url: str, clock: SettableClock) -> Callable[[Callable[[Engine], Coroutine[Any, Any, None]]], None]:
    """Run a coroutine function with an open engine, in a new event loop."""

    def run(work: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
        async def opened() -> None:
            async with Engine.open(url, now=clock) as engine:
                await work(engine)

        asyncio.run(opened())

    return run


Run = Callable[[Callable[[Engine], Coroutine[Any, Any, None]]], None]


@contextmanager
def paused_writer(engine: Engine) -> Iterator[None]:
    """Pause the writer: it accepts appends but writes none of them."""
    recorder = cast("Any", engine._core.log).recorder
    if isinstance(recorder, PostgresRecorder):
        with ExitStack() as held:
            for _ in range(WORKERS):
                held.enter_context(recorder.datastore.writing.use())
            yield
        return
    with recorder.datastore.lock.held() if hasattr(recorder, "datastore") else recorder._database_lock:
        yield


def queued_writes(engine: Engine) -> int:
    recorder = cast("Any", engine._core.log).recorder
    if isinstance(recorder, PostgresRecorder):
        return recorder.datastore.pool.waiting
    queue = recorder.datastore.queue if hasattr(recorder, "datastore") else recorder._queue
    return cast("int", queue.waiting)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition while other tasks and threads run; the test's time limit ends a hopeless wait."""
    while not condition():  # noqa: ASYNC110  # the condition changes in a thread
        await asyncio.sleep(0.001)


async def append_two_while_paused(engine: Engine, thread: LocalThread) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
    """Append twice while the writer is paused: it has taken the first append, and the second one waits."""
    first = asyncio.create_task(thread.append(Message.user("taken")))
    await asyncio.sleep(0)
    await until(lambda: not queued_writes(engine))
    second = asyncio.create_task(thread.append(Message.user("waiting")))
    await until(lambda: queued_writes(engine) == 1)
    return first, second


async def texts(thread: LocalThread, **at: Any) -> list[str]:
    return [message.text for message in await thread.history(**at)]


def test_writes_and_reads_like_conversations(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread("Refund", thread_id="mine", messages=[HELLO], actor="user:1")
        message = await thread.append(Message.assistant("Hi."))
        assert (message.version, await thread.version, await thread.status) == (3, 3, "active")
        assert [each.version for each in await thread.append([HELLO, HELLO], expected_version=3)] == [4, 5]
        assert await thread.checkpoint("here", at=3) == 3
        await thread.label(topic="x")
        fork = await thread.fork(at="here", title="What if")
        assert await texts(fork) == ["Hello.", "Hi."]
        assert await thread.rewind(to=2) == 8
        assert await texts(thread) == ["Hello."]
        assert await texts(await thread.edit(3, "Ho.")) == ["Hello.", "Ho."]
        assert (await fork.redact(2)).version == 9
        assert (await thread.history()).messages[0].redacted
        assert (await thread.state(at=4)).version == 4
        assert [event.version async for event in thread.events(after=6)] == [7, 8, 9]
        assert [len(state.messages) async for _, state in thread.replay()] == [0, 1, 2, 3, 4, 4, 4, 1, 1]
        assert [each.title for each in await thread.forks()] == ["What if", "Refund"]
        assert (await thread.view()).messages == ()
        await thread.suspend()
        await thread.resume()
        await thread.end()
        assert await thread.status == (await thread.summary()).status == "ended"
        await thread.delete()
        assert [each.status async for each in engine.threads()] == ["deleted", "active", "active"]
        assert (await engine.verify()).first_bad is None
        assert (await fork.verify()).first_bad is None
        assert await (await engine.acting_as("user:2").start_thread()).version == 1

    with_engine(work)


def test_raises_the_same_errors(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread(thread_id="mine", messages=[HELLO])
        await thread.append(HELLO, idempotency_key="k")
        await thread.checkpoint("here")
        refused: list[tuple[type[Exception], Callable[[], Awaitable[object]]]] = [
            (ThreadExistsError, lambda: engine.start_thread(thread_id="mine")),
            (ThreadExistsError, lambda: thread.fork(thread_id="mine")),
            (UnknownThreadError, lambda: engine.thread("missing")),
            (UnknownThreadError, lambda: engine.verify("missing")),
            (ConflictError, lambda: thread.append(HELLO, expected_version=1)),
            (IdempotencyKeyReusedError, lambda: thread.append([HELLO, HELLO], idempotency_key="k")),
            (InvalidContentError, lambda: thread.append([])),
            (CheckpointExistsError, lambda: thread.checkpoint("here")),
            (UnknownVersionError, lambda: thread.history(at=99)),
            (NotRedactableError, lambda: thread.redact(1)),
        ]
        for error, use in refused:
            with pytest.raises(error):
                await use()
        await thread.delete()
        for use in (thread.history, thread.fork, lambda: engine.open_thread("mine"), lambda: thread.append(HELLO)):
            with pytest.raises(ThreadDeletedError):
                await use()

    with_engine(work)


def test_an_opened_thread_has_its_version_and_status(shared_url: str) -> None:
    async def work() -> None:
        async with Engine.open(shared_url) as engine:
            thread = await engine.start_thread(thread_id="mine", messages=[HELLO])
            await thread.suspend()
        async with Engine.open(shared_url) as engine:
            for opened in (await engine.open_thread("mine"), await engine.thread("mine")):
                assert (await opened.version, await opened.status) == (3, "suspended")

    asyncio.run(work())


# Cancellation


def test_a_write_cancelled_in_the_queue_is_never_stored(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        with paused_writer(engine):
            first, second = await append_two_while_paused(engine, thread)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        assert (await first).version == 2
        assert await texts(thread) == ["taken"]
        assert (await thread.append(Message.user("again"), expected_version=2)).version == 3
        assert (await thread.summary()).messages == 2

    with_engine(work)


def test_a_later_cancellation_waits_for_the_outcome_of_the_write(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        with paused_writer(engine):
            first, second = await append_two_while_paused(engine, thread)
            for _ in range(3):
                first.cancel()
                await asyncio.sleep(0.01)
                assert not first.done()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).version == 3
        assert await texts(thread) == ["taken", "waiting"]
        assert (await thread.append(HELLO, expected_version=3)).version == 4

    with_engine(work)


def test_a_cancelled_write_that_was_stored_is_found_by_its_idempotency_key(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        with paused_writer(engine):
            append = asyncio.create_task(thread.append(HELLO, idempotency_key="k", expected_version=1))
            await asyncio.sleep(0)
            await until(lambda: not queued_writes(engine))
            append.cancel()
        with pytest.raises(asyncio.CancelledError):
            await append
        assert (await thread.append(HELLO, idempotency_key="k", expected_version=1)).version == 2
        assert (await thread.summary()).version == 2

    with_engine(work)


def test_a_timeout_raises_its_own_error(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        with paused_writer(engine):
            first = asyncio.create_task(thread.append(HELLO))
            await asyncio.sleep(0)
            await until(lambda: not queued_writes(engine))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await thread.append(Message.user("too late"))
        await first
        assert await texts(thread) == ["Hello."]

    with_engine(work)


def test_an_append_after_a_cancelled_one_is_decided_again(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        with paused_writer(engine):
            first, second = await append_two_while_paused(engine, thread)
            third = asyncio.create_task(thread.append(Message.user("third")))
            await until(lambda: queued_writes(engine) == 2)
            second.cancel()
            await asyncio.sleep(0.01)
        assert [(await first).version, (await third).version] == [2, 3]
        assert await texts(thread) == ["taken", "third"]
        assert [event.messages async for event in thread.events()] == [0, 1, 2]

    with_engine(work)


# Concurrent tasks


def test_sixteen_tasks_on_one_thread_lose_nothing(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()

        async def write(writer: int) -> None:
            for number in range(20):
                await thread.append(Message.user(f"{writer} {number}"))

        await asyncio.gather(*(write(writer) for writer in range(16)))
        written = await texts(thread)
        assert len(written) == (await thread.summary()).messages == 320
        for writer in range(16):
            own = [text for text in written if text.startswith(f"{writer} ")]
            assert own == [f"{writer} {number}" for number in range(20)]
        assert [event.messages async for event in thread.events()] == list(range(321))

    with_engine(work)


def test_sixteen_tasks_on_one_thread_share_commits(file_url: str) -> None:
    async def work() -> None:
        async with Engine.open(file_url) as engine:
            thread = await engine.start_thread()
            writer = cast("Any", engine._core.log).recorder.datastore._writer
            before = writer.commits
            with paused_writer(engine):
                appends = [asyncio.create_task(thread.append(HELLO)) for _ in range(16)]
                await asyncio.sleep(0.01)
            versions = [message.version for message in await asyncio.gather(*appends)]
            assert versions == list(range(2, 18))
            assert writer.commits - before <= 2

    asyncio.run(work())


def test_a_batch_wakes_the_loop_once_for_all_its_tasks(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Engine.open(file_url) as engine:
            threads = [await engine.start_thread() for _ in range(16)]
            queue = cast("Any", engine._core.log).recorder.datastore.queue
            loop, woken = asyncio.get_running_loop(), list[object]()
            call = loop.call_soon_threadsafe

            def count(wake: Callable[[], None]) -> asyncio.Handle:
                woken.append(wake)
                return call(wake)

            with paused_writer(engine):
                appends = [asyncio.create_task(thread.append(HELLO)) for thread in threads]
                await asyncio.sleep(0.01)
                monkeypatch.setattr(loop, "call_soon_threadsafe", count)
            while queue.waiting or queue._writing:
                time.sleep(0.001)  # noqa: ASYNC251  # the loop must not take the first outcome before the last is set
            assert len(woken) == 1
            monkeypatch.undo()
            assert {message.version for message in await asyncio.gather(*appends)} == {2}

    asyncio.run(work())


def test_exactly_one_of_sixteen_tasks_wins_a_version(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        appends = [thread.append(Message.user(str(number)), expected_version=1) for number in range(16)]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert sum(isinstance(each, ConflictError) for each in outcomes) == 15
        assert (await thread.summary()).version == 2

    with_engine(work)


# Subscriptions and closing


def test_a_subscription_follows_new_events(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread(messages=[HELLO])
        async with engine.subscribe() as everything, thread.subscribe(after=1) as one:
            assert [(await anext(everything)).version for _ in range(2)] == [1, 2]
            assert await everything.wait(0) is None
            assert await everything.wait(0.01) is None
            coming = asyncio.create_task(anext(everything))
            await asyncio.sleep(0.01)
            await (await engine.start_thread(thread_id="other")).append(HELLO)
            assert (await coming).thread_id == "other"
            assert (await anext(everything)).version == 2
            assert (await anext(one)).version == 2
            assert await one.wait(0) is None

    with_engine(work)


def test_a_cancelled_wait_loses_no_event(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        async with thread.subscribe() as events:
            assert (await anext(events)).version == 1
            for number in range(10):
                wait = asyncio.create_task(anext(events))
                await asyncio.sleep(number / 1000)
                wait.cancel()
                await asyncio.wait([wait])
            await thread.append([HELLO] * 5)
            assert [(await anext(events)).version for _ in range(5)] == [2, 3, 4, 5, 6]

    with_engine(work)


@pytest.mark.parametrize("closing", ["the subscription", "the engine"])
def test_close_ends_an_iteration_that_waits_in_another_task(with_engine: Run, closing: str) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread(messages=[HELLO])
        subscription = thread.subscribe()
        versions: list[int] = []

        async def follow() -> None:
            async for event in subscription:
                versions.append(event.version)  # noqa: PERF401  # the test reads the list while it grows

        following = asyncio.create_task(follow())
        await until(lambda: len(versions) == 2)
        if closing == "the engine":
            await engine.close()
        else:
            subscription.close()
        await following
        assert versions == [1, 2]
        assert await subscription.wait(0) is None

    with_engine(work)


def test_close_loses_no_submitted_write_and_later_calls_are_refused(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        append = asyncio.create_task(thread.append(HELLO))
        await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        assert (await append).version == 2
        for use in (engine.start_thread, thread.history, thread.summary, lambda: thread.append(HELLO), engine.verify):
            with pytest.raises(ClosedError):
                await use()

    with_engine(work)


def test_a_thread_object_reads_its_version_after_many_other_threads_were_read(with_engine: Run) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread()
        await thread.append(HELLO)
        await thread.end()
        engine._core.caches.stored.put("all of the memory", Control(), CACHE_BYTES)
        assert engine._core.caches.stored.get(f"default/thread/{thread.id}") is None
        assert (await thread.version, await thread.status) == (3, "ended")

    with_engine(work)
