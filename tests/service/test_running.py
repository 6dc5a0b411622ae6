"""Filling projections until a signal says that it is enough."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, SimpleNamespace
from typing import Any

from clew.service.running import Runner


def interrupted_at(number: int) -> bool:
    """Let a signal end a runner at the n-th call or return of a function; False when it waits before that."""
    store = SimpleNamespace(built=list)
    filled = SimpleNamespace(projections={"p": 1}, projection=lambda _: 1, advance=lambda _: False, store=store)
    log = SimpleNamespace(last_position=lambda: 0, listen=lambda _: lambda: None)
    core: Any = SimpleNamespace(models=SimpleNamespace(projector=filled), log=log)
    runner = Runner(core, [], lambda _, __: None)
    signal.signal(signal.SIGUSR1, lambda *_: runner.stop())
    met = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal met
        met += 1
        if met == number:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    signal.signal(signal.SIGALRM, lambda *_: runner.stop())  # it has come to rest
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    sys.setprofile(count)
    try:
        runner.follow()
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return met >= number


def test_a_signal_ends_it_wherever_it_is() -> None:
    child = os.fork()
    if child == 0:
        try:
            number = 1
            while interrupted_at(number):
                number += 1
            os._exit(0 if number > 10 else 2)
        finally:
            os._exit(1)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(10)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
