"""The command that talks with a model: chat."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.command import command
from clew.cli.errors import WrongUsage
from clew.cli.options import ActorOption, AsJson

if TYPE_CHECKING:
    from clew.cli.options import Chosen

MODEL = "gpt-5.4-mini"
"""The default model: small, and without an announced end at OpenAI."""

AGENT = "clew-chat"
"""The id of the agent: it tells a terminal chat from other agents in the log."""


@command(
    "clew chat",
    "clew chat 3f2a",
    'clew chat --model gpt-5.4-mini --instructions "Answer in one sentence."',
    "echo 'What is a clew?' | clew chat",
    heading="Begin",
)
def chat(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="The thread to resume: its id, or a unique prefix of it. By default a new one.",
            autocompletion=thread_ids,
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", envvar="OPENAI_MODEL", metavar="M", help="The model.")] = MODEL,
    instructions: Annotated[
        str | None,
        typer.Option("--instructions", metavar="I", help="Instructions for the model; by default the thread's."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new thread, as without THREAD.")] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Talk with a model. The thread stores every word as it comes, and can be resumed."""
    if thread is not None and new:
        raise WrongUsage(context, "--new starts a thread and THREAD resumes one. Give one of them")
    if not model:
        raise WrongUsage(context, "--model, or OPENAI_MODEL, must name a model, and it is empty")
    _check_key()

    import asyncio
    import warnings

    from clew.cli.chat import terminal as chat_terminal
    from clew.cli.chat.session import Chat
    from clew.cli.chat.slash_commands import run_command
    from clew.conversations import Conversations
    from clew.domain.runs.errors import AgentChangedWarning
    from clew.engine import Agent, Engine
    from clew.infrastructure import clock
    from clew.infrastructure.openai.clients import OpenAIChatClient
    from clew.service.core import open_core
    from clew.service.operations import run
    from clew.service.run_requests import instructions as instructions_of

    client = OpenAIChatClient(model)  # before a database is made: it fails without access to the service
    chosen: Chosen = context.obj
    core = open_core(
        chosen.url, tenant=chosen.tenant, create=thread is None, now=clock.now, projections=None, embedded=True
    ).acting_as(actor)
    interactive = not as_json and on_terminal()
    with Conversations(core) as conversations, asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("ignore", AgentChangedWarning)  # other instructions are given on purpose
        id_ = None if thread is None else conversations.find(thread)
        kept = None if id_ is None else run(instructions_of(core, id_, AGENT))
        agent = Agent(client, id=AGENT, instructions=kept if instructions is None else instructions or None)
        with Chat(
            context, conversations, Engine(core), agent, runner, interactive=interactive, as_json=as_json
        ) as chat_:
            chat_.begin() if id_ is None else chat_.resume(id_)
            chat_.converse(chat_terminal.prompted() if interactive else chat_terminal.piped(), run_command)


def on_terminal() -> bool:
    """Whether a user sits at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _check_key() -> None:
    """Raise AgentConfigurationError without a key."""
    from clew.domain.runs.errors import AgentConfigurationError

    if not os.environ.get("OPENAI_API_KEY"):
        raise AgentConfigurationError(
            "There is no key for the model service. Set OPENAI_API_KEY, and OPENAI_BASE_URL for another service than "
            "OpenAI. If the service needs no key, any value works."
        )
