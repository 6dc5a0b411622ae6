"""The command that shows the request of a model call, also as a script that sends it again: request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.app import command
from clew.cli.candidates import model_calls
from clew.cli.errors import NOT_VERIFIED, WrongUsage
from clew.cli.options import AsJson, ThreadArgument, open_thread, parse_moment
from clew.cli.output import json_text, one_line, write_json
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from clew.domain.runs.request_construction import Request
    from clew.sync.threads import Thread

PAGE = 100
"""Events that are read at once in the search for the newest model call."""


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
        bool, typer.Option("--curl", help="Write a curl command that sends it, with the key from the environment.")
    ] = False,
    as_python: Annotated[
        bool, typer.Option("--python", help="Write a script that sends it with the openai package.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the request of a model call from the log. The exit code is 3 unless the log says that it was sent so."""
    if as_curl + as_python + as_json > 1:
        raise WrongUsage("--curl, --python and --json exclude each other. Choose one")
    with open_thread(context, thread) as opened:
        rebuilt = opened.request(newest_call(opened) if version is None else _parse_version(version))
    if as_json:
        write_json(json_shapes.request(opened.id, rebuilt))
    elif as_curl or as_python:
        from clew.cli.rendering.request_scripts import script

        typer.echo(script("python" if as_python else "curl", opened.id, rebuilt))
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
    if rebuilt.withheld_by is not None:
        return f"NOT VERIFIED: nothing was sent. The middleware {one_line(rebuilt.withheld_by)} did not proceed."
    if rebuilt.sent is False:
        return "NOT VERIFIED: nothing was sent. The service could not be reached, or the request could not be made."
    if rebuilt.redacted:
        versions = ", ".join(map(str, rebuilt.redacted))
        if len(rebuilt.redacted) > 1:
            return f"NOT VERIFIED: this is not what was sent. The messages at versions {versions} were redacted since."
        return f"NOT VERIFIED: this is not what was sent. The message at version {versions} was redacted since."
    if rebuilt.sent is None:
        return "NOT VERIFIED: it is not known whether this was sent, because no reply has arrived."
    return "NOT VERIFIED: this is not what was sent. It does not match the digest on the log. Run `clew verify`."


def _parse_version(text: str) -> int:
    at = parse_moment(text, "VERSION").at if text.isdecimal() else None
    if not isinstance(at, int):
        raise WrongUsage(f"VERSION {text!r}: give the version of a model call, a number that `clew log` shows")
    return at
