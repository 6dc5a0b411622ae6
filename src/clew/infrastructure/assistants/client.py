"""A model client for remote agents with the wire of OpenAI's Assistants, over plain HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.assistants_answers import RUNNING, AssistantsAnswer, calls_of_run, thread_messages
from clew.domain.models.assistants_requests import ASSISTANTS, MESSAGE_ID, run_path, thread_path
from clew.domain.models.chat_answers import as_object, as_objects, as_text
from clew.domain.models.client import ModelRequest, RemoteTask, ServiceReference, ThreadKind, Update
from clew.domain.runs.errors import AgentConfigurationError, ModelError, ModelStreamError, RemoteTaskError
from clew.domain.runs.request_construction import checked_options, request_bytes
from clew.infrastructure.plain_connection import PlainConnection, PlainHttp
from clew.infrastructure.sdk_connection import TIMEOUT, host_of, is_address, timeout_of

if TYPE_CHECKING:
    import httpx2

_SET_BY_RUN = ("additional_instructions", "additional_messages", "assistant_id", "metadata", "thread", "tool_outputs")
_POLL_SECONDS = 1.0
"""Seconds between two looks at a run that works."""
_NEWEST = "100"
"""The most items of a page, and how many of the newest runs are looked at for one that began."""


class AssistantsClient:
    """A model client for a remote agent with the wire of OpenAI's Assistants, on remote threads.

    OpenAI switched this API off; Azure's classic agents and compatible servers have it. The thread is bound to the
    service's thread, and each answer to its run. The tools are those of the assistant: give the agent the functions
    that it calls, by the same names. ``base_url`` is the address of the service, such as ``https://…/v1``, and
    ``api_key`` its key, or a function that gives a token for each request. Azure needs ``api_version``. ``timeout`` is
    the number of seconds in which the service must send something, by default 600. ``options`` are fields of a run,
    such as ``temperature``; they are recorded. Raises AgentConfigurationError.
    """

    kind: Literal["openai-assistants"] = "openai-assistants"
    wire = ASSISTANTS
    thread_kinds: tuple[ThreadKind, ...] = ("remote",)

    def __init__(
        self,
        assistant_id: str,
        *,
        base_url: str,
        api_key: str | Callable[[], str],
        api_version: str | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        checked = checked_options(options)
        if set_by_run := [name for name in _SET_BY_RUN if name in checked]:
            raise AgentConfigurationError(
                f"options has {', '.join(set_by_run)}, which the run sets itself. Leave it out."
            )
        self._connection = _AssistantsConnection(assistant_id, base_url, api_key, api_version, timeout)
        self.model = assistant_id
        self.provider = self._connection.provider
        self.options = checked

    def __repr__(self) -> str:
        return f"AssistantsClient({self.model!r})"

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer. Raises ModelError.

        A request that reads a run waits until the run has ended.
        """
        service, task = request.service, request.task
        reader = AssistantsAnswer()
        if service is not None and task is not None and task.task_id is not None:
            if task.reads:
                updates = self._read(service, task.task_id, request, reader)
            else:
                if "tool_outputs" not in request.body:
                    await self._release(service, task.task_id)
                updates = self._send(request, reader)
        else:
            updates = self._send(request, reader)
        async with aclosing(updates):
            async for update in updates:
                yield update

    async def open_service_thread(self) -> ServiceReference:
        """Create the thread at the service. Raises ModelError."""
        created = await self._connection.call("post", "/threads", {})
        return ServiceReference(kind="conversation", id=as_text(created.get("id")))

    async def find_task(self, service: ServiceReference, sent: RemoteTask) -> str | None:
        """The run that a message began or results continued, if they have arrived; else None. Raises ModelError."""
        if sent.task_id is not None:
            run = await self._connection.call("get", run_path(service, sent.task_id))
            if as_text(run.get("status")) != "requires_action":
                return sent.task_id
        page = await self._connection.call(
            "get", f"{thread_path(service)}/runs", params={"order": "desc", "limit": _NEWEST}
        )
        for run in as_objects(page.get("data")):
            if as_object(run.get("metadata")).get(MESSAGE_ID) == sent.message_id:
                return as_text(run.get("id")) or None
        return None

    async def cancel_task(self, service: ServiceReference, task_id: str) -> None:
        """Ask the service to cancel a run. Raises ModelError."""
        await self._connection.call("post", f"{run_path(service, task_id)}/cancel", {})

    async def service_history(self, service: ServiceReference) -> list[Message]:
        """The messages that the service holds, oldest first. Raises ModelError."""
        return thread_messages(await self._listed(f"{thread_path(service)}/messages"))

    async def delete_service_thread(self, service: ServiceReference) -> None:
        """Delete the thread with its messages. Raises ModelError."""
        await self._connection.call("delete", thread_path(service))

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()

    async def _send(self, request: ModelRequest, reader: AssistantsAnswer) -> AsyncGenerator[Update]:
        sent = replace(request, streams=True)  # each one: without a stream, a service replies before the agent has
        try:
            async with aclosing(self._connection.ask(ASSISTANTS.path_of(request), sent, reader)) as updates:
                async for update in updates:
                    yield update
        except ModelError as raised:
            if reader.outcome is not None:
                raise RemoteTaskError(str(raised), status=raised.status, code=raised.code) from None
            if reader.status and (raised.status is None or raised.retryable):  # the run continues, and can be read
                raise ModelStreamError(str(raised), retryable=True, retry_after=raised.retry_after) from None
            raise

    async def _read(
        self, service: ServiceReference, run_id: str, request: ModelRequest, reader: AssistantsAnswer
    ) -> AsyncGenerator[Update]:
        """Wait for the end of a run, and yield its answer: its messages after the results in ``after``."""
        run = await self._ended(service, run_id)
        after = request.body.get("after")
        results = {as_text(each) for each in after} if isinstance(after, list) else set()
        if request.task is not None and request.task.late and calls_of_run(run):
            await self._release(service, run_id)
            run = {**run, "status": "cancelled", "last_error": {"message": "Nobody gives the results of its calls."}}
        if as_text(run.get("status")) not in {"failed", "cancelled", "expired"}:
            for message in await self._answers(service, run_id, results):
                for update in reader.take(message):
                    yield update
        for update in reader.take(run):
            yield update
        answer = reader.answer()
        if answer is None:
            error = as_text(as_object(reader.failure).get("message"))
            raise RemoteTaskError(
                f"The run {run_id} of the remote agent ended without an answer ({run.get('status')}). {error}".rstrip(),
                code=as_text(as_object(reader.failure).get("code")) or None,
            )
        yield answer

    async def _answers(self, service: ServiceReference, run_id: str, results: set[str]) -> list[JsonObject]:
        """The messages of a run, oldest first: those that it made after it got the results."""
        listed = await self._listed(f"{thread_path(service)}/messages", {"run_id": run_id})
        written = [each for each in listed if each.get("run_id") == run_id and each.get("role") == "assistant"]
        if not results:
            return written
        steps = await self._listed(f"{run_path(service, run_id)}/steps")
        details = [as_object(step.get("step_details")) for step in steps]
        calls = [{as_text(call.get("id")) for call in as_objects(each.get("tool_calls"))} for each in details]
        given = max([number for number, ids in enumerate(calls) if ids & results], default=-1)
        made = {as_text(as_object(each.get("message_creation")).get("message_id")) for each in details[given + 1 :]}
        return [each for each in written if as_text(each.get("id")) in made]

    async def _release(self, service: ServiceReference, run_id: str) -> None:
        """Cancel a run that waits for results which nobody gives any more: the thread would take no other message."""
        with suppress(ModelError):
            await self.cancel_task(service, run_id)
        await self._ended(service, run_id)

    async def _ended(self, service: ServiceReference, run_id: str) -> JsonObject:
        """A run when it has ended, or waits for results."""
        while True:
            run = await self._connection.call("get", run_path(service, run_id))
            if as_text(run.get("status")) not in RUNNING:
                return run
            await asyncio.sleep(_POLL_SECONDS)

    async def _listed(self, path: str, params: dict[str, str] | None = None) -> list[JsonObject]:
        """All items of a list, oldest first."""
        asked = {"order": "asc", "limit": _NEWEST, **(params or {})}
        items: list[JsonObject] = []
        while True:
            page = await self._connection.call("get", path, params=asked)
            listed = as_objects(page.get("data"))
            items += listed
            last = as_text(page.get("last_id")) or as_text(listed[-1].get("id") if listed else None)
            if not page.get("has_more") or not last or asked.get("after") == last:
                return items
            asked["after"] = last


class _AssistantsConnection(PlainConnection):
    key: ClassVar[str] = "the key of the service"

    def __init__(
        self,
        assistant_id: str,
        base_url: str,
        api_key: str | Callable[[], str],
        api_version: str | None,
        timeout: float | None,
    ) -> None:
        self._token = api_key
        self._params = {} if api_version is None else {"api-version": api_version}
        super().__init__(assistant_id, api_key=None, base_url=base_url, client=None, timeout=timeout)

    def _provider(self, base_url: str | None, client: Any) -> str:
        del client
        return host_of(base_url)

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        del api_key
        if base_url is None or not is_address(base_url):
            raise AgentConfigurationError(
                "The address of the service (base_url=) is not valid. Give one that begins with https:// or http:// "
                "and contains no ? or #; the version of Azure's API is api_version=."
            )
        headers = {"content-type": "application/json", "openai-beta": "assistants=v2"}
        return lambda: PlainHttp(base_url, headers, timeout_of(TIMEOUT if timeout is None else timeout))

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        http: PlainHttp = client
        return await http.send(path, request.content, self._authorization(http), params=self._params)

    async def _call(
        self, client: Any, method: str, path: str, body: JsonObject | None, options: dict[str, Any]
    ) -> httpx2.Response:
        http: PlainHttp = client
        content = None if body is None else request_bytes(body)
        params = {**options["params"], **self._params}
        response = await http.send(path, content, self._authorization(http), method=method.upper(), params=params)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response

    def _authorization(self, http: PlainHttp) -> dict[str, str]:
        token = self._token if isinstance(self._token, str) else self._token()
        http.secrets = (token,)
        return {"authorization": f"Bearer {token}"}
