"""Pictures of a group chat: its flow read from a store, and printed in each form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from clew.cli.errors import WrongUsage
from clew.cli.output import console as new_console
from clew.cli.output import use_utf_8, write_json_lines
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.chats.flow import ChatFlow, FlowApproval

FORMATS = ("text", "mermaid", "svg")


def check_picture(thread: str | None, chat: str | None, form: str, *, as_json: bool) -> None:
    """Raise WrongUsage for options of ``clew tree`` that do not fit together."""
    if form not in FORMATS:
        raise WrongUsage(f"--format {form!r} does not exist. Give {', '.join(FORMATS)}")
    if chat is None and form != "text":
        raise WrongUsage("--format is for the flow of a chat. Give --chat CHAT, too")
    if chat is not None and thread is not None:
        raise WrongUsage("Give a THREAD or --chat CHAT, not both")
    if as_json and form != "text":
        raise WrongUsage("Give --json or --format, not both")


def print_flow(conversations: Conversations, id_: str, form: str, most: int | None) -> None:
    """Print the flow of a chat: its newest steps, or all."""
    from clew.cli.rendering.chat_flow import flow_lines
    from clew.cli.rendering.chat_flow_mermaid import mermaid
    from clew.cli.rendering.chat_flow_svg import svg

    flow = read_flow(conversations, id_).newest(None if form == "json" else most)
    if form == "json":
        write_json_lines(map(json_shapes.flow_step, flow.steps))
    elif form == "svg":
        use_utf_8()
        typer.echo(svg(flow, conversations.thread(id_).summary().title or id_), nl=False)
    elif form == "mermaid":
        use_utf_8()
        typer.echo(mermaid(flow), nl=False)
    else:
        out = new_console()
        for line in flow_lines(flow, out.width):
            out.print(line, soft_wrap=True)
        if flow.earlier:
            out.print(f"These are the newest {len(flow.steps):,} steps. `--all` draws every one.")


def read_flow(conversations: Conversations, id_: str) -> ChatFlow:
    """The flow of a chat, with the approvals on the threads of its participants. Raises WrongUsage if it is none."""
    from clew.domain.chats.flow import APPROVAL_TYPES, FLOW_TYPES, approvals_of, flow_of, path_of
    from clew.domain.errors import ThreadDeletedError, UnknownThreadError

    thread = conversations.thread(id_)
    flow = flow_of(path_of(thread.events(types=FLOW_TYPES), thread.version))
    if all(lane.type is None for lane in flow.lanes):
        raise WrongUsage(f"Thread {id_!r} is not a group chat. `clew show` shows it")
    steps = []
    for step in flow.steps:
        approvals: tuple[FlowApproval, ...] = ()
        if step.kind == "turn":
            try:
                own = conversations.thread(step.thread_id)
                approvals = approvals_of(own.events(after=step.began, at=step.upto or None, types=APPROVAL_TYPES))
            except (UnknownThreadError, ThreadDeletedError):
                approvals = ()  # its run has not begun, or its thread was deleted
        steps.append(replace(step, approvals=approvals))
    return replace(flow, steps=tuple(steps))
