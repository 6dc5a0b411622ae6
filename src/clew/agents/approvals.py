"""Approvals: function calls that wait for somebody, and how that somebody decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from clew.domain.decider import Advance
from clew.domain.messages import FunctionCall
from clew.domain.runs.events import ApprovalGiven
from clew.domain.runs.ports import RunLog
from clew.domain.runs.state import RunState, fold


@dataclass(frozen=True, slots=True)
class Approval:
    """A function call that waits for somebody's approval.

    It is bound to this very ``call``, at ``version`` of the thread the request for it. ``reason`` is ``approval``, or
    ``outcome-unknown`` for a call that was begun before a crash, and that nobody knows the outcome of: to approve it is
    to have it made again.
    """

    thread_id: str
    version: int
    call: FunctionCall
    reason: Literal["approval", "outcome-unknown"]
    run_id: str
    attempt: int
    _log: RunLog = field(repr=False, compare=False)

    async def approve(self, *, actor: str | None = None, reason: str | None = None) -> None:
        """Let the call be made when the run goes on. Raises ApprovalNotPendingError."""
        await self._decide(approved=True, reason=reason, actor=actor)

    async def reject(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """Let the call not be made: the model is told so, with the reason. Raises ApprovalNotPendingError."""
        await self._decide(approved=False, reason=reason, actor=actor)

    async def _decide(self, *, approved: bool, reason: str | None, actor: str | None) -> None:
        given = ApprovalGiven(request=self.version, approved=approved, reason=reason)
        await self._log.record([Advance(self.run_id, self.attempt, (given,))], actor=actor)


def pending(log: RunLog, state: RunState) -> list[Approval]:
    """The approvals that a run waits for."""
    return [
        Approval(log.thread_id, each.request, each.call, each.why, state.run_id, state.attempt, log)
        for each in state.calls
        if each.status == "asked"
    ]


async def approvals(log: RunLog) -> list[Approval]:
    """The approvals that the open run of a thread waits for, none if there is no such run."""
    run = (await log.control(fresh=True)).run
    if run is None or not run.asked:
        return []
    return pending(log, fold(run.id, await log.events(run.began - 1)))
