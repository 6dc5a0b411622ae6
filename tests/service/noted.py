"""What a worker process of the tests does; in a file that is quickly read, as each process reads it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from queue import SimpleQueue

from clew.service.worker_processes import ended_by_signals


def note(folder: Path, number: int, how: str) -> None:
    """Say that it is there, then end in this way."""
    mark = folder / f"{number}-{os.getpid()}"
    mark.touch()
    if how == "killed" and len(list(folder.glob(f"{number}-*"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "failed":
        os._exit(3)
    if how != "done":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        signal.pause()


def note_until_told(folder: Path) -> None:
    """Say that it is there until it is told to end, or the process that started it has ended."""
    told: SimpleQueue[None] = SimpleQueue()
    mark = folder / str(os.getpid())
    with ended_by_signals(lambda: told.put(None)):
        mark.touch()
        told.get()
        mark.unlink()
