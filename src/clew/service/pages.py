"""Pages: how a long list is read in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from clew.domain.errors import CorruptEventError
from clew.service.operations import Operation

T = TypeVar("T")
C = TypeVar("C")

PAGE = 100

Page: TypeAlias = tuple[list[T], C | None]
"""The items, possibly none, and the place after which the next page begins; None after the last page."""


def undamaged(page: Callable[[int], T], size: int) -> T:
    """A page of at most ``size`` events, which ends before a damaged one.

    Raises CorruptEventError when the first event is damaged.
    """
    while True:
        try:
            return page(size)
        except CorruptEventError:
            if size == 1:
                raise
            size //= 2


class Pages(Generic[T]):
    """The pages of a list, up to ``limit`` items. ``page`` reads the page after a place."""

    def __init__(
        self, page: Callable[[Any, int], Operation[Page[T, Any]]], after: object = None, limit: int | None = None
    ) -> None:
        self._page = page
        self._after = after
        self._left = limit
        self._done = limit is not None and limit <= 0

    def next(self) -> Operation[list[T]]:
        """The next page, empty after the last."""
        while not self._done:
            size = PAGE if self._left is None else min(PAGE, self._left)
            found, self._after = yield from self._page(self._after, size)
            if self._left is not None:
                self._left -= len(found)
            self._done = self._after is None or self._left == 0
            if found:
                return found
        return []
