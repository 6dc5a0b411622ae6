"""Clients by the names of their providers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from clew import (
    AnthropicClient,
    AnyClient,
    GeminiClient,
    GeminiInteractionsClient,
    OpenAIChatClient,
    OpenAIResponsesClient,
)
from clew.errors import AgentConfigurationError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai:gpt-5.4-mini", OpenAIResponsesClient),
        ("openai-chat:ft:gpt:org", OpenAIChatClient),
        ("anthropic:claude-x", AnthropicClient),
        ("gemini:gemini-3-pro", GeminiClient),
        ("gemini-interactions:gemini-3-pro", GeminiInteractionsClient),
    ],
)
def test_the_provider_chooses_the_client(name: str, kind: type[Any]) -> None:
    client = AnyClient(name, api_key="k", options={"seed": 1})
    assert type(client) is kind
    assert (client.model, client.options["seed"]) == (name.partition(":")[2], 1)


@pytest.mark.parametrize("name", ["gpt-5", "nobody:m", "openai:", ":m", "", None])
def test_another_name_is_refused_with_the_providers(name: Any) -> None:
    with pytest.raises(
        AgentConfigurationError, match="anthropic, bedrock, gemini, gemini-interactions, openai, openai-chat"
    ):
        AnyClient(name)


class Parrot:
    """The client of another package."""

    def __init__(self, model: str) -> None:
        self.model = model


def test_a_package_declares_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = tmp_path / "parrots-1.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1\n")
    (declared / "entry_points.txt").write_text(f"[clew.model_clients]\nparrot = {__name__}:Parrot\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert AnyClient("parrot:polly").model == "polly"
