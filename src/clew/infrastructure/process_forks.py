"""Forks of the process: open stores pause before, and continue or start again after."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod

WAIT_SECONDS = 5.0
"""How long a fork waits for a thread that uses a store."""


class ForkAware(ABC):
    """An object that works after ``os.fork``. By default only the child has something to do."""

    def before_fork(self) -> None:  # noqa: B027 - most have nothing to do
        """Ensure that no other thread holds a lock or is inside a library while the process is copied."""

    def after_fork_in_parent(self) -> None:  # noqa: B027 - most have nothing to do
        """Continue."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Start again: the threads of the parent do not exist here."""


_open: weakref.WeakKeyDictionary[ForkAware, None] = weakref.WeakKeyDictionary()
_paused: list[ForkAware] = []


def watch(store: ForkAware) -> None:
    """Notify the store of every fork while it exists."""
    _open[store] = None


def unwatch(store: ForkAware) -> None:
    """Stop notifying it."""
    _open.pop(store, None)


def _before() -> None:
    # The newest first: a store that was opened on top of another reads that one while it pauses.
    for store in reversed(list(_open)):
        _paused.append(store)
        store.before_fork()


def _in_parent() -> None:
    while _paused:
        _paused.pop().after_fork_in_parent()


def _in_child() -> None:
    while _paused:
        _paused.pop().after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
