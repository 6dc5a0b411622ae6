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
"""A function ``(actor, action, thread id)`` that returns whether the actor may take the action on the thread.

The actor is the service's, None if it has none. The thread may not exist. It is None for actions without a thread: on
memory scopes, on rows of projections, and on the whole store when it is verified.
"""


def check_function(authorize: object) -> None:
    """Raise InvalidAuthorizeError unless it is None or a plain function: a coroutine would count as True."""
    if authorize is None:
        return
    is_coroutine = inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(type(authorize).__call__)
    if not callable(authorize) or is_coroutine:
        raise InvalidAuthorizeError(
            f"authorize: {type(authorize).__name__} is not a function that returns True or False. Give a plain "
            "function of (actor, action, thread). It may block: an Engine calls it in a worker thread."
        )
