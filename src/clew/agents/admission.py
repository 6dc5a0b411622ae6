"""The moment at which a run is on the log, for callers that wait for it and continue while the run does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from clew.domain.runs.ports import ThreadPort

if TYPE_CHECKING:
    from clew.agents.run_loop import Run


class Admission:
    """What is known of a run before it ends. ``run`` is None if another call began it, which had the same key."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.run_id = ""
        self.thread: ThreadPort | None = None
        self._began = asyncio.Event()

    def start(self, run: Run, thread: ThreadPort) -> None:
        """Note that a run starts. It may still be refused."""
        self.run = run
        run.journal.on_begun = lambda: self.begin(run.state.run_id, thread)

    def begin(self, run_id: str, thread: ThreadPort) -> None:
        """Note that the run is on the log."""
        self.run_id, self.thread = run_id, thread
        self._began.set()

    async def wait(self, task: asyncio.Task[Any]) -> None:
        """Wait until the run of a task is on the log. Raises the error with which it was refused."""
        waiting = asyncio.ensure_future(self._began.wait())
        try:
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._began.is_set():
            task.result()
