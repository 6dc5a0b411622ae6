"""The command that shows the request of a model call, also as a script that sends it again: request."""

from __future__ import annotations

import re
from pprint import pformat
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.app import command
from clew.cli.candidates import model_calls
from clew.cli.errors import NOT_VERIFIED, WrongUsage
from clew.cli.options import AsJson, ThreadArgument, open_thread, parse_moment
from clew.cli.output import json_text, one_line, safe, write_json
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from clew.domain.runs.request_construction import Request
    from clew.sync.threads import Thread

PAGE = 100
"""Events that are read at once in the search for the newest model call."""

OPENAI = frozenset({"openai-chat", "openai-responses"})
"""The formats whose requests --curl and --python can send."""

LONGEST_ARGUMENT = 100_000
"""Bytes of one argument of a command; systems accept 128 KiB at most."""

_ESCAPED_IN_PRINTF = re.compile(r"[\x7f-\xff]")

_URL = '"${OPENAI_BASE_URL:-https://api.openai.com/v1}%s"'


@command(
    "clew request 3f2a",
    "clew request 3f2a 5 --curl | sh",
    "clew request 3f2a 5 --python > request.py",
    heading="Read",
)
def request(
    context: typer.Context,
    thread: ThreadArgument,
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="VERSION",
            help="The version of a model call, from `clew log`; by default the newest call.",
            autocompletion=model_calls,
        ),
    ] = None,
    as_curl: Annotated[
        bool, typer.Option("--curl", help="Write a curl command that sends it, with the key from OPENAI_API_KEY.")
    ] = False,
    as_python: Annotated[
        bool, typer.Option("--python", help="Write a script that sends it with the openai package.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the request of a model call from the log. The exit code is 3 if it differs from what was sent."""
    if as_curl + as_python + as_json > 1:
        raise WrongUsage("--curl, --python and --json exclude each other. Choose one")
    with open_thread(context, thread) as opened:
        rebuilt = opened.request(newest_call(opened) if version is None else _parse_version(version))
    if (as_curl or as_python) and rebuilt.wire not in OPENAI:
        raise WrongUsage(f"--curl and --python: they know the formats of OpenAI, and this request has {rebuilt.wire}")
    if as_json:
        write_json(json_shapes.request(opened.id, rebuilt))
    elif as_curl or as_python:
        typer.echo(curl(rebuilt) if as_curl else python(opened.id, rebuilt))
        if not rebuilt.verified:
            typer.echo(f"clew: {verification_text(rebuilt)}", err=True)
    else:
        model, path = one_line(rebuilt.model), one_line(rebuilt.path)
        typer.echo(f"{one_line(opened.id)} · version {rebuilt.version} · {model} · POST {path}")
        typer.echo(f"{verification_text(rebuilt)} SHA-256 {rebuilt.digest}")
        if rebuilt.changed_by:
            typer.echo(f"Middleware changed it before it was sent: {one_line(', '.join(rebuilt.changed_by))}")
        typer.echo(json_text(rebuilt.body, indent=2))
    if not rebuilt.verified:
        raise typer.Exit(NOT_VERIFIED)


def newest_call(thread: Thread) -> int:
    """The version of the newest model call, on the path or not. Raises UnknownVersionError when there is none."""
    from clew.domain.errors import UnknownVersionError
    from clew.domain.runs.events import ModelCalled

    for upto in range(thread.version, 0, -PAGE):
        events = thread.events(after=max(0, upto - PAGE), at=upto)
        calls = [event.version for event in events if isinstance(event.data, ModelCalled)]
        if calls:
            return calls[-1]
    raise UnknownVersionError(f"Thread {thread.id!r} has no model call. `clew chat` and agents make them.")


def verification_text(rebuilt: Request) -> str:
    """Whether a rebuilt request equals what was sent."""
    if rebuilt.verified:
        return "Verified: this is what was sent, byte for byte."
    if rebuilt.redacted:
        versions = ", ".join(map(str, rebuilt.redacted))
        if len(rebuilt.redacted) > 1:
            return f"NOT VERIFIED: this is not what was sent. The messages at versions {versions} were redacted since."
        return f"NOT VERIFIED: this is not what was sent. The message at version {versions} was redacted since."
    return "NOT VERIFIED: this is not what was sent. It does not match the digest on the log. Run `clew verify`."


def _parse_version(text: str) -> int:
    at = parse_moment(text, "VERSION").at if text.isdecimal() else None
    if not isinstance(at, int):
        raise WrongUsage(f"VERSION {text!r}: give the version of a model call, a number that `clew log` shows")
    return at


def curl(request: Request) -> str:
    """A POSIX shell command that sends exactly the bytes of the request, with the key from the environment."""
    body = request.content.decode()
    argument = quote(body) if safe(body) == body else f'"$(printf {_printf_format(request.content)})"'
    long = len(request.content) > LONGEST_ARGUMENT
    parts = [
        "curl -sS --no-buffer" if request.body.get("stream") is True else "curl -sS",
        _URL % request.path,
        '-H "Authorization: Bearer $OPENAI_API_KEY"',
        "-H 'Content-Type: application/json'",
        "--data-binary @-" if long else f"--data-raw {argument}",
    ]
    command = " \\\n  ".join(parts)
    return f"printf %s {argument} |\n{command}" if long else command


def python(thread_id: str, request: Request) -> str:
    """A script that sends exactly the bytes of the request with the ``openai`` package, and prints the answer."""
    path = request.path
    lines = [
        f"# The model call at version {request.version} of thread {one_line(thread_id)}, rebuilt from the log.",
        "# It reads OPENAI_API_KEY and OPENAI_BASE_URL from the environment.",
        "import json",
        "",
        "import openai",
        "",
        f"body = {pformat(request.body, width=100, sort_dicts=False)}",
        "",
        "client = openai.OpenAI(max_retries=0)",
        "# post() sends the body unchanged; the methods for each kind of request would reorder it.",
        'options = {"security": {"bearer_auth": True}}',
    ]
    if request.body.get("stream") is True:
        arguments = (
            f'"{path}", body=body, cast_to=object, options=options, stream=True, stream_cls=openai.Stream[object]'
        )
        lines += [f"for event in client.post({arguments}):", "    print(json.dumps(event))"]
    else:
        arguments = f'"{path}", body=body, cast_to=object, options=options'
        lines += [f"print(json.dumps(client.post({arguments}), indent=2))"]
    return "\n".join(lines)


def _printf_format(content: bytes) -> str:
    """Bytes as a format of ``printf``, with everything escaped that could control the terminal."""
    text = content.decode("latin-1").replace("\\", r"\\").replace("%", "%%")
    return quote(_ESCAPED_IN_PRINTF.sub(lambda match: f"\\{ord(match[0]):03o}", text))
