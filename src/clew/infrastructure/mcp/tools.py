"""MCP servers as tools of agents."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack, cast
from urllib.parse import urlsplit

from clew.domain.context.provider import (
    Context,
    ContextProvider,
    OnFailure,
    ProvidedApproval,
    ProvidedTool,
    ProviderContext,
)
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.runs.errors import (
    AgentConfigurationError,
    MCPServerError,
    MCPToolError,
    MissingExtraError,
    ToolsChangedError,
    ToolsChangedWarning,
)
from clew.infrastructure.mcp.connection import Connection, Connections, MCPProtocol
from clew.infrastructure.mcp.definitions import (
    MAX_SCHEMA,
    MOST_TOOLS,
    changes,
    digests_of,
    is_too_large,
    schema_of,
    tool_names,
)
from clew.infrastructure.mcp.offers import Offer, listed_offers
from clew.infrastructure.mcp.transports import Address, Command

MCPApproval: TypeAlias = (
    Literal["never", "always"] | Collection[str] | Callable[[str, JsonObject, Any], bool | Awaitable[bool]]
)
"""Which calls need approval: none, all, those of the tools with these names, or those for which a function says so.

The function gets the name of the tool at the server, the arguments and the ToolContext.
"""


class MCPOptions(TypedDict, total=False):
    """The options of MCPTools.

    ``name`` identifies the server in logs and errors; by default it is the host, or the name of the command.
    ``allowed`` are the names of the server's tools that the agent gets, by default all. ``prefix`` comes before
    their names. ``approval`` says which calls need approval. ``idempotent`` are the names of tools that may be
    called again after a crash, or ``"hints"`` to believe what the server says about its tools; such a call is also
    repeated up to ``retries`` times after a fault. ``resources`` and ``prompts`` say whether the agent also gets
    tools that list and read the server's resources and prompts, by default if it has any when it is connected.
    ``on_changed`` says what happens if a thread has used the server before and its tools have changed.
    ``on_failure`` says whether a run fails or continues without the tools if the server cannot be reached.
    ``protocol`` is the version that is spoken. ``connect_timeout`` (to connect, and to list the tools) and
    ``timeout`` (of a call) are in seconds. ``max_bytes`` limits one message of the server.
    """

    name: str | None
    allowed: Collection[str] | None
    prefix: str
    approval: MCPApproval
    idempotent: Collection[str] | Literal["hints"]
    retries: int
    resources: bool
    prompts: bool
    on_changed: Literal["warn", "raise"]
    on_failure: OnFailure
    protocol: MCPProtocol
    connect_timeout: float
    timeout: float
    max_bytes: int


class MCPTools(ContextProvider):
    """The tools, prompts and resources of an MCP server, as tools of an agent: ``Agent(client, tools=[MCPTools.…])``.

    Make one with ``MCPTools.stdio`` or ``MCPTools.http``. It connects at the first run of an event loop, and again when
    the server has ended the connection; ``aclose()`` closes the connection, as does the end of the event loop. Each run
    reads the list of tools, and again before a model call if the server says that it has changed. The list is on the
    log, and so is each change of it. What servers say about their tools goes to the model only; their instructions go
    nowhere. What was given to reach the server (``env``, arguments, headers, address) is in no event and no error.
    """

    def __init__(self, server: Any, name: str, options: MCPOptions) -> None:
        unknown = options.keys() - MCPOptions.__annotations__.keys()
        if unknown:
            raise AgentConfigurationError(f"MCPTools: there is no option {', '.join(sorted(unknown))}.")
        if find_spec("mcp") is None or find_spec("mcp_types") is None:  # mcp 1 has only the first
            raise MissingExtraError("MCPTools", "mcp>=2.3", "mcp")
        self.name = options.get("name") or name
        self.id = f"mcp:{self.name}"
        self.on_failure = options.get("on_failure", "fail")
        self.timeout = None  # connecting and listing have limits of their own, and so have calls
        self._options = options
        self._allowed = options.get("allowed")
        self._approval = options.get("approval", "never")
        self._idempotent = options.get("idempotent", ())
        self._on_changed = options.get("on_changed", "warn")
        self._check()
        self._call_timeout = options.get("timeout", 60.0)
        self._connect_timeout = options.get("connect_timeout", 30.0)
        self._connections = Connections(
            self.name,
            server,
            protocol=options.get("protocol", "auto"),
            connect_timeout=self._connect_timeout,
            max_bytes=options.get("max_bytes", 10 * 1024**2),
        )

    def __repr__(self) -> str:
        return f"MCPTools({self.name!r})"

    @classmethod
    def stdio(
        cls,
        command: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Unpack[MCPOptions],
    ) -> Self:
        """The tools of a server that is a command: ``MCPTools.stdio("uvx", "mcp-server-git")``.

        The process gets HOME, LOGNAME, PATH, SHELL, TERM and USER of the environment, and ``env``. MCPOptions
        describes the other options. Raises AgentConfigurationError, and MissingExtraError without the extra ``mcp``.
        """
        server = Command(command, arguments, dict(env or {}), cwd)
        return cls(server, Path(command).name, options)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, auth: Any = None, **options: Unpack[MCPOptions]
    ) -> Self:
        """The tools of a server at an address that speaks Streamable HTTP: ``MCPTools.http("https://…/mcp")``.

        ``headers`` go with each request; ``auth`` is an ``httpx2.Auth`` object, such as one of the package ``mcp`` for
        OAuth. MCPOptions describes the other options. Raises AgentConfigurationError, and MissingExtraError without the
        extra ``mcp``.
        """
        host = _host(url)
        return cls(Address(url, dict(headers or {}), auth), host, options)

    async def aclose(self) -> None:
        """Close the connection of this event loop. A later run connects again."""
        await self._connections.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def initial_state(self, ctx: ProviderContext) -> JsonObject:
        """Without a state, the thread has not used the server."""
        del ctx
        return {}

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        """Read the list of tools, and note how it differs from the one that the thread has used.

        Raises MCPServerError and ToolsChangedError.
        """
        del messages
        given = await self._given()
        now = digests_of(each.schema for each in given.tools)
        before = cast("JsonObject", ctx.state or {}).get("tools")
        if isinstance(before, dict) and (differences := changes(before, now)):
            if self._on_changed == "raise":
                raise ToolsChangedError(self.name, ctx.thread.id, differences)
            words = ToolsChangedError.words(self.name, ctx.thread.id, differences)
            warnings.warn(words, ToolsChangedWarning, stacklevel=2)
        ctx.state = {"tools": now}
        return given

    def outdated(self, given: Context) -> bool:
        """Whether the server has sent notice that its tools have changed."""
        return isinstance(given, _Given) and self._connections.has_changed(given.connection, given.changes)

    # Tools

    async def _given(self) -> _Given:
        connection = await self._connections.connected()
        changes = connection.changes
        offers = await self._offers(connection.parts)
        if len(offers) > MOST_TOOLS:
            raise MCPServerError(self.name, f"It has more than {MOST_TOOLS} tools. Name those that you need: allowed=.")
        names = tool_names(list(offers), self._options.get("prefix", ""))
        tools = [self._tool(offer, names[name]) for name, offer in offers.items()]
        return _Given(tools=tools, connection=connection, changes=changes)

    async def _offers(self, parts: frozenset[str]) -> dict[str, Offer]:
        """What the server offers, by name, as far as it is allowed."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                offers = await self._connections.request(listed_offers)
        except TimeoutError:
            raise MCPServerError(self.name, f"It did not list its tools in {self._connect_timeout:g} s.") from None
        allowed, options = self._allowed, self._options
        return {
            name: offer
            for name, offer in offers.items()
            if (allowed is None or name in allowed)
            and (offer.part is None or options.get(offer.part, offer.part in parts))
        }

    def _tool(self, offer: Offer, name: str) -> ProvidedTool:
        schema = schema_of(name, offer.description, offer.parameters)
        if is_too_large(schema):
            reason = f"The schema of its tool {name} has more than {MAX_SCHEMA:,} characters. Leave it out: allowed=."
            raise MCPServerError(self.name, reason)
        hints, idempotent = self._idempotent == "hints", offer.name in self._idempotent
        repeats = offer.is_idempotent if hints else idempotent

        async def call(arguments: JsonObject, context: Any) -> Any:
            try:
                return await self._connections.request(lambda client: offer.call(client, arguments, context))
            except MCPToolError as error:
                raise MCPToolError(self._connections.scrubbed(str(error))) from None

        return ProvidedTool(
            schema=schema,
            call=call,
            approval=self._approval_of(offer.name),
            idempotent=repeats,
            timeout=self._call_timeout,
            retries=self._options.get("retries", 0) if repeats else 0,
        )

    def _approval_of(self, name: str) -> ProvidedApproval:
        approval = self._approval
        if callable(approval):
            return partial(approval, name)
        return "always" if approval == "always" or (approval != "never" and name in approval) else "never"

    def _check(self) -> None:
        """Raise AgentConfigurationError for options that cannot be meant."""
        options = self._options
        for option, words in (("approval", ("never", "always")), ("idempotent", ("hints",)), ("allowed", ())):
            given = options.get(option, ())
            if isinstance(given, str) and given not in words:
                raise AgentConfigurationError(
                    f"MCPTools: {option}={given!r} is a text. Give a list of names: [{given!r}]."
                )
        for option, values in (
            ("on_changed", ("warn", "raise")),
            ("protocol", ("auto", "2026-07-28", "2025-11-25")),
        ):
            if options.get(option, values[0]) not in values:
                allowed = ", ".join(map(repr, values))
                raise AgentConfigurationError(f"MCPTools: {option}={options.get(option)!r} is none of {allowed}.")
        for option in ("connect_timeout", "timeout", "max_bytes"):
            number = options.get(option, 1.0)
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
                raise AgentConfigurationError(f"MCPTools: {option}={number!r} is not a number above 0.")


@dataclass(frozen=True)
class _Given(Context):
    """The tools of a run, with the connection that listed them, and how often it had reported changes by then."""

    connection: Connection | None = None
    changes: int = 0


def _host(url: str) -> str:
    """The host of an address. Raises AgentConfigurationError for anything else, without quoting it."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname:
            return parts.hostname
    except (ValueError, AttributeError):
        pass
    raise AgentConfigurationError("MCPTools.http: the address is not one. Give https://host/path.")
