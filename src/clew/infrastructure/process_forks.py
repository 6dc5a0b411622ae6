"""What happens to open stores when the process forks: each is brought to rest before, and told on both sides after."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

WAIT_SECONDS = 5.0
"""How long a fork waits for a thread that is in the middle of something."""


class Forking(Protocol):
    """A store that lives through ``os.fork``."""

    def before_fork(self) -> None:
        """Let no other thread of the store's be inside a lock or a library while the process is copied."""
        ...

    def after_fork_in_parent(self) -> None:
        """Go on."""
        ...

    def after_fork_in_child(self) -> None:
        """Start afresh: the threads of the parent are not there."""
        ...


_open: weakref.WeakKeyDictionary[Forking, None] = weakref.WeakKeyDictionary()
_resting: list[Forking] = []


def watch(store: Forking) -> None:
    """Tell the store of every fork for as long as it is there."""
    _open[store] = None


def unwatch(store: Forking) -> None:
    """Tell it no longer."""
    _open.pop(store, None)


def _before() -> None:
    # The newest first: what was opened on top of another store reads that one while it comes to rest.
    for store in reversed(list(_open)):
        _resting.append(store)
        store.before_fork()


def _in_parent() -> None:
    while _resting:
        _resting.pop().after_fork_in_parent()


def _in_child() -> None:
    while _resting:
        _resting.pop().after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
