"""``authorize``: the application's function that decides who may read what."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal, TypeAlias

from clew.domain.errors import InvalidAuthorizeError

Action: TypeAlias = Literal["read", "list", "search", "subscribe", "export", "audit", "memory", "rows"]
"""What an actor is about to do.

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
    """Raise InvalidAuthorizeError for other objects and for coroutine functions: a coroutine would count as True."""
    if authorize is None:
        return
    called = getattr(authorize, "__call__", None)  # noqa: B004  # what is called, to see whether it must be awaited
    if called is None or inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(called):
        raise InvalidAuthorizeError(
            f"authorize: {type(authorize).__name__} is not a function that returns True or False. Give a plain "
            "function of (actor, action, thread). It may block: an Engine calls it in a worker thread."
        )
