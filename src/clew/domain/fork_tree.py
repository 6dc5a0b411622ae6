"""The tree of forks: the parent of each thread and the version of the fork."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar


class Forked(Protocol):
    """What the tree needs of a thread: its id, and its fork point if it has a parent."""

    @property
    def id(self) -> str:
        """The thread's id."""
        ...

    @property
    def parent_id(self) -> str | None:
        """The id of the thread that it was forked from."""
        ...

    @property
    def forked_at(self) -> int | None:
        """The cut: the last version that it shares with its parent."""
        ...


ForkedT = TypeVar("ForkedT", bound=Forked)


class BranchCheckpoint(NamedTuple):
    """A checkpoint of the thread itself: its name and its version."""

    name: str
    version: int


class Branch(NamedTuple, Generic[ForkedT]):
    """A thread in a tree: 0 is the depth of the root, ``checkpoints`` are its own, by version.

    ``forks`` counts its direct forks.
    """

    thread: ForkedT
    depth: int
    forks: int
    checkpoints: Sequence[BranchCheckpoint] = ()


def branches(
    threads: Iterable[ForkedT], checkpoints: Mapping[str, Sequence[BranchCheckpoint]] | None = None
) -> Iterator[Branch[ForkedT]]:
    """The threads depth first, each before its forks, forks by their cuts; those of one cut in the order given.

    A thread whose parent is not among them is a root. ``checkpoints`` are by thread.
    """
    marks = {} if checkpoints is None else checkpoints
    given = list(threads)
    there = {thread.id for thread in given}
    forks: dict[str | None, list[ForkedT]] = {}
    for thread in given:
        forks.setdefault(thread.parent_id if thread.parent_id in there else None, []).append(thread)
    for those in forks.values():
        those.sort(key=lambda thread: thread.forked_at or 0)
    waiting = [(0, thread) for thread in reversed(forks.get(None, []))]
    while waiting:
        depth, thread = waiting.pop()
        own = forks.get(thread.id, [])
        yield Branch(thread, depth, len(own), tuple(sorted(marks.get(thread.id, ()), key=lambda m: m.version)))
        waiting += [(depth + 1, fork) for fork in reversed(own)]


def containing(threads: Iterable[ForkedT], owner: str, version: int) -> list[ForkedT]:
    """The threads whose past has a version of ``owner``: its forks from there on, and all that come from those.

    The threads come with each one after its parent.
    """
    found: list[ForkedT] = []
    inside: set[str] = set()
    for thread in threads:
        if (thread.parent_id == owner and (thread.forked_at or 0) >= version) or thread.parent_id in inside:
            inside.add(thread.id)
            found.append(thread)
    return found
