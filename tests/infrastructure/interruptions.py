"""Interrupts code with Ctrl-C at each of its points, one point at a time."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any, TypeAlias

Points: TypeAlias = Callable[[FrameType, str], bool | None]
"""Whether a trace event of a frame is a point to interrupt; None for a frame without such points."""


def signal_points(*files: str | None, without: Collection[str] = ()) -> Callable[[], Points]:
    """Each point in these files where the interpreter handles signals, except in the functions ``without``.

    It handles them at the start of a function, at the start of each round of a loop, and after a call of a function
    that is not written in Python.
    """

    def points() -> Points:
        before: dict[int, str] = {}  # by id: a frame that is kept keeps what it has

        def is_point(frame: FrameType, kind: str) -> bool | None:
            if id(frame.f_back) in before:
                before[id(frame.f_back)] = ""  # it calls a Python function
            if frame.f_code.co_filename not in files or frame.f_code.co_name in without:
                return None
            frame.f_trace_opcodes = True
            if kind == "call":
                before[id(frame)] = "RESUME"
            if kind != "opcode":
                return False
            last = before.get(id(frame), "")
            if frame.f_lasti >= 0:
                before[id(frame)] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            return last.startswith(("CALL", "JUMP_BACKWARD", "RESUME"))

        return is_point

    return points


class Interruptions:
    """Interrupts the first call at the first point, the second call at the second point, and so on.

    There are ``more`` points until a call ends without interruption. ``points`` makes a point detector for each call.
    ``count`` is the number of interruptions so far.
    """

    def __init__(self, points: Callable[[], Points]) -> None:
        self._points = points
        self.more = True
        self.count = 0

    def interrupt_next(self, action: Callable[[], object]) -> KeyboardInterrupt | None:
        """Call the action, and interrupt it at the next point. Returns the interruption, which holds a traceback."""
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
        gc.disable()  # it could close a log of an earlier test here, and that would be interrupted instead
        sys.settrace(trace)
        try:
            for _ in _with_own_exception_state(action):
                self.more = False
        except KeyboardInterrupt as error:
            self.count += 1
            return error
        finally:
            sys.settrace(previous)
            gc.enable()
        return None


def _with_own_exception_state(action: Callable[[], object]) -> Iterator[None]:
    """Call the action in a generator.

    An interruption at the start or end of an ``except`` block can leave the handled exception current, and every later
    exception of the thread would have it as its context. A generator has a current exception of its own, which ends
    with it.
    """
    action()
    yield
