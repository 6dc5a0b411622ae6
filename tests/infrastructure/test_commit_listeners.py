"""The listeners of a store, and the poller that wakes them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.infrastructure import commit_listeners
from clew.infrastructure.commit_listeners import CommitListeners

PATIENCE = 30


class Log:
    """A log that several processes write to: the stream of each position, and which positions readers see."""

    def __init__(self, name: str = "log") -> None:
        self.name = name
        self.streams: list[str] = []
        self.polls = threading.Semaphore(0)
        self.queries = 0
        self.error: Exception | None = None

    def write(self, *streams: str) -> tuple[int, int]:
        """Append an event to each stream, and return the first and the last position."""
        first = len(self.streams) + 1
        self.streams += streams
        return first, len(self.streams)

    def database(self) -> Hashable:
        return self.name, id(self)

    def visible(self) -> int:
        self.polls.release()
        if self.error is not None:
            raise self.error
        return len(self.streams)

    def written(self, after: int, upto: int, limit: int) -> Sequence[tuple[int, str]]:
        self.queries += 1
        return list(enumerate(self.streams[after:upto], start=after + 1))[:limit]

    def wait_for_polls(self, count: int = 2) -> None:
        """Wait until this number of polls has begun: all but the last one have ended."""
        while self.polls.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.polls.acquire(timeout=PATIENCE)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(commit_listeners, "POLL_SECONDS", 0.001)
    return Log()


@pytest.fixture
def listeners(log: Log) -> Iterator[CommitListeners]:
    listeners = CommitListeners(log)
    yield listeners
    listeners.close()


class Woken(Counter[str]):
    """How often each listener was woken."""

    def by(self, name: str) -> Callable[[], None]:
        return lambda: self.update([name])


# Who is woken

NAMES = ["a/x/1", "a/x/2", "a/x", "a/y/1", "ab/x/1", "b/x/1", "plain", "/", "/a", "a/"]


def matches(of: str, stream: str) -> bool:
    return of in ("", stream) or (of.endswith("/") and stream.startswith(of))


@given(asked=st.lists(st.sampled_from(["", "a/", "a/x/", "b/", "/", *NAMES])), written=st.sets(st.sampled_from(NAMES)))
def test_a_commit_wakes_the_listeners_of_its_streams_once_and_no_others(asked: list[str], written: set[str]) -> None:
    listeners, woken = CommitListeners(), Woken()
    ends = [listeners.listen(woken.by(f"{number} {of}"), of) for number, of in enumerate(asked)]
    listeners.notify(written)
    assert woken == {
        f"{number} {of}": 1 for number, of in enumerate(asked) if any(matches(of, stream) for stream in written)
    }
    for end in ends:
        end()
    listeners.notify(written)
    listeners.notify()
    assert woken.total() <= len(asked)


def test_names_without_listeners_take_no_memory() -> None:
    listeners = CommitListeners()
    for number in range(100):
        listeners.listen(lambda: None, f"a/thread/{number}")()
    assert len(listeners._by_name) == 1
    assert len(listeners._left) == 1
    assert not listeners.callbacks


def test_listeners_of_a_prefix_are_woken_to_skip_the_events_of_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next event of a quiet tenant would be found only after all the events of the others."""
    monkeypatch.setattr(commit_listeners, "SKIPPED", 10)
    listeners, woken = CommitListeners(), Woken()
    listeners.listen(woken.by("tenant"), "quiet/thread/")
    listeners.listen(woken.by("thread"), "quiet/thread/1")
    for _ in range(35):
        listeners.notify(["busy/thread/1"])
    assert woken == {"tenant": 3}


def test_a_listener_can_leave_while_another_one_is_added(log: Log, listeners: CommitListeners) -> None:
    """The garbage collector removes the listeners of dropped subscriptions, in whichever thread it runs."""
    ends: list[Callable[[], None]] = []
    visible = log.visible

    def see() -> int:  # called while a listener is added
        while ends:
            ends.pop()()
        return visible()

    log.visible = see  # type: ignore[method-assign] # for this test
    ends.append(listeners.listen(lambda: None))
    listeners.close()
    listeners.restart()
    adding = threading.Thread(target=listeners.listen, args=(lambda: None,), daemon=True)
    adding.start()
    adding.join(timeout=PATIENCE)
    assert not adding.is_alive()


# The poller


def test_the_poller_ends_without_listeners_and_starts_again_with_the_next_one(
    log: Log, listeners: CommitListeners
) -> None:
    for _ in range(2):
        before = set(threading.enumerate())
        end = listeners.listen(lambda: None)
        (poller,) = set(threading.enumerate()) - before
        log.wait_for_polls()
        end()
        poller.join(timeout=PATIENCE)
        assert not poller.is_alive()
        log.wait_for_polls(0)
        assert not log.polls.acquire(timeout=0.05), "a store without listeners is not polled"


def test_the_poller_wakes_the_listeners_of_what_other_processes_wrote(log: Log, listeners: CommitListeners) -> None:
    woken = Woken()
    log.write("a/thread/0")
    for of in ("", "a/", "a/thread/1", "a/thread/2", "b/"):
        listeners.listen(woken.by(of), of)
    log.wait_for_polls()
    assert woken == {}
    log.write("a/thread/1")
    log.wait_for_polls()
    assert woken == {"": 1, "a/": 1, "a/thread/1": 1}
    assert log.queries == 1
    log.wait_for_polls(5)
    assert log.queries == 1, "a poll without new events asks for no streams"


def test_own_commits_wake_listeners_once_and_need_no_query(log: Log, listeners: CommitListeners) -> None:
    woken = Woken()
    listeners.listen(woken.by("a"), "a")
    for _ in range(20):
        listeners.own(len(log.streams) + 1, len(log.streams) + 2)
        log.write("a", "b")
        log.wait_for_polls()
        listeners.notify({"a", "b"})
    log.wait_for_polls()
    assert woken == {"a": 20}
    assert log.queries == 0


def test_an_own_commit_that_the_poller_saw_first_wakes_listeners_once(log: Log, listeners: CommitListeners) -> None:
    woken = Woken()
    listeners.listen(woken.by("a"), "a")
    log.wait_for_polls()
    positions = log.write("a")
    log.wait_for_polls()
    assert not listeners.own(*positions)
    log.wait_for_polls()
    assert woken == {"a": 1}


def test_own_commits_between_those_of_other_processes_wake_listeners_once(log: Log, listeners: CommitListeners) -> None:
    woken = Woken()
    listeners.listen(woken.by("own"), "own")
    listeners.listen(woken.by("other"), "other")
    for _ in range(5):
        log.write("other")
        listeners.own(len(log.streams) + 1, len(log.streams) + 1)
        log.write("own")
        listeners.notify({"own"})
    log.wait_for_polls()
    assert woken["own"] == 5
    assert 1 <= woken["other"] <= 5
    log.write("own")  # by another process
    log.wait_for_polls()
    assert woken["own"] == 6


@given(st.data())
def test_finds_the_streams_that_others_wrote(data: st.DataObject) -> None:
    mine = data.draw(st.lists(st.booleans(), max_size=12))
    written = [(position, f"{'own' if own else 'other'}-{position}") for position, own in enumerate(mine, start=1)]
    own = sorted((position, position) for position, _ in written if mine[position - 1])
    with_gaps = [each for each in written if data.draw(st.booleans())]
    expected = {stream for _, stream in with_gaps if stream.startswith("other")}
    assert commit_listeners._without(own, with_gaps) == expected


def test_a_commit_that_failed_is_not_expected_any_more(log: Log, listeners: CommitListeners) -> None:
    woken = Woken()
    listeners.listen(woken.by("a"), "a")
    listeners.own(1, 2)
    listeners.disown(2)
    log.write("a", "b")  # by another process, at the same positions
    log.wait_for_polls()
    assert woken == {"a": 1}


def test_forgets_own_commits_that_stay_invisible_rather_than_remember_too_many(
    monkeypatch: pytest.MonkeyPatch, listeners: CommitListeners
) -> None:
    monkeypatch.setattr(commit_listeners, "MOST_OWN", 10)
    listeners.listen(lambda: None)
    for position in range(1_000, 2_000, 2):
        listeners.own(position, position)
        assert len(listeners._own) <= 10


def test_all_listeners_are_woken_if_others_wrote_very_much(
    monkeypatch: pytest.MonkeyPatch, log: Log, listeners: CommitListeners
) -> None:
    monkeypatch.setattr(commit_listeners, "MOST_WRITTEN", 10)
    woken = Woken()
    listeners.listen(woken.by("quiet"), "quiet")
    log.write(*["busy"] * 10)
    log.wait_for_polls()
    assert woken == {}
    log.write(*["busy"] * 11)
    log.wait_for_polls()
    assert woken == {"quiet": 1}


def test_all_listeners_are_woken_if_the_log_is_shorter(log: Log, listeners: CommitListeners) -> None:
    """A server that replaces another one, or restarts after a crash, may assign lower positions."""
    woken = Woken()
    log.write("a", "b", "c")
    listeners.listen(woken.by("a"), "a")
    del log.streams[1:]
    log.wait_for_polls()
    assert woken == {"a": 1}
    log.write("a")
    log.wait_for_polls()
    assert woken == {"a": 2}


def test_stores_of_one_database_share_a_poller(log: Log) -> None:
    woken, before = Woken(), set(threading.enumerate())
    stores = [CommitListeners(log) for _ in range(10)]
    for number, store in enumerate(stores):
        store.listen(woken.by(f"{number}"), "a")
    (poller,) = set(threading.enumerate()) - before
    stores[3].own(1, 1)
    log.write("a")
    stores[3].notify({"a"})
    log.wait_for_polls()
    assert woken == {f"{number}": 1 for number in range(10)}
    assert log.queries == 1
    for store in stores[:-1]:  # the first one is asked, so that others must replace it
        store.close()
    assert woken == {f"{number}": 2 for number in range(9)} | {"9": 1}
    log.write("a")
    log.wait_for_polls()
    assert woken["9"] == 2
    stores[-1].close()
    poller.join(timeout=PATIENCE)
    assert not poller.is_alive()


def test_a_closed_store_does_not_stop_the_poller_of_the_others(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "database", lambda _: "shared")
    closed, woken = Log(), Woken()
    first, second = CommitListeners(closed), CommitListeners(log)
    first.listen(lambda: None)
    second.listen(woken.by("a"), "a")
    closed.error = ClosedError()
    log.wait_for_polls()
    log.write("a")
    log.wait_for_polls()
    assert woken == {"a": 1}
    second.close()


def test_listeners_are_notified_repeatedly_while_polls_fail_and_once_after_recovery(
    monkeypatch: pytest.MonkeyPatch, log: Log, listeners: CommitListeners
) -> None:
    """A single notification is lost if a read still succeeds, and finds nothing, after the first failed poll."""
    monkeypatch.setattr(commit_listeners, "FAILURE_SECONDS", 0.01)
    woken = threading.Semaphore(0)
    listeners.listen(woken.release, "a")
    log.error = StoreUnavailableError()
    for _ in range(3):
        assert woken.acquire(timeout=PATIENCE)
    log.wait_for_polls()
    log.error = None
    log.wait_for_polls(3)
    while woken.acquire(blocking=False):
        pass
    log.wait_for_polls(3)
    assert not woken.acquire(blocking=False)
    log.write("a")
    assert woken.acquire(timeout=PATIENCE)


def test_a_listener_that_cannot_be_polled_for_is_not_kept(log: Log, listeners: CommitListeners) -> None:
    log.error = StoreUnavailableError()
    with pytest.raises(StoreUnavailableError):
        listeners.listen(lambda: None)
    assert not listeners.callbacks
