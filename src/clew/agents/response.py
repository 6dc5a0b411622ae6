"""What a run returns: updates while it runs, the response at the end, and the approvals that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

from clew.agents.response_formats import answer_value
from clew.domain.decider import Advance, Intent, RecordEvents
from clew.domain.decider_state import CallLocation, OpenRun, holder_of
from clew.domain.errors import ConflictError, ThreadDeletedError, UnknownThreadError
from clew.domain.history import HistoryMessage, NotSeen
from clew.domain.json_values import Json
from clew.domain.messages import FunctionCall
from clew.domain.models.client import TokenUsage
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import ApprovalGiven
from clew.domain.runs.ports import LEFT_OPEN, Holding, RunLog, ThreadPort
from clew.domain.runs.standing_approvals import StandingApproval, standing_approvals, with_approval
from clew.domain.runs.state import RunState, fold

ThreadT_co = TypeVar("ThreadT_co", bound=ThreadPort, covariant=True)


@dataclass(frozen=True, slots=True)
class AgentUpdate:
    """Something that happened in a run: a piece of the answer, of its reasoning or of a call, or a whole message.

    ``text`` is the new piece; for a call, a piece of its arguments, with ``call_id`` and ``name``. ``message`` is the
    recorded message: an answer of the model (``answer``) or a tool's result (``result``). A ``progress`` is what a tool
    reports while it runs: ``text``, ``fraction`` from 0 to 1, and ``data``. A ``handoff`` has the ``name`` of the agent
    that continues, and as ``text`` the reason. ``position`` is where
    ``thread.follow(after=…)`` continues; only the updates of a run that is followed have one. ``author``
    is the participant of a group chat; None outside of one.
    """

    type: Literal["text", "reasoning", "call", "progress", "answer", "result", "handoff"]
    text: str = ""
    call_id: str | None = None
    name: str | None = None
    message: HistoryMessage | None = None
    position: str = ""
    fraction: float | None = None
    data: Json = None
    author: str | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """A function call that waits for approval.

    An approval belongs to exactly this ``call``; ``version`` is the version of the request. ``reason`` is ``approval``,
    or ``outcome-unknown`` for a call that was started before a crash and may or may not have been carried out:
    approving it runs it again. An approval can belong to the thread of an agent that the run uses as a tool: then
    ``outer_thread_id`` is the thread of the run that the application began, and continues; else it is ``thread_id``.
    ``agent`` asks for the approval, and acts ``on_behalf_of`` the actor who started the run.
    """

    thread_id: str
    version: int
    call: FunctionCall
    reason: Literal["approval", "outcome-unknown", "child"]
    run_id: str
    attempt: int
    _log: RunLog = field(repr=False, compare=False)
    _tool: str | None = field(default=None, repr=False, compare=False)
    _top: RunLog | None = field(default=None, repr=False, compare=False)
    agent: str = ""
    on_behalf_of: str | None = None

    @property
    def outer_thread_id(self) -> str:
        """The thread on which the application began the run."""
        return self.thread_id if self._top is None else self._top.thread_id

    @property
    def request(self) -> str:
        """The name of the request among those of the outer thread: its version, after the id of an inner thread."""
        return f"{self.version}" if self._top is None else f"{self.thread_id}:{self.version}"

    async def approve(self, *, actor: str | None = None, reason: str | None = None, always: bool = False) -> None:
        """Let the call run when the run continues. Raises ApprovalNotPendingError.

        With ``always``, later calls of this tool in the thread need no approval: in this run and in later ones, as long
        as the schema of the tool is the same. Forks made after it inherit this, and a rewind to before it undoes it.
        ``thread.revoke_standing_approval(tool)`` ends it. The reason of the request must be ``approval``.
        """
        if not always:
            await self._decide(ApprovalGiven(request=self.version, approved=True, reason=reason), actor=actor)
            return
        if self.reason != "approval" or self._tool is None:
            raise AgentConfigurationError(
                f"always: the request of version {self.version} asks for this call only ({self.reason}). Leave it out."
            )
        decision = ApprovalGiven(request=self.version, approved=True, reason=reason, always=True)
        standing = StandingApproval(tool=self.call.name, digest=self._tool, request=self.version, actor=actor)
        if self._top is None:
            await change_standing_approvals(
                self._log,
                lambda approvals: [
                    Advance(self.run_id, self.attempt, (decision, with_approval(approvals, standing))),
                ],
                actor,
                self._left_open,
            )
            return
        standing = standing.model_copy(update={"thread_id": self.thread_id})
        await change_standing_approvals(
            self._top, lambda approvals: [RecordEvents((with_approval(approvals, standing),))], actor
        )
        await self._decide(decision, actor=actor)

    async def reject(self, reason: str | None = None, *, actor: str | None = None) -> None:
        """Do not let the call run: the model gets the rejection and its reason. Raises ApprovalNotPendingError."""
        await self._decide(ApprovalGiven(request=self.version, approved=False, reason=reason), actor=actor)

    async def _decide(self, decision: ApprovalGiven, *, actor: str | None) -> None:
        advance = Advance(self.run_id, self.attempt, (decision,))
        await self._log.record([advance], actor=actor, holding=self._left_open)

    @property
    def _left_open(self) -> Holding:
        """An expired lease, by which ``continue_runs`` finds the run, unless a process executes it."""
        return Holding(holder_of(OpenRun(self.run_id, 0, self.attempt)), LEFT_OPEN)


async def pending_approvals(log: RunLog, state: RunState, top: RunLog | None = None) -> list[Approval]:
    """The approvals that a run waits for, with those of the agents that its calls run on other threads.

    ``top`` is the log of the outermost of these threads, None if it is this one.
    """
    pending: list[Approval] = []
    run = state.run_id, state.attempt
    behalf = None if state.by is None else state.by.on_behalf_of
    for each in state.calls:
        if each.status == "asked" and each.why == "child" and each.child is not None:
            pending += await approvals_of_child(log, each.place, each.child, top)
        elif each.status == "asked":
            request = log.thread_id, each.request, each.call, each.why
            pending.append(Approval(*request, *run, log, each.tool, top, state.agent, behalf))
    return pending


async def approvals(log: RunLog, top: RunLog | None = None) -> list[Approval]:
    """The approvals that the open run of a thread waits for; none if no run is open."""
    run = (await log.control(fresh=True)).run
    if run is None or not run.approvals:
        return []
    return await pending_approvals(log, fold(run.id, await log.events(run.began - 1)), top)


async def approvals_of_child(log: RunLog, call: CallLocation, child: str, top: RunLog | None = None) -> list[Approval]:
    """The approvals that the agent of a call waits for.

    None if its thread was deleted, or is not the call's: then the call fails.
    """
    try:
        return await approvals(await log.inner(call, child), top or log)
    except (ThreadDeletedError, UnknownThreadError):
        return []


async def change_standing_approvals(
    log: RunLog,
    change: Callable[[Mapping[str, StandingApproval]], Sequence[Intent]],
    actor: str | None,
    holding: Holding | None = None,
) -> None:
    """Record a change of the standing approvals of a thread, which is computed again if another one was first."""
    while True:
        history = await log.history(NotSeen())
        intents = change(standing_approvals(history.context))
        try:
            if intents:
                await log.record(intents, actor=actor, expected_version=history.version, holding=holding)
        except ConflictError:
            continue
        return


@dataclass(frozen=True)  # with slots AgentResponse[Thread](…) is a TypeError
class AgentResponse(Generic[ThreadT_co]):
    """The result of a run.

    ``messages`` are those that the run added, without its input; ``thread`` is the thread that it ran on. ``usage``
    counts the tokens of all its model calls, and ``cost`` is what they cost in US dollars: None if that is not known of
    all. ``finish_reason`` says why the last answer ended. ``approvals`` are function calls that wait for approval: then
    the run is not over, and ``agent.continue_run(thread)`` continues it.
    ``agent`` is the agent that answered: after a handoff, the one that continued the conversation. ``messages`` and
    ``usage`` are those of all agents, and ``run_id`` is that of the first one's run.
    """

    run_id: str
    thread: ThreadT_co
    messages: list[HistoryMessage]
    usage: TokenUsage
    finish_reason: str | None = None
    approvals: list[Approval] = field(default_factory=list)
    response_format: Any = field(default=None, repr=False)
    agent: Any = field(default=None, compare=False)
    cost: Decimal | None = None

    @property
    def text(self) -> str:
        """The text of the last answer."""
        answers = [message for message in self.messages if message.role == "assistant"]
        return answers[-1].text if answers else ""

    @property
    def value(self) -> Any:
        """The answer as an object of the ``response_format``. Raises AnswerFormatError if it does not match."""
        if self.response_format is None:
            raise AgentConfigurationError(
                "value: the run was not asked for a format. Give agent.run(response_format=…)."
            )
        if self.approvals:
            raise AgentConfigurationError("value: the run waits for approvals, and has not answered yet.")
        return answer_value(self.response_format, self.text)

    def __str__(self) -> str:
        return self.text
