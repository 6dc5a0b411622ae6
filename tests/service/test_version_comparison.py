"""Steps show any version of a thread, equal to folding its events, without folding all of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.thread_operations import apply_operation, operations

from clew.conversations import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY
from clew.domain.errors import ThreadDeletedError, UnknownThreadError, UnknownVersionError
from clew.domain.history import Step
from clew.domain.messages import Message
from clew.engine import Engine
from clew.service import history_reads
from clew.sync.threads import LocalThread


def check(thread: LocalThread, last: int) -> None:
    head = thread.state().control
    before: tuple[Any, ...] = ()
    for event in thread.events():
        step, state = thread.step(at=event.version, last=last), thread.state(at=event.version)
        assert step.event == event
        assert (step.control, step.head) == (state.control, head)
        assert step.messages == state.messages[max(0, len(state.messages) - last) :]
        abandoned = before[max(0, len(before) - last) :]
        assert step.taken == tuple(message for message in abandoned if message not in state.messages)
        before = state.messages


@given(operations, st.integers(0, 6), st.integers(1, 7))
def test_every_step_equals_the_folded_thread(operations_done: list[tuple[str, int]], last: int, page: int) -> None:
    with pytest.MonkeyPatch.context() as patch, Conversations.open("memory:") as conversations:
        patch.setattr(history_reads, "FIRST_PAGE_BACK", page)
        thread = conversations.start_thread("Made", messages=[Message.user("first")])
        threads = {thread.id: thread}
        for count, (operation, number) in enumerate(operations_done):
            thread = apply_operation(thread, operation, number, count)
            threads[thread.id] = thread
        for each in threads.values():
            check(each, last)


def test_a_step_at_a_rewind_shows_the_removed_messages(
    conversations: Conversations,
) -> None:
    thread = conversations.start_thread(messages=[Message.user(text) for text in ("one", "two", "three")])
    thread.checkpoint("before", at=2)
    thread.rewind(to="before")
    thread.append(Message.user("other"))
    thread.rewind(to=4)

    def texts(step: Step) -> tuple[list[str], list[str]]:
        return [message.text for message in step.messages], [message.text for message in step.taken]

    assert texts(thread.step(at=4)) == (["one", "two", "three"], [])
    assert texts(thread.step(at=6)) == (["one"], ["two", "three"])
    assert texts(thread.step(at=6, last=1)) == (["one"], ["three"])
    assert texts(thread.step(at=7)) == (["one", "other"], [])
    assert texts(thread.step()) == (["one", "two", "three"], ["other"])
    assert texts(thread.step(at_message=2)) == (["one", "two"], [])
    assert thread.step(at="before").checkpoints == ("before",)
    assert thread.step().checkpoints == ()
    assert (thread.step(at=2).version, thread.step(at=2).newest, thread.step(at=2).status) == (2, 8, "active")


def test_refuses_missing_versions_and_threads(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="gone")
    for version in (0, 2, -1):
        with pytest.raises(UnknownVersionError):
            thread.step(at=version)
    thread.delete()
    with pytest.raises(ThreadDeletedError, match="replay"):
        thread.step(at=1)
    with pytest.raises(UnknownThreadError):
        LocalThread(thread._core, thread._live, "none").step()


def test_a_step_is_a_copy(conversations: Conversations) -> None:
    thread = conversations.start_thread(labels={"topic": ["a"]})
    step = thread.step()
    step.control.labels["topic"].append("b")  # type: ignore[union-attr]  # it is a list
    step.head.checkpoints["x"] = 1
    assert thread.step().control.labels == {"topic": ["a"]}
    assert thread.step().checkpoints == ()


def test_the_engine_steps_the_same(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="one", messages=[Message.user("a"), Message.user("b")])
        thread.rewind(to=2)
        steps = [thread.step(at=version, last=1) for version in range(1, 5)]

    async def engine_steps() -> list[Step]:
        async with Engine.open(shared_url) as engine:
            step = await engine.thread("one")
            return [await step.step(at=version, last=1) for version in range(1, 5)]

    assert asyncio.run(engine_steps()) == steps


@pytest.mark.parametrize("shape", ["plain", "one commit", "forked", "rewound"])
def test_reads_a_bounded_part_of_a_long_thread(file_url: str, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread(thread_id="long")
        if shape == "one commit":
            thread.append([Message.user(str(each)) for each in range(2_000)])
        while thread.version < 2_000:
            thread.append([Message.user(f"{thread.version} {each}") for each in range(100)])
            if shape == "forked" and thread.version % 500 < 100:
                thread = thread.fork()
            if shape == "rewound" and thread.version % 500 < 100:
                thread.rewind(to=thread.version - 50)
        name, versions = thread.id, random.Random(7).sample(range(1, thread.version), 40)
    with Conversations.open(file_url) as conversations:
        again = conversations.thread(name)
        again.step()  # the newest control is cached from now on
        rows: list[int] = []
        recorder = conversations._core.log.recorder  # type: ignore[attr-defined]  # the log is an application
        lineage = recorder.lineage

        def counting(*arguments: Any, **options: Any) -> Any:
            events = lineage(*arguments, **options)
            rows.append(len(events))
            return events

        monkeypatch.setattr(recorder, "lineage", counting)
        for version in versions:
            rows.clear()
            assert again.step(at=version).version == version
            assert sum(rows) <= SNAPSHOT_EVERY + 100 + 2 * history_reads.FIRST_PAGE_BACK + 2, (version, rows)
            assert len(rows) <= 6, (version, rows)
