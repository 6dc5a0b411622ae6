"""Folds: a caller's own state of a thread, computed from the events on its path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from sys import getsizeof
from types import FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

from clew.domain.errors import InvalidContentError
from clew.domain.events import Event
from clew.domain.streams import DIGEST_BYTES, check_id, digest

StateT = TypeVar("StateT")

VISITED, LARGE, SAMPLE = 128, 16, 6
"""``weight`` looks at this many objects. If one holds more than ``LARGE`` others, it looks at a sample of them."""


@dataclass(frozen=True)  # without slots, because Fold[S](…) sets an attribute
class Fold(Generic[StateT]):
    """A state of a thread: ``evolve`` is applied to each event on its path, in order, beginning with ``initial``.

    ``name`` and ``version`` identify the fold; give it another version when ``evolve`` changes. With ``types`` it gets
    only events of these types; the data of a redacted event is ``Shredded``. ``evolve`` is pure: it returns the next
    state and never changes one, because Clew keeps states and continues from them. Any thread may call it.

    With ``state_type``, a type that pydantic can write as JSON and read, stores keep some states of long threads, so
    that a new process need not fold all events. A state that is not equal after it was written and read is not stored.
    Raises InvalidContentError for another ``state_type``.
    """

    name: str
    version: int
    initial: StateT
    evolve: Callable[[StateT, Event], StateT]
    types: Collection[str] | None = None
    state_type: Any = None

    def __post_init__(self) -> None:
        """Raise InvalidContentError for a ``state_type`` that pydantic does not know."""
        if self.state_type is not None:
            _ = self.adapter

    @cached_property
    def adapter(self) -> TypeAdapter[StateT]:
        """What writes and reads a stored state."""
        try:
            adapter = TypeAdapter[StateT](self.state_type)
            adapter.rebuild()  # raises for a name in it that is not defined
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise InvalidContentError(
                f"fold {self.name!r}: state_type={self.state_type!r} is not a type that pydantic can write as JSON and "
                f"read: {error.message} Give such a type, for example dict[str, int], or no state_type."
            ) from None
        return adapter


def check_fold(fold: object) -> None:
    """Raise InvalidContentError or InvalidNameError unless ``fold`` can be folded."""
    if not isinstance(fold, Fold):
        raise InvalidContentError(
            f"fold: {type(fold).__name__} is not a Fold. Give Fold(name, version, initial, evolve)."
        )
    check_id(fold.name, "name of a fold")
    if not isinstance(fold.version, int) or isinstance(fold.version, bool):
        raise InvalidContentError(f"fold {fold.name!r}: version={fold.version!r} is not an integer.")
    if not callable(fold.evolve):
        kind = type(fold.evolve).__name__
        raise InvalidContentError(f"fold {fold.name!r}: evolve is {kind}, not a function of a state and an event.")


def write_state(fold: Fold[StateT], head: bytes, state: StateT) -> bytes | None:
    """The bytes of the state after the event with the hash ``head``; None if reading them gives no equal state."""
    try:
        body = fold.adapter.dump_json(state, warnings="error")
        if fold.adapter.validate_json(body) != state:
            return None
    except (ValueError, TypeError):  # what pydantic raises, or the comparison
        return None
    content = _before(fold, head) + body
    return digest(content) + content


def read_state(fold: Fold[StateT], head: bytes, stored: object) -> tuple[StateT] | None:
    """The state in stored bytes, in a tuple.

    None if they are of another fold, of another version of the fold or of another event, or if they cannot be read: the
    chain does not cover them, so they can have been changed. They begin with the digest of the rest; those of an older
    Clew have none.
    """
    before = _before(fold, head)
    if not isinstance(stored, bytes) or stored[:DIGEST_BYTES] != digest(stored[DIGEST_BYTES:]):
        return None
    content = stored[DIGEST_BYTES:]
    if not content.startswith(before):
        return None
    try:
        return (fold.adapter.validate_json(content[len(before) :]),)
    except ValueError:  # pydantic's is one
        return None


def _before(fold: Fold[StateT], head: bytes) -> bytes:
    """What comes before a stored state: all that it depends on, except for the code of ``evolve``."""
    types = "" if fold.types is None else " ".join(sorted(fold.types))
    return b"%b%d %b\n" % (head, fold.version, types.encode())


class KnownStates(Generic[StateT]):
    """Some states of one fold of a thread, by version. A state depends only on its version, not on later rewinds.

    Of the versions with the same lowest set bit, only the state of the last one is kept. So there are few states, close
    together near the end and far apart before. After a rewind, about as many events are folded again as the rewind took
    off the path. States of earlier versions, which a look back folds, are kept apart in the same way: they do not take
    the place of the newest states.
    """

    def __init__(self, fold: Fold[StateT]) -> None:
        self.fold = fold
        self._states: dict[int, tuple[int, StateT]] = {}
        self._earlier: dict[int, tuple[int, StateT]] = {}
        self.weight = 0
        """An estimate of the memory of all states, in bytes."""
        self.unstored = 0
        """The events that were folded since a state was stored."""
        self.store_after = 0
        """How many events are folded before the next state is stored: more for large states."""

    def put(self, version: int, state: StateT) -> None:
        """Keep the state at a version, from 1."""
        bit = version & -version
        newest = self._states.get(bit)
        states = self._states if newest is None or newest[0] <= version else self._earlier
        states[bit] = version, state

    def get(self, version: int) -> tuple[int, StateT] | None:
        """The version and its state, None if it is not known."""
        for states in (self._states, self._earlier):
            known = states.get(version & -version)
            if known is not None and known[0] == version:
                return known
        return None

    def last(self, upto: int) -> int:
        """The last known version that is not after ``upto``, 0 if there is none."""
        return max([version for version, _ in self._all() if version <= upto], default=0)

    def upto(self, version: int) -> KnownStates[StateT]:
        """The states up to a version, as a fork from there has them."""
        states = KnownStates(self.fold)
        for known in self._all():
            if known[0] <= version:
                states.put(*known)
        return states

    def _all(self) -> list[tuple[int, StateT]]:
        return [*self._states.values(), *self._earlier.values()]

    def weigh(self) -> None:
        """Estimate the weight. If the states share objects, the estimate is too high."""
        states = self._all()
        newest = max(states, key=lambda known: known[0])
        self.weight = len(states) * weight(newest[1])


def weight(value: object) -> int:
    """An estimate of the memory of any value, in bytes, from a sample of the objects in it."""
    size, left = 0.0, [(value, 1.0)]
    for _ in range(VISITED):
        if not left:
            break
        each, times = left.pop()
        size += times * getsizeof(each, 64)
        count, parts = _parts(each)
        sample = list(islice(parts, SAMPLE if count > LARGE else count))
        left += [(part, times * count / len(sample)) for part in sample]
    return round(size)


def _parts(value: object) -> tuple[int, Iterable[object]]:
    """How many objects a value holds as its own, and these objects."""
    if isinstance(value, dict):
        return 2 * len(value), chain.from_iterable(value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return len(value), value
    if isinstance(value, type | ModuleType | FunctionType | MethodType):
        return 0, ()
    slots = [name for name in getattr(type(value), "__slots__", ()) if not name.startswith("__")]
    fields = [*[getattr(value, name, None) for name in slots], *getattr(value, "__dict__", {}).values()]
    return len(fields), fields
