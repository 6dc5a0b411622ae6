"""Steps: any version of a thread at once, as folding it says, and without folding it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.conversations import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY
from clew.domain.errors import NotRedactableError, ThreadDeletedError, UnknownThreadError, UnknownVersionError
from clew.domain.history import Step
from clew.domain.messages import Message
from clew.engine import Engine
from clew.service import thread_versions
from clew.sync.threads import LocalThread

numbers = st.integers(0, 9_999)
deeds = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append many", "rewind", "fork", "redact", "label", "checkpoint"]), numbers
    ),
    max_size=25,
)


def do(thread: LocalThread, deed: str, number: int, count: int) -> LocalThread:
    """One deed to a thread; returns the one that is gone on with. Numbers name versions by their remainder."""
    version = number % thread.version + 1
    match deed:
        case "append":
            thread.append(Message.user(f"text {number}"))
        case "append many":
            thread.append([Message.assistant(f"text {number}.{each}") for each in range(number % 9 + 1)])
        case "rewind":
            thread.rewind(to=version)
        case "fork":
            return thread.fork(at=version, title=f"fork {count}")
        case "redact":
            try:
                thread.redact(version)
            except NotRedactableError:
                thread.suspend()
                thread.resume()
        case "label":
            thread.label(topic=number)
        case _:
            thread.checkpoint(f"checkpoint {count}", at=version)
    return thread


def check(thread: LocalThread, last: int) -> None:
    head = thread.state().control
    before: tuple[Any, ...] = ()
    for event in thread.events():
        found, state = thread.step(at=event.version, last=last), thread.state(at=event.version)
        assert found.event == event
        assert (found.control, found.head) == (state.control, head)
        assert found.messages == state.messages[max(0, len(state.messages) - last) :]
        gone = before[max(0, len(before) - last) :]
        assert found.taken == tuple(said for said in gone if said not in state.messages)
        before = state.messages


@given(deeds, st.integers(0, 6), st.integers(1, 7))
def test_every_step_is_what_folding_the_thread_says(done: list[tuple[str, int]], last: int, page: int) -> None:
    with pytest.MonkeyPatch.context() as patch, Conversations.open("memory:") as conversations:
        patch.setattr(thread_versions, "PAGE", page)
        thread = conversations.start_thread("Made", messages=[Message.user("first")])
        threads = {thread.id: thread}
        for count, (deed, number) in enumerate(done):
            thread = do(thread, deed, number, count)
            threads[thread.id] = thread
        for each in threads.values():
            check(each, last)


def test_a_rewind_names_what_it_took_and_one_to_an_abandoned_branch_brings_it_back(
    conversations: Conversations,
) -> None:
    thread = conversations.start_thread(messages=[Message.user(text) for text in ("one", "two", "three")])
    thread.checkpoint("before", at=2)
    thread.rewind(to="before")
    thread.append(Message.user("other"))
    thread.rewind(to=4)

    def texts(step: Step) -> tuple[list[str], list[str]]:
        return [said.text for said in step.messages], [said.text for said in step.taken]

    assert texts(thread.step(at=4)) == (["one", "two", "three"], [])
    assert texts(thread.step(at=6)) == (["one"], ["two", "three"])
    assert texts(thread.step(at=6, last=1)) == (["one"], ["three"])
    assert texts(thread.step(at=7)) == (["one", "other"], [])
    assert texts(thread.step()) == (["one", "two", "three"], ["other"])
    assert texts(thread.step(at_message=2)) == (["one", "two"], [])
    assert thread.step(at="before").checkpoints == ("before",)
    assert thread.step().checkpoints == ()
    assert (thread.step(at=2).version, thread.step(at=2).newest, thread.step(at=2).status) == (2, 8, "active")


def test_refuses_what_is_not_there(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="gone")
    for version in (0, 2, -1):
        with pytest.raises(UnknownVersionError):
            thread.step(at=version)
    thread.delete()
    with pytest.raises(ThreadDeletedError, match="replay"):
        thread.step(at=1)
    with pytest.raises(UnknownThreadError):
        LocalThread(thread._core, thread._live, "none").step()


def test_gives_nobody_what_is_shared(conversations: Conversations) -> None:
    thread = conversations.start_thread(labels={"topic": ["a"]})
    found = thread.step()
    found.control.labels["topic"].append("b")  # type: ignore[union-attr]  # it is a list
    found.head.checkpoints["x"] = 1
    assert thread.step().control.labels == {"topic": ["a"]}
    assert thread.step().checkpoints == ()


def test_asyncio_steps_the_same(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="one", messages=[Message.user("a"), Message.user("b")])
        thread.rewind(to=2)
        steps = [thread.step(at=version, last=1) for version in range(1, 5)]

    async def awaited() -> list[Step]:
        async with Engine.open(shared_url) as engine:
            found = await engine.thread("one")
            return [await found.step(at=version, last=1) for version in range(1, 5)]

    assert asyncio.run(awaited()) == steps


@pytest.mark.parametrize("shape", ["plain", "one commit", "forked", "rewound"])
def test_reads_a_bounded_part_of_a_thread_however_long_it_is(
    file_url: str, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
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
        again.step()  # the newest control is known from now on
        rows: list[int] = []
        recorder = conversations._core.log.recorder  # type: ignore[attr-defined]  # the log is an application
        lineage = recorder.lineage

        def counting(*arguments: Any, **options: Any) -> Any:
            found = lineage(*arguments, **options)
            rows.append(len(found))
            return found

        monkeypatch.setattr(recorder, "lineage", counting)
        for version in versions:
            rows.clear()
            assert again.step(at=version).version == version
            assert sum(rows) <= SNAPSHOT_EVERY + 100 + 2 * thread_versions.PAGE + 2, (version, rows)
            assert len(rows) <= 6, (version, rows)
