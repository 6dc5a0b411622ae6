"""What the parts of a run share: who runs on which thread, what is recorded, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew.agents.journal import Emit, Recording
from clew.agents.response import AgentUpdate
from clew.agents.run_providers import RunContext
from clew.agents.run_setup import Setup
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import RunState


@dataclass(slots=True)
class Attempt:
    """One attempt of a run. ``emit`` hands updates to whoever follows it, None when nobody does."""

    setup: Setup
    thread: ThreadPort
    recording: Recording
    emit: Emit | None
    context: RunContext
    told: int = 0
    """How many of the messages that the run added were told."""

    @property
    def state(self) -> RunState:
        """What the run has done, as far as it is recorded."""
        return self.recording.state

    @property
    def streamed(self) -> bool:
        """Whether answers are asked for piece by piece."""
        return self.emit is not None

    async def tell(self, update: AgentUpdate) -> None:
        """Tell of something that happened."""
        if self.emit is not None:
            await self.emit(update)

    async def tell_added(self) -> None:
        """Tell of the messages that were recorded since."""
        if self.emit is None:
            return
        told, self.told = self.told, len(self.state.added)
        for message in self.state.added[told:]:
            await self.emit(AgentUpdate("answer" if message.role == "assistant" else "result", message=message))

    def about(self) -> dict[str, Any]:
        """What middleware is told of the run."""
        identity = self.setup.identity
        return {
            "agent_id": identity.id,
            "agent_name": identity.name,
            "thread_id": self.recording.log.thread_id,
            "run_id": self.state.run_id,
            "actor": self.setup.actor,
        }
