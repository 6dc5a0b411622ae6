"""The command that shows what a model was asked, also as a script that sends it again: request."""

from __future__ import annotations

import re
from pprint import pformat
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import model_calls
from clew.cli.errors import NOT_VERIFIED, WrongUsage
from clew.cli.options import AsJson, ThreadArgument, moment, opened
from clew.cli.output import one_line, pretty_json, safe, write_json

if TYPE_CHECKING:
    from clew.domain.models.client import Wire
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

    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.request(found.id, PATHS[asked.wire], asked))
    elif as_curl or as_python:
        typer.echo(curl(asked) if as_curl else python(found.id, asked))
        if not asked.verified:
            typer.echo(f"clew: {verdict(asked)}", err=True)
    else:
        for line in told(found.id, PATHS[asked.wire], asked):
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


PATHS: dict[Wire, str] = {"openai-chat": "/chat/completions", "openai-responses": "/responses"}
"""Where a service takes requests of each form, below its base URL."""

LONGEST_WORD = 100_000
"""Bytes that a command is given as one word; systems take no more than 128 KiB of them."""

_NOT_IN_PRINTF = re.compile(r"[\x7f-\xff]")

_URL = '"${OPENAI_BASE_URL:-https://api.openai.com/v1}%s"'


def curl(request: Request) -> str:
    """A command for any POSIX shell that sends the very bytes of the request, with the key from the environment."""
    body = request.content.decode()
    word = quote(body) if safe(body) == body else f'"$(printf {_format(request.content)})"'
    long = len(request.content) > LONGEST_WORD
    parts = [
        "curl -sS --no-buffer" if request.body.get("stream") is True else "curl -sS",
        _URL % PATHS[request.wire],
        '-H "Authorization: Bearer $OPENAI_API_KEY"',
        "-H 'Content-Type: application/json'",
        "--data-binary @-" if long else f"--data-raw {word}",
    ]
    command = " \\\n  ".join(parts)
    return f"printf %s {word} |\n{command}" if long else command


def python(thread_id: str, request: Request) -> str:
    """A script that sends the very bytes of the request with the ``openai`` package, and prints what comes."""
    path = PATHS[request.wire]
    lines = [
        f"# The model call at version {request.version} of thread {one_line(thread_id)}, as it is on the log.",
        "# OPENAI_API_KEY and OPENAI_BASE_URL are taken from the environment.",
        "import json",
        "",
        "import openai",
        "",
        f"body = {pformat(request.body, width=100, sort_dicts=False)}",
        "",
        "client = openai.OpenAI(max_retries=0)",
        "# post() sends the body as it stands; the methods for each kind of request would put it in their own order.",
        'options = {"security": {"bearer_auth": True}}',
    ]
    if request.body.get("stream") is True:
        sent = f'"{path}", body=body, cast_to=object, options=options, stream=True, stream_cls=openai.Stream[object]'
        lines += [f"for event in client.post({sent}):", "    print(json.dumps(event))"]
    else:
        sent = f'"{path}", body=body, cast_to=object, options=options'
        lines += [f"print(json.dumps(client.post({sent}), indent=2))"]
    return "\n".join(lines)


def _format(content: bytes) -> str:
    """Bytes as a format of ``printf``, where what could steer the terminal that shows the command is escaped."""
    text = content.decode("latin-1").replace("\\", r"\\").replace("%", "%%")
    return quote(_NOT_IN_PRINTF.sub(lambda found: f"\\{ord(found[0]):03o}", text))
