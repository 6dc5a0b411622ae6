"""The command that shows what a model was asked: request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.completion import model_calls
from clew.cli.failures import NOT_VERIFIED, WrongUsage
from clew.cli.options import AsJson, ThreadArgument
from clew.cli.stores import moment, opened
from clew.cli.text import one_line, pretty_json, write_json

if TYPE_CHECKING:
    from clew.domain.runs.request_building import Request
    from clew.sync.threads import Thread

NEAR = 100
"""Events that are read at once where the newest model call is looked for."""


def request(
    context: typer.Context,
    thread: ThreadArgument,
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="VERSION",
            help="The version of a model call, as `clew log` lists them; by default the newest.",
            autocompletion=model_calls,
        ),
    ] = None,
    as_curl: Annotated[
        bool, typer.Option("--curl", help="A curl command that sends it, with the key from OPENAI_API_KEY.")
    ] = False,
    as_python: Annotated[
        bool, typer.Option("--python", help="A script that sends it with the openai package.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model was asked, rebuilt from the log. Exit code 3 when it is not what was sent, byte for byte."""
    if as_curl + as_python + as_json > 1:
        raise WrongUsage(context, "--curl, --python and --json are three forms of the same. Say one of them")
    with opened(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        asked = found.request(newest_call(found) if version is None else _call(context, version))

    from clew.cli import request_scripts

    if as_json:
        from clew.cli import shapes

        write_json(shapes.request(found.id, request_scripts.PATHS[asked.wire], asked))
    elif as_curl or as_python:
        typer.echo(request_scripts.curl(asked) if as_curl else request_scripts.python(found.id, asked))
        if not asked.verified:
            typer.echo(f"clew: {verdict(asked)}", err=True)
    else:
        for line in told(found.id, request_scripts.PATHS[asked.wire], asked):
            typer.echo(line)
    if not asked.verified:
        raise typer.Exit(NOT_VERIFIED)


def newest_call(thread: Thread) -> int:
    """The version of the newest model call, on the path or not. Raises UnknownVersionError when there is none."""
    from clew.domain.errors import UnknownVersionError
    from clew.domain.runs.events import ModelCalled

    for upto in range(thread.version, 0, -NEAR):
        events = thread.events(after=max(0, upto - NEAR), at=upto)
        calls = [event.version for event in events if isinstance(event.data, ModelCalled)]
        if calls:
            return calls[-1]
    raise UnknownVersionError(
        f"Thread {thread.id!r} has no model call, so nothing was asked. `clew chat` and agents make some."
    )


def told(id_: str, path: str, asked: Request) -> list[str]:
    """What ``clew request`` shows to people: where it went, whether it is what was sent, and the body."""
    return [
        f"{one_line(id_)} · version {asked.version} · {one_line(asked.model)} · POST {path}",
        f"{verdict(asked)} SHA-256 {asked.digest}",
        pretty_json(asked.body),
    ]


def verdict(asked: Request) -> str:
    """Whether a request is what was sent, in words."""
    if asked.verified:
        return "Verified: this is what was sent, byte for byte."
    if asked.redacted:
        many = "messages at versions" if len(asked.redacted) > 1 else "message at version"
        which = ", ".join(map(str, asked.redacted))
        return f"NOT VERIFIED: this is not what was sent. The {many} {which} has been redacted since."
    return "NOT VERIFIED: this is not what was sent. What is stored does not have the digest on the log: clew verify."


def _call(context: typer.Context, text: str) -> int:
    at = moment(text, "VERSION").at if text.isdecimal() else None
    if not isinstance(at, int):
        raise WrongUsage(context, f"VERSION {text!r}: give the version of a model call, a number that clew log shows")
    return at
