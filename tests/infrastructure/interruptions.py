"""Ctrl-C at every point of some code, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

Points: TypeAlias = Callable[[FrameType, str], bool | None]
"""Whether what a frame comes to is such a point, told of each event of a trace; None for a frame that has none."""


class Interruptions:
    """Interrupts what is done at the first point, then what is done next at the second, until there are no ``more``.

    ``points`` makes what tells the points of one time that something is done. ``made`` counts the interruptions.
    """

    def __init__(self, points: Callable[[], Points]) -> None:
        self._points = points
        self.more = True
        self.made = 0

    def next_in(self, do: Callable[[], object]) -> None:
        """Do it, and interrupt it at the next point."""
        left, is_point = self.made, self._points()

        def trace(frame: FrameType, kind: str, _: object) -> Any:
            nonlocal left
            found = is_point(frame, kind)
            if found:
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return None if found is None else trace

        outside = sys.gettrace()
        sys.settrace(trace)
        try:
            do()
            self.more = False
        except KeyboardInterrupt:
            self.made += 1
        finally:
            sys.settrace(outside)
