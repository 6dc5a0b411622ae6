"""Random bytes of the operating system's, taken from it some hundred at a time: asked for few it costs as much."""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import Generic, TypeVar

T = TypeVar("T")

SIZE = 16
AT_A_TIME = 256

_split = Struct(f"{SIZE}s" * AT_A_TIME).unpack


class Kept(Generic[T]):
    """Random things that are made many at a time; each is given once, in this process or one that is forked off it."""

    def __init__(self, make: Callable[[], list[T]]) -> None:
        self._make = make
        self._kept: list[T] = []
        os.register_at_fork(after_in_child=self._kept.clear)

    def take(self) -> T:
        """One that nobody else gets."""
        try:
            return self._kept.pop()
        except IndexError:
            made = self._make()
            mine = made.pop()
            self._kept.extend(made)
            return mine


def _sixteens() -> list[bytes]:
    return list(_split(os.urandom(SIZE * AT_A_TIME)))


sixteen_bytes = Kept(_sixteens).take
"""Sixteen random bytes."""
