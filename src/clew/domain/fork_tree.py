"""The tree of forks: the parent of each thread and the version of the fork."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar


class Forked(Protocol):
    """A thread in the tree: its id, and its fork point if it has a parent."""

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


class ThreadInTree(NamedTuple):
    """A thread and its place in the tree; ``hidden`` if it is deleted or the actor may not see it."""

    id: str
    parent_id: str | None
    forked_at: int | None
    hidden: bool


class BranchCheckpoint(NamedTuple):
    """A checkpoint of the thread itself: its name and its version."""

    name: str
    version: int


class Branch(NamedTuple, Generic[ForkedT]):
    """A thread in a tree. The root has depth 0; ``forks`` counts its direct forks.

    ``checkpoints`` are the thread's own checkpoints, by version.
    """

    thread: ForkedT
    depth: int
    forks: int
    checkpoints: Sequence[BranchCheckpoint] = ()


def branches(
    threads: Iterable[ForkedT], checkpoints: Mapping[str, Sequence[BranchCheckpoint]] | None = None
) -> Iterator[Branch[ForkedT]]:
    """The threads depth first, each before its forks. Forks are in the order of their cuts, then in the order given.

    A thread whose parent is not among the threads is a root. ``checkpoints`` are by thread.
    """
    threads = list(threads)
    ids = {thread.id for thread in threads}
    forks: dict[str | None, list[ForkedT]] = {}
    for thread in threads:
        forks.setdefault(thread.parent_id if thread.parent_id in ids else None, []).append(thread)
    for siblings in forks.values():
        siblings.sort(key=lambda thread: thread.forked_at or 0)
    stack = [(0, thread) for thread in reversed(forks.get(None, []))]
    while stack:
        depth, thread = stack.pop()
        children = forks.get(thread.id, [])
        own = sorted((checkpoints or {}).get(thread.id, ()), key=attrgetter("version"))
        yield Branch(thread, depth, len(children), tuple(own))
        stack += [(depth + 1, fork) for fork in reversed(children)]


def containing(threads: Iterable[ForkedT], owner: str, version: int) -> list[ForkedT]:
    """The threads whose past has a version of ``owner``: its forks at or after that version, and all their forks.

    ``threads`` must have each thread after its parent.
    """
    result: dict[str, ForkedT] = {}
    for thread in threads:
        if (thread.parent_id == owner and (thread.forked_at or 0) >= version) or thread.parent_id in result:
            result[thread.id] = thread
    return list(result.values())


class ForkPoint(NamedTuple):
    """The last version that two threads share, and the thread that holds it."""

    thread_id: str
    version: int


def last_shared(one: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]]) -> int:
    """The last version that two lineages share, 0 if there is none.

    A lineage is a thread and its ancestors, each with the last version of it that belongs to the thread's past.
    """
    of_other = dict(other)
    return max((min(last, of_other[id_]) for id_, last in one if id_ in of_other), default=0)
