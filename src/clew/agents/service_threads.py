"""The services that hold threads, asked through a client."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from clew.domain.events import ServiceDeletion
from clew.domain.model_client import ServiceReference, ServiceThreads
from clew.domain.run_errors import AgentConfigurationError, ModelError, UnsupportedThreadError


def service_threads(asked: str, thread_id: str, client: Any) -> ServiceThreads:
    """The client, for what it is asked of a thread that its service holds.

    Raises AgentConfigurationError where there is none, and UnsupportedThreadError for one whose service holds none.
    """
    if client is None:
        raise AgentConfigurationError(
            f"{asked}: thread {thread_id!r} is bound to no agent, so there is no client to ask the service with. Give "
            "client=, or get the thread from an agent: agent.thread(id)."
        )
    if not hasattr(client, "service_history") or not hasattr(client, "delete_service_thread"):
        kinds: Sequence[str] = getattr(client, "thread_kinds", ())
        advice = f"It cannot be asked for {asked}(): give the client of the service that holds thread {thread_id!r}."
        raise UnsupportedThreadError(type(client).__name__, "remote", kinds, advice)
    asks: ServiceThreads = client
    return asks


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
