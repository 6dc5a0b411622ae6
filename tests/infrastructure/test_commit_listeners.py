"""The listeners of a store, and the poller that notifies them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from clew.domain.errors import StoreUnavailableError
from clew.infrastructure import commit_listeners
from clew.infrastructure.commit_listeners import CommitListeners


def test_a_listener_can_leave_while_another_one_is_added() -> None:
    """The garbage collector removes the listeners of dropped subscriptions, in whichever thread it runs."""
    ends: list[Callable[[], None]] = []

    def changed() -> bool:  # called while a listener is added
        while ends:
            ends.pop()()
        return False

    listeners = CommitListeners(changed)
    ends.append(listeners.listen(lambda: None))
    listeners.close()
    listeners.restart()
    adding = threading.Thread(target=listeners.listen, args=(lambda: None,), daemon=True)
    adding.start()
    adding.join(timeout=30)
    assert not adding.is_alive()


def test_the_poller_ends_without_listeners_and_starts_again_with_the_next_one() -> None:
    polled = threading.Semaphore(0)

    def changed() -> bool:
        polled.release()
        return False

    listeners = CommitListeners(changed)
    for _ in range(2):
        before = set(threading.enumerate())
        end = listeners.listen(lambda: None)
        (poller,) = set(threading.enumerate()) - before
        assert polled.acquire(timeout=30)
        end()
        poller.join(timeout=30)
        assert not poller.is_alive()
    listeners.close()


def test_listeners_are_notified_repeatedly_while_polls_fail_and_once_after_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single notification is lost if a read still succeeds, and finds nothing, after the first failed poll."""
    monkeypatch.setattr(commit_listeners, "FAILURE_SECONDS", 0.01)
    monkeypatch.setattr(commit_listeners, "POLL_SECONDS", 0.001)
    is_down = threading.Event()

    def changed() -> bool:
        if is_down.is_set():
            raise StoreUnavailableError
        return False

    woken = threading.Semaphore(0)
    listeners = CommitListeners(changed)
    listeners.listen(woken.release)
    is_down.set()
    for _ in range(3):
        assert woken.acquire(timeout=30)
    is_down.clear()
    assert woken.acquire(timeout=30)
    listeners.close()
