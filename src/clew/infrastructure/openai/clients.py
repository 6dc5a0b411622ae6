"""Model clients for OpenAI's two APIs: Chat Completions, which most services offer, and Responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, Message
from clew.domain.models.chat_answers import ChatAnswer, as_objects, as_text
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import ModelRequest, ServiceKind, ServiceReference, ThreadKind, Update
from clew.domain.models.native import bare
from clew.domain.models.responses_answers import ResponsesAnswer, item_messages
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.request_construction import checked_options, request_bytes
from clew.infrastructure.openai.connection import OpenAIConnection
from clew.infrastructure.stored_threads import options_and_kinds

if TYPE_CHECKING:
    import openai


class OpenAIChatClient:
    """A model client for the Chat Completions API. Clew holds the history.

    ``api_key`` and ``base_url`` default to OPENAI_API_KEY and OPENAI_BASE_URL. To use your own ``AsyncOpenAI`` or
    ``AsyncAzureOpenAI``, pass it as ``client`` instead; its retries are not used. ``timeout`` is the number of seconds
    in which the service must send something, by default 600. ``options`` are sent with every request and recorded.
    With ``late_context``, what context providers give goes into system messages where it first changed, and not into
    the instructions: so the beginning of requests stays the same, and the service's cache valid.

    Raises AgentConfigurationError without a key.
    """

    kind: Literal["openai-chat"] = "openai-chat"
    wire = OPENAI_CHAT
    thread_kinds: tuple[ThreadKind, ...] = ("local",)

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
        late_context: bool = False,
    ) -> None:
        self._connection = OpenAIConnection(model, api_key=api_key, base_url=base_url, client=client, timeout=timeout)
        self.model = model
        self.provider = self._connection.provider
        self.options = checked_options(options)
        self.late_context = late_context

    def __repr__(self) -> str:
        return f"OpenAIChatClient({self.model!r})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        return self._connection.ask("/chat/completions", request, ChatAnswer())

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()


_PAGE = "100"


class OpenAIResponsesClient:
    """A model client for the Responses API.

    On a local thread Clew holds the history: the service is asked to store nothing, and its encrypted reasoning is sent
    back. On a remote thread the service holds the history: each response continues the one before
    (``service="response"``, which can fork), or all belong to a conversation (``service="conversation"``). ``store``
    limits the client to one kind: local threads for False, remote threads for True. The other parameters are those of
    ``OpenAIChatClient``.

    ``mcp_credentials`` are those of MCP servers that the service calls, by their ``server_label``: the value of
    ``authorization``, or the ``headers``. They are added to the recorded bytes when a request is sent, and are in no
    event.

    Raises AgentConfigurationError without a key.
    """

    kind: Literal["openai-responses"] = "openai-responses"
    wire = OPENAI_RESPONSES

    def __init__(  # noqa: PLR0913  # its options, by name
        self,
        model: str,
        *,
        store: bool | None = None,
        service: ServiceKind = "response",
        api_key: str | None = None,
        base_url: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
        late_context: bool = False,
        mcp_credentials: Mapping[str, str | Mapping[str, str]] | None = None,
    ) -> None:
        if service not in {"response", "conversation"}:
            raise AgentConfigurationError(f"service= is {service!r}. It must be 'response' or 'conversation'.")
        self._connection = OpenAIConnection(model, api_key=api_key, base_url=base_url, client=client, timeout=timeout)
        self._credentials = {label: _credential(value) for label, value in (mcp_credentials or {}).items()}
        self._connection.secrets = tuple([text for each in self._credentials.values() for text in _texts(each)])
        self.model = model
        self.provider = self._connection.provider
        self.service: ServiceKind = service
        self.options, self.thread_kinds = options_and_kinds(OPENAI_RESPONSES, checked_options(options), store=store)
        self.late_context = late_context

    def __repr__(self) -> str:
        store = "" if len(self.thread_kinds) > 1 else f", store={self.thread_kinds == ('remote',)}"
        return f"OpenAIResponsesClient({self.model!r}{store})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        sent = request if not self._credentials else replace(request, content=self._with_credentials(request))
        return self._connection.ask("/responses", sent, ResponsesAnswer(request.body))

    def _with_credentials(self, request: ModelRequest) -> bytes:
        """The bytes of a request, with the credentials of MCP servers in their tools."""
        content = request.content
        for each in as_objects(request.body.get("tools")):
            more = self._credentials.get(as_text(each.get("server_label")))
            if more is not None and each.get("type") == "mcp":
                content = content.replace(request_bytes(each), request_bytes({**each, **more}), 1)
        return content

    async def open_service_thread(self) -> ServiceReference | None:
        """Create the conversation of a new thread; None if the first request begins the service's side."""
        if self.service == "response":
            return None
        return await self.create_conversation()

    async def create_conversation(self) -> ServiceReference:
        """Create a conversation at the service. Raises ModelError."""
        created = await self._connection.call("post", "/conversations", {})
        return ServiceReference(kind="conversation", id=as_text(created.get("id")))

    async def service_history(self, service: ServiceReference) -> list[Message]:
        """The messages that the service holds, oldest first. Raises ModelError.

        For a response, this includes the responses that it continues. The items of one answer are one message.
        """
        if service.kind == "conversation":
            return item_messages(await self._listed(f"/conversations/{_quote_id(service.id)}/items"))
        items: list[JsonObject] = []
        for response in reversed(await self._chain(service.id)):
            inputs = await self._listed(f"/responses/{_quote_id(as_text(response.get('id')))}/input_items")
            # Some services also list all earlier items.
            if _bare_messages(inputs[: len(items)]) == _bare_messages(items):
                inputs = inputs[len(items) :]
            items += [*inputs, *as_objects(response.get("output"))]
        return item_messages(items)

    async def delete_service_thread(self, service: ServiceReference) -> None:
        """Delete a conversation, or one response.

        The responses that it continues stay: other threads may continue them too. Raises ModelError.
        """
        resource = "conversations" if service.kind == "conversation" else "responses"
        await self._connection.call("delete", f"/{resource}/{_quote_id(service.id)}")

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()

    async def _chain(self, id_: str) -> list[JsonObject]:
        """A response and those that it continues, newest first."""
        chain: list[JsonObject] = []
        seen: set[str] = set()
        while id_ and id_ not in seen:
            seen.add(id_)
            chain.append({"id": id_, **await self._connection.call("get", f"/responses/{_quote_id(id_)}")})
            id_ = as_text(chain[-1].get("previous_response_id"))
        return chain

    async def _listed(self, path: str) -> list[JsonObject]:
        """All items of a list, oldest first."""
        params = {"order": "asc", "limit": _PAGE}
        items: list[JsonObject] = []
        while True:
            page = await self._connection.call("get", path, params=params)
            listed = as_objects(page.get("data"))
            items += listed
            last = as_text(page.get("last_id")) or (as_text(listed[-1].get("id")) if listed else "")
            if not page.get("has_more") or not last or params.get("after") == last:
                return items
            params["after"] = last


def _credential(value: str | Mapping[str, str]) -> JsonObject:
    return {"authorization": value} if isinstance(value, str) else {"headers": {**value}}


def _texts(value: Json) -> Iterator[str]:
    """The texts of a credential, which errors must not contain."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, str):
        yield value.rpartition(" ")[2]


def _bare_messages(items: Sequence[JsonObject]) -> list[tuple[str, list[Content]]]:
    """The messages of items without ids and statuses, which may differ each time that a service lists them."""
    return [(message.role, [bare(content) for content in message.contents]) for message in item_messages(items)]


def _quote_id(id_: str) -> str:
    return quote(id_, safe="")
