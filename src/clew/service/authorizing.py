"""Who may read what: the one function that everything passes which leaves the service."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from clew.domain.errors import InvalidAuthorizeError, NotAuthorizedError
from clew.domain.names import parse_stream_name
from clew.service.operations import Operation, read

if TYPE_CHECKING:
    from clew.service.core import Core

T = TypeVar("T")

Action: TypeAlias = Literal["read", "list", "search", "subscribe", "export", "audit", "memory", "rows"]
"""What somebody is about to do.

``read`` what a thread says and is, and write to it; ``list`` it among others; ``search`` in it; ``subscribe`` to its
events; ``export`` it; ``audit`` what was done with it, how much it is and whether it verifies. ``memory`` is to read or
write memory scopes and documents, ``rows`` to read the tables of projections as they are: both are of no thread.
"""

Authorize: TypeAlias = Callable[[str | None, Action, str | None], bool]
"""Whether an actor may do something with a thread: by its id, which may be none of a thread that is there.

The actor is the service's, None where nobody acts. The thread is None for what is of none: memory scopes, rows of
projections, and the store as a whole where it is verified.
"""


def check_function(authorize: object) -> None:
    """Raise InvalidAuthorizeError for what is no function, and for a coroutine function: what it returns is true."""
    if authorize is None:
        return
    called = getattr(authorize, "__call__", None)  # noqa: B004  # what is called, to see whether it must be awaited
    if called is None or inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(called):
        raise InvalidAuthorizeError(
            f"authorize: {type(authorize).__name__} is no function that returns True or False. Give a plain one of "
            "(actor, action, thread); it may block, as an Engine calls it in a thread."
        )


def allows(core: Core, action: Action, thread_id: str | None) -> bool:
    """Whether who acts may do this: everything that is read of the store is asked here. It may block.

    Raises what the function raises, and InvalidAuthorizeError for an answer that is none.
    """
    if core.authorize is None:
        return True
    said: object = core.authorize(core.actor, action, thread_id)
    if not isinstance(said, bool):
        raise InvalidAuthorizeError(
            f"authorize({core.actor!r}, {action!r}, {thread_id!r}) gave {type(said).__name__}. Return True or False."
        )
    return said


def check(core: Core, action: Action, thread_id: str | None = None) -> Operation[None]:
    """Raise NotAuthorizedError unless who acts may do this: before it is looked whether the thread is there."""
    if core.authorize is None:
        return
    if thread_id is not None:
        core.stream(thread_id)  # the function is asked about what can be an id
    if not (yield from read(lambda: allows(core, action, thread_id))):
        raise NotAuthorizedError(core.actor, action, thread_id)


def permitted(
    core: Core, action: Action, found: Sequence[T], thread_of: Callable[[T], str | None]
) -> Operation[Sequence[T]]:
    """Of what was found what may be shown to who acts; it is asked once for each thread."""
    if core.authorize is None or not found:
        return found
    return (yield from read(lambda: _permitted(core, action, found, thread_of)))


def check_there(core: Core, stream: str) -> None:
    """Raise NotAuthorizedError for a stream that is there and may not be read: what is written would tell of it."""
    if core.authorize is None or core.log.stream(stream) is None:
        return
    action, thread_id = asked_of(stream, "read")
    if not allows(core, action, thread_id):
        raise NotAuthorizedError(core.actor, action, thread_id)


def asked_of(stream: str, action: Action) -> tuple[Action, str | None]:
    """What is asked where a stream is met that may be of a thread or of a memory scope, which no thread is."""
    name = parse_stream_name(stream)
    if name is not None and name.kind == "thread":
        return action, name.id
    return ("memory" if action == "read" else action), None


def _permitted(core: Core, action: Action, found: Sequence[T], thread_of: Callable[[T], str | None]) -> Sequence[T]:
    ids = [thread_of(each) for each in found]
    allowed = {id_: allows(core, action, id_) for id_ in dict.fromkeys(ids)}
    return [each for each, id_ in zip(found, ids, strict=True) if allowed[id_]]
