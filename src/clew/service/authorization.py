"""Authorization: the service calls the application's ``authorize`` function here, for every read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from clew.domain.authorization import Action
from clew.domain.errors import InvalidAuthorizeError, NotAuthorizedError
from clew.domain.streams import parse_stream_name
from clew.service.core import Core
from clew.service.effects import Operation, read

T = TypeVar("T")


def allows(core: Core, action: Action, thread_id: str | None) -> bool:
    """Whether the actor may do this. The function may block.

    Raises the function's own errors, and InvalidAuthorizeError for an answer that is not a bool.
    """
    if core.authorize is None:
        return True
    allowed: object = core.authorize(core.actor, action, thread_id)
    if not isinstance(allowed, bool):
        raise InvalidAuthorizeError(
            f"authorize({core.actor!r}, {action!r}, {thread_id!r}) returned {type(allowed).__name__}. "
            "Return True or False."
        )
    return allowed


def check(core: Core, action: Action, thread_id: str | None = None) -> Operation[None]:
    """Raise NotAuthorizedError unless the actor may do this; checked before the thread is looked up."""
    if core.authorize is None:
        return
    if thread_id is not None:
        core.stream(thread_id)  # the function only receives valid ids
    if not (yield from read(lambda: allows(core, action, thread_id))):
        raise NotAuthorizedError(core.actor, action, thread_id)


def permitted(
    core: Core, action: Action, results: Sequence[T], thread_of: Callable[[T], str | None]
) -> Operation[Sequence[T]]:
    """The results that the actor may see; the function is asked once for each thread."""
    if core.authorize is None or not results:
        return results
    return (yield from read(lambda: _permitted(core, action, results, thread_of)))


def check_existing_stream(core: Core, stream: str) -> None:
    """Raise NotAuthorizedError for an existing stream that the actor may not read: a write would reveal it."""
    if core.authorize is None or core.log.stream(stream) is None:
        return
    action, thread_id = action_on(stream, "read")
    if not allows(core, action, thread_id):
        raise NotAuthorizedError(core.actor, action, thread_id)


def action_on(stream: str, action: Action) -> tuple[Action, str | None]:
    """The action and the thread to check for a stream; the stream of a memory scope has no thread."""
    name = parse_stream_name(stream)
    if name is not None and name.kind == "thread":
        return action, name.id
    return ("memory" if action == "read" else action), None


def _permitted(core: Core, action: Action, results: Sequence[T], thread_of: Callable[[T], str | None]) -> Sequence[T]:
    ids = [thread_of(result) for result in results]
    allowed = {id_: allows(core, action, id_) for id_ in dict.fromkeys(ids)}
    return [result for result, id_ in zip(results, ids, strict=True) if allowed[id_]]
