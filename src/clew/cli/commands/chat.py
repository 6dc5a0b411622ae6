"""The command that talks with a model: chat."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.app import command
from clew.cli.errors import WrongUsage
from clew.cli.options import ActorOption, AsJson, GlobalOptions, thread_argument
from clew.cli.output import one_line

if TYPE_CHECKING:
    from clew.domain.models.client import ModelClient

MODEL = "gpt-5.4-mini"
"""The default model: small, and without an announced end at OpenAI."""

AGENT = "clew-chat"
"""The id of the agent: it tells a terminal chat from other agents in the log."""


@command(
    "clew chat",
    "clew chat 3f2a",
    'clew chat --model gpt-5.4-mini --instructions "Answer in one sentence."',
    "clew chat --model anthropic:claude-opus-5-5",
    "echo 'What is a clew?' | clew chat",
    heading="Begin",
)
def chat(
    context: typer.Context,
    thread: Annotated[
        str | None,
        thread_argument("The thread to resume: its id, or a unique prefix of it. By default a new one."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", envvar="OPENAI_MODEL", metavar="M", help="The model, or provider:model.")
    ] = MODEL,
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
        raise WrongUsage("--new starts a thread and THREAD resumes one. Give one of them")
    if not model:
        raise WrongUsage("--model, or OPENAI_MODEL, must name a model, and it is empty")
    client = _client(model)  # before a database is made: it fails without access to the service

    import asyncio
    import warnings

    from clew.cli import terminal
    from clew.cli.chat import Chat
    from clew.conversations import Conversations
    from clew.domain.runs.errors import AgentChangedWarning
    from clew.engine import Agent, Engine
    from clew.infrastructure import clock
    from clew.service.core import open_core
    from clew.service.effects import run
    from clew.service.model_requests import instructions as instructions_of

    options: GlobalOptions = context.obj
    core = open_core(
        options.url, tenant=options.tenant, create=thread is None, now=clock.now, projections=None, embedded=True
    ).acting_as(actor)
    interactive = not as_json and terminal.is_interactive()
    with Conversations(core) as conversations, asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("ignore", AgentChangedWarning)  # the user changes the instructions on purpose
        id_ = None if thread is None else conversations.find(thread)
        if instructions is None and id_ is not None:
            instructions = run(instructions_of(core, id_, AGENT))
        agent = Agent(client, id=AGENT, instructions=instructions or None)
        session = Chat(conversations, Engine(core), agent, runner, interactive=interactive, as_json=as_json)
        with session:
            if id_ is None:
                session.begin()
            else:
                session.resume(id_)
            session.converse(terminal.typed_lines() if interactive else terminal.piped_lines())


def _client(model: str) -> ModelClient:
    """The client of a provider, if the name begins with one; else that of a service with OpenAI's Chat Completions.

    Raises AgentConfigurationError without a key.
    """
    from clew.domain.runs.errors import AgentConfigurationError
    from clew.infrastructure.any_client import AnyClient, providers

    provider, colon, _ = model.partition(":")
    if provider in providers():
        client: ModelClient = AnyClient(model)
        return client
    if colon and provider != "ft" and not os.environ.get("OPENAI_BASE_URL"):
        raise AgentConfigurationError(
            f"--model {one_line(model)}: there is no provider {one_line(provider)!r}. Write one of "
            f"{', '.join(providers())}, a colon and a model; a fine-tuned model of OpenAI begins with ft:. For a model "
            "of another service with OpenAI's Chat Completions, set OPENAI_BASE_URL."
        )
    if not os.environ.get("OPENAI_API_KEY"):
        raise AgentConfigurationError(
            "There is no key for the model service. Set OPENAI_API_KEY, and OPENAI_BASE_URL for another service than "
            "OpenAI. If the service needs no key, any value works."
        )
    from clew.infrastructure.openai.clients import OpenAIChatClient

    return OpenAIChatClient(model)
