"""The variants of a message are those that follow the same message in any branch; a fork point is where two part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.thread_operations import apply_operation, operations

from clew.conversations import Conversations
from clew.domain.errors import NotRedactableError, ThreadDeletedError, UnknownThreadError, UnknownVersionError
from clew.domain.fork_tree import ForkPoint
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.service import version_comparison
from clew.sync.threads import LocalThread

Place = tuple[str, int]


def texts(thread: LocalThread, message: int) -> list[str]:
    return [each.message.text for each in thread.variants(message)]


def owners(thread: LocalThread) -> dict[int, str]:
    return {event.version: event.thread_id for event in thread.events()}


def places(threads: list[LocalThread]) -> dict[Place, Place]:
    """Each message of the threads, and the message before it on its path, by folding every version."""
    found: dict[Place, Place] = {}
    for thread in threads:
        owner = owners(thread)
        for event in thread.events(types=["message-appended"]):
            before = thread.state(at=event.version - 1).messages
            place = (owner[before[-1].version], before[-1].version) if before else (threads[0].id, 0)
            found[event.thread_id, event.version] = place
    return found


def newest_with(conversations: Conversations, thread_id: str, message: HistoryMessage) -> int:
    """The newest version of a thread whose history has a message, by folding every version."""
    thread = conversations.thread(thread_id)
    versions = range(message.version, thread.version + 1)
    return max(version for version in versions if message in thread.history(at=version).messages)


@given(operations, st.integers(1, 7))
def test_variants_and_fork_points_equal_those_of_folded_threads(done: list[tuple[str, int]], page: int) -> None:
    with pytest.MonkeyPatch.context() as patch, Conversations.open("memory:") as conversations:
        patch.setattr(version_comparison, "FIRST_PAGE_BACK", page)
        thread = conversations.start_thread("Made", messages=[Message.user("first")])
        threads = [thread]
        for count, (operation, number) in enumerate(done):
            thread = apply_operation(thread, operation, number, count)
            if thread not in threads:
                threads.append(thread)
        before = places(threads)
        for each in threads:
            for version, owner in owners(each).items():
                if (owner, version) in before:
                    found = [(variant.thread_id, variant.message.version) for variant in each.variants(version)]
                    same = [other for other, place in before.items() if place == before[owner, version]]
                    assert sorted(found) == sorted(same)
                    for variant in each.variants(version):
                        assert variant.newest == newest_with(conversations, *variant[:2])
            shared = set(owners(thread).items()) & set(owners(each).items())
            point = max(shared)
            assert conversations.fork_point(thread.id, each.id) == ForkPoint(point[1], point[0])


def test_an_edited_and_a_regenerated_message_are_variants(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("Where?"), Message.assistant("Cork")])
    thread.rewind(to=2)
    thread.append(Message.assistant("Dublin"))
    edited = thread.edit(2, "When?")
    edited.append(Message.assistant("Today"))
    assert texts(thread, 2) == texts(edited, 3) == ["Where?", "When?"]
    assert texts(thread, thread.history().messages[-1].version) == ["Cork", "Dublin"]
    assert texts(edited, 4) == ["Today"]
    assert [each.thread_id for each in thread.variants(2)] == [thread.id, edited.id]
    assert conversations.fork_point(edited.id, thread.id) == ForkPoint(thread.id, 1)


def test_variants_in_deleted_threads_are_left_out(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("one")])
    thread.edit(2, "two").delete()
    third = thread.edit(2, "three")
    assert texts(third, 3) == ["one", "three"]
    thread.redact(2)
    assert texts(third, 3) == ["", "three"]


def test_variants_in_threads_that_may_only_be_listed_are_left_out(url: str) -> None:
    read: set[str] = set()
    with Conversations.open(url, authorize=lambda _, action, thread: action == "list" or thread in read) as service:
        read.add("mine")
        thread = service.start_thread(thread_id="mine", messages=[Message.user("a")])
        edited = thread.edit(2, "b")
        assert [each.message.text for each in thread.variants(2)] == ["a"]
        read.add(edited.id)
        assert [each.message.text for each in thread.variants(2)] == ["a", "b"]


def test_a_thread_that_uses_a_purged_id_again_shares_nothing_with_the_purged_one(conversations: Conversations) -> None:
    root = conversations.start_thread(thread_id="root", messages=[Message.user("root")])
    old = root.fork(thread_id="t")
    old.append([Message.user("a"), Message.user("b")])
    forks = [old.fork(thread_id="f1"), old.fork(at=4, thread_id="f2")]
    old.purge(forks=True)
    messages = [Message.user("one"), Message.user("two")]
    thread = conversations.start_thread(thread_id="t", messages=messages, replace_deleted=True)
    assert thread.forks() == []
    one, two = thread.history().messages
    edited, other, empty = thread.edit(one, "another"), thread.fork(thread_id="g"), thread.fork(at=1)
    assert texts(thread, one.version) == texts(other, one.version) == ["one", "another"]
    assert texts(thread, two.version) == ["two"]
    assert texts(edited, edited.history().messages[0].version) == ["one", "another"]
    assert texts(root, 2) == ["root"]
    assert [each.message.redacted for each in forks[0].variants(4)] == [True]
    with pytest.raises(UnknownVersionError, match="of the thread that had this id before"):
        thread.variants(4)
    assert {each.id for each in thread.forks()} == {edited.id, other.id, empty.id}
    points = [conversations.fork_point("t", each) for each in ("root", "f1", "g", edited.id, empty.id)]
    began = one.version - 1
    assert points == [None, None, ForkPoint("t", thread.version), ForkPoint("t", began), ForkPoint("t", began)]
    assert conversations.fork_point("f1", "f2") == ForkPoint("t", 4)
    assert conversations.fork_point("g", "f1") is None
    depths = {each.thread.id: each.depth for each in conversations.tree("root")}
    assert depths == {"root": 0, "t": 1, "f1": 2, "f2": 2, "g": 2, edited.id: 2, empty.id: 2}
    for each in (edited, other, empty):
        each.purge()
    assert thread.purge(forks=True).events == 2


def test_refuses_what_has_no_variants_or_no_past(conversations: Conversations) -> None:
    thread, other = conversations.start_thread(messages=[Message.user("one")]), conversations.start_thread()
    with pytest.raises(NotRedactableError, match=r"variants: version 1 of thread .* is thread-started, not a message"):
        thread.variants(1)
    assert conversations.fork_point(thread.id, other.id) is None
    assert conversations.fork_point(thread.id, thread.id) == ForkPoint(thread.id, 2)
    with pytest.raises(UnknownThreadError):
        conversations.fork_point(thread.id, "unknown")
    other.delete()
    with pytest.raises(ThreadDeletedError):
        conversations.fork_point(thread.id, other.id)
