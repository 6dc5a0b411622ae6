"""The work of a worker process in the tests; a small module, because each process imports it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from queue import SimpleQueue

from clew.service.worker_processes import ended_by_signals


def note(folder: Path, number: int, how: str) -> None:
    """Leave a mark in the folder, then end in this way."""
    mark = folder / f"{number}-{os.getpid()}"
    mark.touch()
    if how == "killed" and len(list(folder.glob(f"{number}-*"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "failed":
        os._exit(3)
    if how != "done":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        signal.pause()


def mark_until_signalled(folder: Path) -> None:
    """Leave a mark until a signal arrives or the parent process has ended, then remove it."""
    signals: SimpleQueue[None] = SimpleQueue()
    mark = folder / str(os.getpid())
    with ended_by_signals(lambda: signals.put(None)):
        mark.touch()
        signals.get()
        mark.unlink()
