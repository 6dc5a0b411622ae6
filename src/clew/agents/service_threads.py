"""The services that hold threads, asked through a client."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from clew.domain.events import ServiceDeletion
from clew.domain.models.client import ServiceReference, ServiceThreads
from clew.domain.runs.errors import AgentConfigurationError, ModelError, UnsupportedThreadError


def service_threads(asked: str, thread_id: str, client: Any) -> ServiceThreads:
    """The client, for what it is asked of a thread that its service holds.

    Raises AgentConfigurationError where there is none, or for one that cannot ask, and UnsupportedThreadError for one
    whose service holds no threads.
    """
    if client is None:
        raise AgentConfigurationError(
            f"{asked}: thread {thread_id!r} is bound to no agent, so there is no client to ask the service with. Give "
            "client=, or get the thread from an agent: agent.thread(id)."
        )
    name, kinds = type(client).__name__, getattr(client, "thread_kinds", ())
    if "remote" not in kinds and not _asks(client):
        advice = f"{asked}: give client=, that of the service which holds thread {thread_id!r}."
        raise UnsupportedThreadError(name, "remote", kinds, advice)
    if not _asks(client):
        raise AgentConfigurationError(
            f"{asked}: {name} cannot ask its service for thread {thread_id!r}: it has no service_history() "
            "and no delete_service_thread(). Give client=, such as an OpenAIResponsesClient of that service."
        )
    asks: ServiceThreads = client
    return asks


def _asks(client: Any) -> bool:
    return hasattr(client, "service_history") and hasattr(client, "delete_service_thread")


async def delete_at_service(client: ServiceThreads, found: Sequence[ServiceReference]) -> tuple[ServiceDeletion, ...]:
    """Delete what a service holds; what it does not have is gone. What became of each is returned, not raised."""
    done: list[ServiceDeletion] = []
    for reference in found:
        failed: str | None = None
        try:
            await client.delete_service_thread(reference)
        except ModelError as error:
            failed = None if error.status == HTTPStatus.NOT_FOUND else str(error)
        done.append(ServiceDeletion(id=reference.id, failed=failed))
    return tuple(done)
