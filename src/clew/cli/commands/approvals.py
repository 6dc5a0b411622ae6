"""Commands that list and decide what runs wait for: approvals, approve and decline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from clew.cli.app import command
from clew.cli.errors import WrongUsage
from clew.cli.options import (
    ActorOption,
    AllOption,
    AsJson,
    ReasonOption,
    ThreadArgument,
    imported,
    list_limit,
    open_store,
    thread_argument,
)
from clew.cli.output import catch_up, one_line, plural, safe, warn, write_json_lines, write_result
from clew.cli.output import console as new_console
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from rich.table import Table

    from clew.agents.response import Approval
    from clew.engine import Agent, Engine

SHOWN = 5
"""Most requests that an error names."""

NOTHING_WAITS = "Nothing waits for approval."

RequestArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="REQUEST", help="Which one, as `clew approvals` shows it. Needed if several wait."),
]

AgentOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="MODULE:AGENT",
        help="Continue the run at once, with this agent; imported from this folder or from Python's path.",
    ),
]


@command("clew approvals", "clew approvals 3f2a --json", heading="Read")
def approvals(
    context: typer.Context,
    thread: Annotated[
        str | None, thread_argument("A thread's id, or a unique prefix of it; by default all threads.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the N that have waited longest.")
    ] = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """List the calls of tools that wait for an approval: what is asked, by which agent and for whom."""
    from asyncio import run

    most = list_limit(limit, all_=all_, as_json=as_json)
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        if id_ is None:
            catch_up(conversations, "approvals")
        found = run(_pending(conversations.awaited, id_, most))
    if as_json:
        write_json_lines(map(json_shapes.approval, found))
    elif not found:
        new_console().print(NOTHING_WAITS)
    else:
        new_console().print(_table(found))


@command(
    "clew approve 3f2a",
    "clew approve 3f2a 12 --always --actor ops:ada",
    "clew approve 3f2a --agent shop:clerk",
    heading="Change",
)
def approve(
    context: typer.Context,
    thread: ThreadArgument,
    request: RequestArgument = None,
    always: Annotated[
        bool, typer.Option("--always", help="Later calls of this tool in the thread need no approval, too.")
    ] = False,
    reason: ReasonOption = None,
    agent: AgentOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Let a call run that waits for approval, when the run continues."""

    def decide(approval: Approval) -> Coroutine[Any, Any, None]:
        return approval.approve(actor=actor, reason=reason, always=always)

    _decide(context, thread, request, "Approved", decide, agent, as_json=as_json)


@command('clew decline 3f2a --reason "Too expensive"', "clew decline 3f2a 12 --agent shop:clerk", heading="Change")
def decline(
    context: typer.Context,
    thread: ThreadArgument,
    request: RequestArgument = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="R", help="Why, for the model and for the audit trail.")
    ] = None,
    agent: AgentOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Do not let a call run that waits for approval. The model gets the reason when the run continues."""

    def decide(approval: Approval) -> Coroutine[Any, Any, None]:
        return approval.reject(reason, actor=actor)

    _decide(context, thread, request, "Declined", decide, agent, as_json=as_json)


def _decide(
    context: typer.Context,
    thread: str,
    request: str | None,
    decided: str,
    decide: Callable[[Approval], Coroutine[Any, Any, None]],
    agent: str | None,
    *,
    as_json: bool,
) -> None:
    from asyncio import run

    from clew.domain.runs.errors import AgentChangedWarning

    runner = None if agent is None else _agent(agent)
    with open_store(context) as conversations:
        id_ = conversations.find(thread)

        async def work() -> tuple[Approval, int, str | None]:
            async with conversations.awaited as engine:
                opened = await engine.thread(id_)
                approval = _selected(await opened.approvals(), request, id_)
                await decide(approval)
                if not as_json:
                    typer.echo(f"{decided} {_call_text(approval)} of {one_line(id_)}, version {approval.version}.")
                left = len(await opened.approvals())
                answer = None
                if runner is not None and not left:
                    response = await runner.continue_run(opened)
                    answer, left = response.text, len(response.approvals)
                return approval, left, answer

        with warnings.catch_warnings():
            warnings.simplefilter("always", AgentChangedWarning)
            warnings.showwarning = lambda message, *_: warn(str(message))
            approval, left, answer = run(work())
    shape = {**json_shapes.approval(approval), "decision": decided.lower(), "pending": left, "answer": answer}
    text = "The run continues when a process that has its agent calls continue_runs()."
    if left:
        text = f"{plural(left, 'more call')} of the run {'waits' if left == 1 else 'wait'} for approval."
    write_result(shape, text if left or answer is None else safe(answer), as_json=as_json)


async def _pending(engine: Engine, thread_id: str | None, most: int | None) -> list[Approval]:
    if thread_id is not None:
        return (await (await engine.thread(thread_id)).approvals())[:most]
    found: list[Approval] = []
    async for approval in engine.approvals():
        found.append(approval)
        if len(found) == most:
            break
    return found


def _agent(text: str) -> Agent:
    from clew.engine import Agent

    found = imported("--agent", text)
    if not isinstance(found, Agent):
        raise WrongUsage(f"--agent {text!r}: that is {type(found).__name__}, and not an Agent")
    return found


def _selected(pending: list[Approval], request: str | None, thread_id: str) -> Approval:
    """The approval that REQUEST names; without it, the only one. Raises WrongUsage."""
    if not pending:
        raise WrongUsage(f"Thread {one_line(thread_id)} waits for no approval. `clew approvals` lists those that do")
    found = [each for each in pending if request in {None, each.request}]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{each.request} for {each.call.name}" for each in pending[:SHOWN])
    asked = "Several calls wait: give REQUEST" if request is None else f"REQUEST {request!r} does not wait"
    raise WrongUsage(one_line(f"{asked}. `clew approvals {quote(thread_id)}` lists {known}"))


def _call_text(approval: Approval) -> str:
    return one_line(f"{approval.call.name}({approval.call.arguments})")


def _table(found: Iterable[Approval]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("Thread", "Request", "Call", "Agent", "For"):
        table.add_column(heading, overflow="fold")
    for each in found:
        asked = one_line(each.agent), one_line(each.on_behalf_of or "")
        unknown = " (it may have run)" if each.reason == "outcome-unknown" else ""
        table.add_row(
            Text(one_line(each.outer_thread_id), style="bold"),
            one_line(each.request),
            Text(_call_text(each) + unknown),
            *map(Text, asked),
        )
    return table
