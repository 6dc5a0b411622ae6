"""The list prices of model services, from the package genai-prices: data of its version, read without a network."""

from __future__ import annotations

import importlib
from datetime import datetime
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from clew.domain.models.client import TokenUsage
from clew.domain.runs.errors import MissingExtraError

_PACKAGE = "genai-prices"

_KEYS = {
    "cache_write": "cache_write_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "input_audio": "input_audio_tokens",
    "input_image": "input_image_tokens",
    "input_video": "input_video_tokens",
    "cache_audio_read": "cache_audio_read_tokens",
    "cache_image_read": "cache_image_read_tokens",
    "cache_video_read": "cache_video_read_tokens",
    "output_audio": "output_audio_tokens",
    "output_image": "output_image_tokens",
    "output_video": "output_video_tokens",
    "web_searches": "web_searches",
}
"""The package's names of the parts of a usage."""

_SERVICES = {"foundry": "azure", "bedrock-mantle": "aws", "bedrock": "aws", "gemini": "google", "vertex": "google"}
"""The package's names of services, where they are others than those of Clew's clients."""


class GenaiPrices:
    """The list prices in the package genai-prices, at the time of each call. Without the package it has no price.

    They are estimates: they know no contract, and no discount. A model or a service that the package does not know has
    no price, and neither has a model that is not paid by the token. Raises MissingExtraError if the package is
    ``required`` and not installed.
    """

    needs_provider = True
    """A call without a service has no price."""

    def __init__(self, *, required: bool = False) -> None:
        try:
            self.name = f"{_PACKAGE} {version(_PACKAGE)}"
        except PackageNotFoundError:
            if required:
                raise MissingExtraError("Costs", _PACKAGE, "prices") from None
            self.name = ""
        self._package: Any = None
        self.is_loaded = not self.name
        """Whether the package is imported, which takes a third of a second, or missing."""

    def cost(self, usage: TokenUsage, *, model: str, provider: str | None, at: datetime) -> Decimal | None:
        """What a call cost by the list of that time."""
        if not self.name or provider is None:
            return None
        if self._package is None:
            self._package = importlib.import_module("genai_prices")
            self.is_loaded = True
        counts = {_KEYS[name]: count for name, count in usage.parts.items() if name in _KEYS}
        tier = {} if usage.tier is None else {"service_tier": usage.tier, "speed": usage.tier}
        try:
            price = self._package.calc_price(
                self._package.Usage(
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    cache_read_tokens=usage.cached_tokens,
                    output_reasoning_tokens=usage.reasoning_tokens,
                    **counts,
                ),
                model,
                genai_request_timestamp=at,
                price_context=tier,
                **_service(provider),
            )
        except (LookupError, ValueError):  # an unknown model or service, or parts that are more than the whole
            return None
        paid = price.model_price
        lacks_input = usage.input_tokens and paid.input_mtok is None
        lacks_output = usage.output_tokens and paid.output_mtok is None
        if lacks_input or lacks_output or (usage.parts.get("web_searches") and paid.web_searches_kcount is None):
            return None
        total: Decimal = price.total_price
        return total


def installed_prices() -> GenaiPrices | None:
    """The list prices, None if the package is not installed."""
    prices = GenaiPrices()
    return prices if prices.name else None


def _service(provider: str) -> dict[str, str]:
    """The arguments that name a service: its host, or its name."""
    if "." in provider:
        return {"provider_api_url": f"https://{provider}"}
    return {"provider_id": _SERVICES.get(provider, provider)}
