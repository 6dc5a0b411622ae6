"""``authorize``: the application's function that decides who may read what, and the filters that it may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from clew.domain.errors import InvalidAuthorizeError
from clew.domain.json_values import JsonObject, check_json, comparable

Action: TypeAlias = Literal["read", "list", "search", "subscribe", "export", "audit", "memory", "rows"]
"""The action that an actor requests.

``read``: read or write a thread. ``list``: see it in lists. ``search``: search in it. ``subscribe``: receive its
events. ``export``: export it. ``audit``: see its audit trail and usage, and verify it. Without a thread: ``memory`` is
to read or write memory scopes and documents, and ``rows`` to read the tables of projections.
"""


class ThreadFilter:
    """The threads that an actor may read, as an answer of ``authorize`` instead of True or False.

    A thread matches if it has all ``labels`` with these values, for each label in ``any_of`` one of the values, and an
    id that begins with ``id_prefix``. Values match as in ``threads(labels=…)``. Raises InvalidAuthorizeError for a
    filter without a condition: to allow all threads, return True.
    """

    __slots__ = ("id_prefix", "labels")

    def __init__(
        self,
        labels: Mapping[str, Any] | None = None,
        *,
        any_of: Mapping[str, Sequence[Any]] | None = None,
        id_prefix: str = "",
    ) -> None:
        for mapping in (labels, any_of):
            if mapping is not None and not isinstance(mapping, Mapping):
                raise InvalidAuthorizeError(
                    f"ThreadFilter: {type(mapping).__name__} is not a mapping. Give values by the names of labels."
                )
        self.id_prefix = id_prefix
        self.labels: tuple[tuple[str, tuple[str, ...]], ...] = tuple(
            [
                (name, tuple([_compared(name, value) for value in values]))
                for name, values in (
                    *((name, (value,)) for name, value in (labels or {}).items()),
                    *((name, _several(name, values)) for name, values in (any_of or {}).items()),
                )
            ]
        )
        """Names of labels, each with the texts that its allowed values are compared by."""
        if not isinstance(id_prefix, str) or not (self.labels or id_prefix):
            raise InvalidAuthorizeError(
                f"ThreadFilter: id_prefix={id_prefix!r} and no label. Give a label, or a prefix as a string. "
                "To allow all threads, return True."
            )

    def matches(self, thread_id: str, labels: JsonObject) -> bool:
        """Whether a thread with this id and these labels matches."""
        return thread_id.startswith(self.id_prefix) and all(
            name in labels and comparable(labels[name]) in values for name, values in self.labels
        )


Authorize: TypeAlias = Callable[[str | None, Action, str | None], bool | ThreadFilter]
"""A function ``(actor, action, thread id)`` that returns whether the actor may take the action on the thread.

The actor is the service's, None if it has none. The thread may not exist. It is None for actions without a thread: on
memory scopes, on rows of projections, and on the whole store when it is verified.

It may return a ``ThreadFilter`` instead, which allows the action on the threads that match, and nothing without a
thread. For ``list``, ``search`` and ``audit`` the function is then first called without a thread: if the answer is a
filter, only matching threads are looked for. Every thread that is found is checked by itself as well.
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


def _compared(name: str, value: Any) -> str:
    if value is None:
        raise InvalidAuthorizeError(f"ThreadFilter: {name!r} is None. No label is None; name the value that it has.")
    check_json(value, f"ThreadFilter: {name!r}")
    return comparable(value)


def _several(name: str, values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidAuthorizeError(f"ThreadFilter: any_of {name!r} is {type(values).__name__}. Give a list of values.")
    return values
