"""The forks of a thread: the same from the directory and from the log, in a bounded number of reads."""

from __future__ import annotations

from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import UnknownThreadError
from clew.domain.messages import Message
from clew.sync.threads import LocalThread


def forked(conversations: Conversations, forks: int) -> LocalThread:
    thread = conversations.start_thread("Root", labels={"a": 1}, metadata={"m": [1]}, messages=[Message.user("Hello")])
    thread.checkpoint("start", at=2)
    for number in range(forks):
        fork = thread.fork(at=number % 3 + 1, title=f"fork {number}")
        if number % 4 == 0:
            fork.append(Message.user("More"))
            fork.fork(title="of the fork")
        if number % 5 == 0:
            fork.delete()
    return thread


def test_the_log_and_the_directory_list_the_same_forks(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = forked(conversations, 12)
        forks = thread.forks()
        assert [each.title for each in forks] == [f"fork {number}" for number in range(12)]
        assert forks == list(conversations.threads(parent=thread.id))
        thread.fork(title="newest")
        assert thread.forks()[-1].title == "newest"
        forks = thread.forks()
    without_directory: list[dict[str, Any]] = [{"embedded": False}, {"projections": []}]
    for options in without_directory:
        with Conversations.open(shared_url, **options) as other:
            assert other.thread(thread.id).forks() == forks
            other.thread(thread.id).fork(title="not projected")
            assert [each.title for each in other.thread(thread.id).forks()[12:]][:2] == ["newest", "not projected"]
            assert len(other.thread(thread.id).forks()) == len(forks) + 1
        with Conversations.open(shared_url) as again:
            forks = again.thread(thread.id).forks()


def test_a_thousand_forks_take_no_more_reads_than_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(conversations: Conversations, thread: LocalThread) -> int:
        calls: list[str] = []
        log, store = conversations._core.log, conversations._core.models._store

        def counting(name: str, do: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                calls.append(name)
                return do(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for of, names in ((log, ("control", "lineage", "forks", "stream")), (store, ("select", "values"))):
                for name in names:
                    patch.setattr(of, name, counting(name, getattr(of, name)))
            thread.forks()
        return len(calls)

    with Conversations.open("memory:") as conversations:
        few, many = (conversations.start_thread(messages=[Message.user("Hello")]) for _ in range(2))
        for thread, forks in ((few, 10), (many, 300)):
            for _ in range(forks):
                thread.fork()
        assert len(few.forks()) == 10
        assert len(many.forks()) == 300
        assert reads(conversations, many) == reads(conversations, few) <= 4


def test_only_forks_that_the_actor_may_see_are_listed() -> None:
    hidden: set[str] = set()
    with Conversations.open("memory:", authorize=lambda _, action, id_: action != "list" or id_ not in hidden) as open_:
        thread = open_.start_thread()
        forks = [thread.fork() for _ in range(3)]
        hidden.add(forks[1].id)
        assert [each.id for each in thread.forks()] == [forks[0].id, forks[2].id]
        with pytest.raises(UnknownThreadError):
            LocalThread(thread._core, thread._live, "none").forks()
