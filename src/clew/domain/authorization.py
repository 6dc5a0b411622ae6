"""``authorize``: the application's function that decides who may read what."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal, TypeAlias

from clew.domain.errors import InvalidAuthorizeError

Action: TypeAlias = Literal["read", "list", "search", "subscribe", "export", "audit", "memory", "rows"]
"""The action that an actor requests.

``read``: read or write a thread. ``list``: see it in lists. ``search``: search in it. ``subscribe``: receive its
events. ``export``: export it. ``audit``: see its audit trail and usage, and verify it. Without a thread: ``memory`` is
to read or write memory scopes and documents, and ``rows`` to read the tables of projections.
"""

Authorize: TypeAlias = Callable[[str | None, Action, str | None], bool]
"""Whether an actor may take an action on a thread, which is given by its id and need not exist.

The actor is the service's, None if it has none. The thread is None for actions without a thread: on memory scopes, on
rows of projections, and on the whole store when it is verified.
"""


def check_function(authorize: object) -> None:
    """Raise InvalidAuthorizeError for other objects and for coroutine functions: a coroutine would count as True."""
    if authorize is None:
        return
    called = getattr(authorize, "__call__", None)  # noqa: B004  # an object whose __call__ is a coroutine function
    if called is None or inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(called):
        raise InvalidAuthorizeError(
            f"authorize: {type(authorize).__name__} is not a function that returns True or False. Give a plain "
            "function of (actor, action, thread). It may block: an Engine calls it in a worker thread."
        )
