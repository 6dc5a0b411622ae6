"""The examples of group chats, on scripted models."""

from __future__ import annotations

import asyncio

import pytest
from examples.triage import help_with
from examples.writer_and_editor import DRAFTS, REVIEWS, work


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_the_editor_approves_the_second_slogan() -> None:
    said = asyncio.run(work("memory:", "A slogan."))
    assert said == [f"Writer: {DRAFTS[0]}", f"Editor: {REVIEWS[0]}", f"Writer: {DRAFTS[1]}", "Editor: APPROVED"]


def test_the_customer_is_handed_to_the_colleague_for_refunds() -> None:
    said = asyncio.run(help_with("memory:", "I want my money back for order 7."))
    assert said == ["Triage: A colleague will help you.", "Refunds: You get 12 € back."]
