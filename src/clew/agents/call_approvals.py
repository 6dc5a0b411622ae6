"""The calls that need no approval: a function of their tool says so, or a standing approval."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from clew.agents.tools import Tool, ToolContext, needs_approval
from clew.domain.decider_state import CallLocation
from clew.domain.errors import UnknownThreadError
from clew.domain.history import NotSeen
from clew.domain.models.client_calls import arguments_for
from clew.domain.runs.events import Caller, GivenBy, RunStarted
from clew.domain.runs.ports import RunLog
from clew.domain.runs.request_construction import digest_of_tool
from clew.domain.runs.standing_approvals import standing_approvals
from clew.domain.runs.state import CallState, Rule


async def calls_without_request(
    calls: Sequence[CallState],
    tools: Mapping[str, Tool],
    rules: Mapping[str, Rule],
    log: RunLog,
    above: Caller | None,
    context: Callable[[CallState], ToolContext],
) -> tuple[dict[CallLocation, GivenBy], Container[CallLocation]]:
    """The calls that a standing approval lets begin, and all that need no approval.

    ``above`` is the call of another agent that the run answers, whose thread may have the standing approval.
    """
    ruled = [call for call in calls if call.status == "new" and not call.asks and call.call.name in tools]
    ruled = [call for call in ruled if (rule := rules.get(call.call.name)) is not None and rule.approval]
    standing = await _standing(ruled, tools, log, above)
    exempt = {
        call.place
        for call in ruled
        if call.place not in standing and not await _asks(call, tools[call.call.name], context)
    }
    return standing, standing.keys() | exempt


async def _asks(call: CallState, called: Tool, context: Callable[[CallState], ToolContext]) -> bool:
    arguments = arguments_for(call.kind, call.call, called.schema.parameters)
    return await needs_approval(called, arguments, context(call))


async def _standing(
    calls: Sequence[CallState], tools: Mapping[str, Tool], log: RunLog, above: Caller | None
) -> dict[CallLocation, GivenBy]:
    """The calls that need no approval because of a standing approval, of this thread or one of its callers."""
    wanted = dict[str, list[CallLocation]]()
    for call in calls:
        wanted.setdefault(digest_of_tool(tools[call.call.name].schema), []).append(call.place)
    found: dict[CallLocation, GivenBy] = {}
    while wanted:
        # Read from the log: an approval may have been revoked since the run began.
        approvals = standing_approvals((await log.history(NotSeen())).context)
        for digest in approvals.keys() & wanted.keys():
            given = approvals[digest]
            by = GivenBy(actor=given.actor, request=given.request, thread_id=given.thread_id)
            found |= dict.fromkeys(wanted.pop(digest), by)
        if above is None:
            break
        try:
            log = await log.outer(above)
        except UnknownThreadError:
            break  # it does not name this thread: its approvals are for others
        run = (await log.control(fresh=True)).run
        began = None if run is None else (await log.event(run.began)).data
        above = began.caller if isinstance(began, RunStarted) else None
    return found
