"""Subscriptions are woken by the commits that concern them, and by no others."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, run_threads

from clew import Conversations, Engine, Message
from clew.domain.events import Event

HELLO = Message.user("Hello")

EVENTS = 30


def count_reads(monkeypatch: pytest.MonkeyPatch, core: Any) -> Counter[str]:
    """From now on, count the reads of subscriptions: by stream, and by the prefix of a tenant."""
    reads = Counter[str]()
    lineage, events_after = core.log.lineage, core.log.events_after

    def counted_lineage(stream: str, *, after: int = 0, upto: int | None = None) -> list[Event]:
        reads[stream] += 1
        events: list[Event] = lineage(stream, after=after, upto=upto)
        return events

    def counted_events(position: int, limit: int, prefix: str) -> list[Event]:
        reads[prefix] += 1
        events: list[Event] = events_after(position, limit, prefix)
        return events

    monkeypatch.setattr(core.log, "lineage", counted_lineage)
    monkeypatch.setattr(core.log, "events_after", counted_events)
    return reads


def test_a_waiting_subscription_reads_nothing_when_others_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(url) as conversations:
        quiet, busy = (conversations.start_thread(thread_id=name) for name in ("quiet", "busy"))
        core = conversations._core
        reads = count_reads(monkeypatch, core)
        with quiet.subscribe(after=1) as events:
            coming: list[Any] = []
            waiting = threading.Thread(target=lambda: coming.append(events.wait(PATIENCE)))
            waiting.start()
            for _ in range(20):
                busy.append(HELLO)
            before = reads[core.stream("quiet")]
            quiet.append(HELLO)
            waiting.join(PATIENCE)
            assert before <= 1
            assert reads[core.stream("quiet")] <= 3
            assert [each.version for each in coming] == [2]


def test_a_waiting_subscription_of_an_engine_reads_nothing_when_others_commit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with Engine.open(url) as engine:
            quiet, busy = [await engine.start_thread(thread_id=name) for name in ("quiet", "busy")]
            core = engine._core
            reads = count_reads(monkeypatch, core)
            async with quiet.subscribe(after=1) as events:
                coming = asyncio.create_task(events.wait(PATIENCE))
                for _ in range(20):
                    await busy.append(HELLO)
                before = reads[core.stream("quiet")]
                await quiet.append(HELLO)
                event = await coming
                assert before <= 1
                assert event is not None
                assert event.version == 2

    asyncio.run(work())


def test_a_waiting_subscription_of_a_tenant_reads_nothing_when_other_tenants_commit(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenants of this process share a file, or a database."""
    with Conversations.open(shared_url, tenant="a/b") as ours, Conversations.open(shared_url, tenant="a") as theirs:
        theirs_busy = theirs.start_thread()
        core = ours._core
        reads = count_reads(monkeypatch, core)
        with ours.subscribe() as events:
            coming: list[Any] = []
            waiting = threading.Thread(target=lambda: coming.append(events.wait(PATIENCE)))
            waiting.start()
            for _ in range(20):
                theirs_busy.append(HELLO)
            before = reads[core.prefix()]
            ours.start_thread(thread_id="first")
            waiting.join(PATIENCE)
            assert before <= 1
            assert [each.thread_id for each in coming] == ["first"]


def test_a_subscription_of_a_fork_gets_the_events_of_the_fork(conversations: Conversations) -> None:
    trunk = conversations.start_thread(messages=[HELLO, HELLO])
    fork = trunk.fork(at=2)
    with fork.subscribe() as events:
        received: list[tuple[str, int]] = []

        def follow() -> None:
            for event in events:
                received.append((event.thread_id or "", event.version))
                if len(received) == 5:
                    return

        following = threading.Thread(target=follow)
        following.start()
        for _ in range(2):
            trunk.append(HELLO)
            fork.append(HELLO)
        following.join(PATIENCE)
    assert received == [(trunk.id, 1), (trunk.id, 2), (fork.id, 3), (fork.id, 4), (fork.id, 5)]


def test_no_subscriber_misses_the_last_event_of_many_concurrent_writers(shared_url: str) -> None:
    """Of a thread or of the tenant, in the process that writes and in another store, which the poller wakes."""
    with Conversations.open(shared_url) as writing, Conversations.open(shared_url) as reading:
        threads = [writing.start_thread(thread_id=f"t{number}").id for number in range(4)]

        def write(id_: str) -> None:
            for _ in range(EVENTS):
                writing.thread(id_).append(HELLO)

        def follow(subscribe: Callable[[], Any], count: int) -> None:
            with subscribe() as events:
                for number in range(count):
                    assert events.wait(PATIENCE) is not None, f"event {number} of {count} did not arrive"

        run_threads(
            [
                *(partial(write, id_) for id_ in threads),
                *(
                    partial(follow, partial(store.thread(id_).subscribe), EVENTS + 1)
                    for store in (writing, reading)
                    for id_ in threads
                ),
                *(partial(follow, store.subscribe, (EVENTS + 1) * len(threads)) for store in (writing, reading)),
            ]
        )


def test_a_store_without_subscribers_is_not_polled(tmp_path: Path) -> None:
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db") as conversations:
        before = set(threading.enumerate())
        thread = conversations.start_thread(messages=[HELLO])
        assert not _pollers() - before
        with thread.subscribe(), conversations.subscribe():
            (poller,) = _pollers() - before
        poller.join(PATIENCE)
        assert not poller.is_alive()


def _pollers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "clew-poller"}
