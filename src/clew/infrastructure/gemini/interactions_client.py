"""A model client for Gemini's Interactions, over plain HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar, Literal
from urllib.parse import quote

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.chat_answers import as_text
from clew.domain.models.client import ModelRequest, ServiceReference, Update
from clew.domain.models.interactions_answers import InteractionsAnswer, interaction_steps, step_messages
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.gemini.connection import GeminiConnection
from clew.infrastructure.stored_threads import options_and_kinds

REVISION = "2026-05-20"
"""The revision of the API whose steps and events are read. The service has had others."""

_REFUSED = ("agent", "background", "continuation_token", "previous_interaction_id", "system_instruction")
"""Fields that the run sets, or that lead to no answer in the reply."""


class GeminiInteractionsClient:
    """A model client for Gemini's Interactions API, which Google recommends for new applications.

    On a local thread Clew holds the history: the service is asked to store nothing, and the thoughts of the model are
    sent back with their signatures. On a remote thread the service holds the history: each interaction continues the
    one before. ``store`` limits the client to one kind: local threads for False, remote threads for True. The other
    parameters are those of ``GeminiClient``; ``options`` have the names of this API, such as ``thinking_level``.

    Raises AgentConfigurationError without a key.
    """

    kind: Literal["gemini-interactions"] = "gemini-interactions"
    wire = INTERACTIONS

    def __init__(
        self,
        model: str,
        *,
        store: bool | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        checked = checked_options(options)
        if refused := [name for name in _REFUSED if name in checked]:
            raise AgentConfigurationError(
                f"options has {', '.join(refused)}, which the run sets itself or cannot use. Leave it out."
            )
        self._connection = _InteractionsConnection(
            model, api_key=api_key, base_url=base_url, client=None, timeout=timeout
        )
        self.model = model
        self.provider = self._connection.provider
        self.options, self.thread_kinds = options_and_kinds(INTERACTIONS, checked, store=store)

    def __repr__(self) -> str:
        store = "" if len(self.thread_kinds) > 1 else f", store={self.thread_kinds == ('remote',)}"
        return f"GeminiInteractionsClient({self.model!r}{store})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        path = INTERACTIONS.make_path(request.model, request.streams)
        return self._connection.ask(path, request, InteractionsAnswer(request.body))

    async def service_history(self, service: ServiceReference) -> list[Message]:
        """The messages that the service holds, oldest first, those of continued interactions included.

        The steps of one answer are one message. Raises ModelError.
        """
        chain: list[JsonObject] = []
        seen: set[str] = set()
        id_ = service.id
        while id_ and id_ not in seen:
            seen.add(id_)
            chain.append(await self._connection.call("get", _path_of(id_), params={"include_input": "true"}))
            id_ = as_text(chain[-1].get("previous_interaction_id"))
        return step_messages(step for interaction in reversed(chain) for step in interaction_steps(interaction))

    async def delete_service_thread(self, service: ServiceReference) -> None:
        """Delete one interaction.

        Those that it continues stay: other threads may continue them too. Raises ModelError.
        """
        await self._connection.call("delete", _path_of(service.id))

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()


class _InteractionsConnection(GeminiConnection):
    headers: ClassVar[dict[str, str]] = {"api-revision": REVISION}


def _path_of(id_: str) -> str:
    return f"/interactions/{quote(id_, safe='')}"
