"""Who listens to a store, and when nobody does any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from clew.infrastructure.commit_listeners import CommitListeners


def test_a_listener_may_go_at_the_very_moment_at_which_another_comes() -> None:
    """The garbage collector ends the listening of subscriptions that nobody holds, wherever it happens to run."""
    ends: list[Callable[[], None]] = []

    def changed() -> bool:  # it is asked while a listener is taken in
        while ends:
            ends.pop()()
        return False

    wakeups = CommitListeners(changed)
    ends.append(wakeups.listen(lambda: None))
    wakeups.close()
    wakeups.restart()
    coming = threading.Thread(target=wakeups.listen, args=(lambda: None,), daemon=True)
    coming.start()
    coming.join(timeout=30)
    assert not coming.is_alive()


def test_the_poller_ends_when_nobody_listens_and_begins_again_with_the_next() -> None:
    asked = threading.Semaphore(0)

    def changed() -> bool:
        asked.release()
        return False

    wakeups = CommitListeners(changed)
    for _ in range(2):
        before = set(threading.enumerate())
        end = wakeups.listen(lambda: None)
        (poller,) = set(threading.enumerate()) - before
        assert asked.acquire(timeout=30)
        end()
        poller.join(timeout=30)
        assert not poller.is_alive()
    wakeups.close()
