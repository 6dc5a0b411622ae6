"""Interrupts code with Ctrl-C at each of its points, one point at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

Points: TypeAlias = Callable[[FrameType, str], bool | None]
"""Whether a trace event of a frame is a point to interrupt; None for a frame without such points."""


class Interruptions:
    """Interrupts the first call at the first point, the second call at the second point, and so on.

    There are ``more`` points until a call ends without interruption. ``points`` makes a point detector for each call.
    ``count`` is the number of interruptions so far.
    """

    def __init__(self, points: Callable[[], Points]) -> None:
        self._points = points
        self.more = True
        self.count = 0

    def interrupt_next(self, action: Callable[[], object]) -> None:
        """Call the action, and interrupt it at the next point."""
        left, is_point = self.count, self._points()

        def trace(frame: FrameType, kind: str, _: object) -> Any:
            nonlocal left
            interrupts = is_point(frame, kind)
            if interrupts:
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return None if interrupts is None else trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
            self.more = False
        except KeyboardInterrupt:
            self.count += 1
        finally:
            sys.settrace(previous)
