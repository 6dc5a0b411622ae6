"""Model clients by the name of their provider."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from clew.domain.runs.errors import AgentConfigurationError

_CLIENTS = {
    "anthropic": ("clew.infrastructure.anthropic.client", "AnthropicClient"),
    "bedrock": ("clew.infrastructure.bedrock.client", "BedrockClient"),
    "gemini": ("clew.infrastructure.gemini.client", "GeminiClient"),
    "gemini-interactions": ("clew.infrastructure.gemini.interactions_client", "GeminiInteractionsClient"),
    "openai": ("clew.infrastructure.openai.clients", "OpenAIResponsesClient"),
    "openai-chat": ("clew.infrastructure.openai.clients", "OpenAIChatClient"),
}

GROUP = "clew.model_clients"
"""The entry points under which a package declares its clients: ``parrot = "parrots:ParrotClient"``."""


class AnyClient:
    """The model client for a name such as ``anthropic:claude-opus-5-5``: the provider, a colon and the model.

    It is the client of that provider itself, made with the other arguments. The providers are ``openai`` (Responses),
    ``openai-chat`` (Chat Completions, which most services offer), ``anthropic``, ``bedrock``, ``gemini``
    (generateContent), ``gemini-interactions``, and those of installed packages, which declare them as entry points
    ``clew.model_clients``. Raises AgentConfigurationError for a
    name without a provider that is installed, and what the client raises.
    """

    def __new__(cls, name: str, **arguments: Any) -> Any:
        """The client."""
        provider, colon, model = name.partition(":") if isinstance(name, str) else ("", "", "")
        made = client_class(provider) if colon and model else None
        if made is None:
            raise AgentConfigurationError(
                f"AnyClient: {name!r} names no provider and model. Write one of {', '.join(providers())}, a colon and "
                "a model, such as 'openai:gpt-5.4-mini'."
            )
        return made(model, **arguments)


def providers() -> list[str]:
    """The names of all providers."""
    return sorted({*_CLIENTS, *entry_points(group=GROUP).names})


def client_class(provider: str) -> Any:
    """The class of a provider's clients; None if there is no such provider."""
    if provider in _CLIENTS:
        module, name = _CLIENTS[provider]
        return getattr(import_module(module), name)
    for point in entry_points(group=GROUP):
        if point.name == provider:
            return point.load()
    return None
