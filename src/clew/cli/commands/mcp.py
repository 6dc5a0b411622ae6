"""The command that serves a store to assistants over the Model Context Protocol: mcp."""

from __future__ import annotations

import ipaddress
import socket
from typing import Annotated

import typer

from clew.cli.app import command
from clew.cli.errors import WrongUsage
from clew.cli.options import ActorOption, AsJson, GlobalOptions
from clew.cli.output import write_result

HIGHEST_PORT = 65_535


@command(
    "clew mcp",
    "clew --db team.db mcp --allow-write --actor assistant",
    "clew mcp --http 127.0.0.1:8000",
    heading="Read",
)
def mcp(
    context: typer.Context,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Serve over HTTP, at /mcp, instead of stdio.")
    ] = None,
    allow_write: Annotated[
        bool,
        typer.Option("--allow-write", help="Also offer append, fork and rewind. By default, the store is read-only."),
    ] = False,
    list_tools: Annotated[bool, typer.Option("--list", help="Only list the tools that would be offered.")] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Serve the store to assistants over the Model Context Protocol (MCP), on stdin and stdout.

    Tools: search, threads, show, read, diff, replay, audit, verify and request. It needs the extra clew[mcp].
    """
    address = None if http is None else _address(http)
    if as_json and not list_tools:
        raise WrongUsage("--json needs --list: a server writes the messages of the protocol")
    from clew.domain.runs.errors import MissingExtraError

    try:
        from clew.cli.mcp_server import new_server, serve_http, serve_stdio
        from clew.cli.mcp_tools import ReadingTools, WritingTools, lines
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise MissingExtraError("clew mcp", "mcp", "mcp") from None
    from clew.conversations import Conversations

    options: GlobalOptions = context.obj
    with Conversations.open(
        options.url, tenant=options.tenant, create=False, read_only=not allow_write
    ) as conversations:
        acting = conversations if actor is None else conversations.acting_as(actor)
        if list_tools:
            tools = (WritingTools if allow_write else ReadingTools)(acting).tools()
            names = {"tools": [tool.__name__ for tool in tools]}
            write_result(names, "\n".join(lines(tools)), as_json=as_json)
            return
        server = new_server(acting, allow_write=allow_write)
        if address is None:
            serve_stdio(server)
            return
        with _listen(*address) as listener:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            typer.echo(f"clew mcp: serving {'' if allow_write else 'read-only '}at http://{shown}:{port}/mcp", err=True)
            if not ipaddress.ip_address(host).is_loopback:
                typer.echo("clew mcp: everyone who can reach this address can use it: there is no sign-in.", err=True)
            serve_http(server, listener, address[0])


def _address(text: str) -> tuple[str, int]:
    """The host and the port. Raises WrongUsage."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or len(port) > len(str(HIGHEST_PORT)):
        raise WrongUsage(f"--http {text!r} is not an address. Give HOST:PORT, such as 127.0.0.1:8000")
    if int(port) > HIGHEST_PORT:
        raise WrongUsage(f"--http {text!r}: a port is at most {HIGHEST_PORT}")
    return host, int(port)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises WrongUsage."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise WrongUsage(
            f"--http {host}:{port}: {getattr(error, 'strerror', None) or error}. Give another address"
        ) from None
