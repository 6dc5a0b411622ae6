"""The command that talks with a model: chat."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.errors import WrongUsage
from clew.cli.options import ActorOption, AsJson

if TYPE_CHECKING:
    from clew.cli.options import Chosen

MODEL = "gpt-5.4-mini"
"""The model that is asked when nobody says which: small, and offered by OpenAI without an announced end."""

AGENT = "clew-chat"
"""The id of the agent, by which the log tells a chat in the terminal from other agents on a thread."""


def chat(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="A thread's id, or the beginning of it, to take up again. By default a new one.",
            autocompletion=thread_ids,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", envvar="OPENAI_MODEL", metavar="M", help="The model that is asked.")
    ] = MODEL,
    instructions: Annotated[
        str | None,
        typer.Option("--instructions", metavar="I", help="What the model is told before all; a thread keeps its own."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a thread, as without THREAD.")] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Talk with a model, on a thread that keeps every word as it comes, and that can be taken up again."""
    if thread is not None and new:
        raise WrongUsage(context, "--new begins a thread, and THREAD is one that is there. Say one of the two")
    if not model:
        raise WrongUsage(context, "--model, or OPENAI_MODEL, names the model that is asked, and it is empty")
    _check_key()

    import asyncio
    import warnings

    from clew.cli import chat_terminal
    from clew.cli.chat_commands import carry_out
    from clew.cli.chat_session import Chat
    from clew.conversations import Conversations
    from clew.domain.runs.errors import AgentChangedWarning
    from clew.engine import Agent, Engine
    from clew.infrastructure import clock
    from clew.infrastructure.openai_chat_client import OpenAIChatClient
    from clew.service.core import open_core
    from clew.service.operations import run
    from clew.service.run_requests import instructions as instructions_of

    client = OpenAIChatClient(model)  # before anything is made: it may have no way to the service
    chosen: Chosen = context.obj
    core = open_core(
        chosen.url, tenant=chosen.tenant, create=thread is None, now=clock.now, projections=None, embedded=True
    ).acting_as(actor)
    interactive = not as_json and is_there()
    with Conversations(core) as conversations, asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("ignore", AgentChangedWarning)  # who gives other instructions means to
        id_ = None if thread is None else conversations.find(thread)
        kept = None if id_ is None else run(instructions_of(core, id_, AGENT))
        agent = Agent(client, id=AGENT, instructions=kept if instructions is None else instructions or None)
        with Chat(
            context, conversations, Engine(core), agent, runner, interactive=interactive, as_json=as_json
        ) as chat_:
            chat_.begin() if id_ is None else chat_.take_up(id_)
            chat_.converse(chat_terminal.prompted() if interactive else chat_terminal.piped(), carry_out)


def is_there() -> bool:
    """Whether somebody sits before a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _check_key() -> None:
    """Raise AgentConfigurationError without a key."""
    from clew.domain.runs.errors import AgentConfigurationError

    if not os.environ.get("OPENAI_API_KEY"):
        raise AgentConfigurationError(
            "There is no key for the model service. Set one: export OPENAI_API_KEY=…, and OPENAI_BASE_URL for another "
            "service than OpenAI's. Where it needs no key, any word will do."
        )
