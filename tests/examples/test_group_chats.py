"""The examples of group chats, on scripted models."""

from __future__ import annotations

import asyncio

import pytest
from examples.debate import debate
from examples.research_manager import research
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


def test_the_judge_speaks_after_two_rounds_of_which_the_first_is_at_the_same_time() -> None:
    said = asyncio.run(debate("memory:", "Spaces or tabs?"))
    speakers = [each.partition(":")[0] for each in said]
    assert sorted(speakers[:2]) == ["Contra", "Pro"]
    assert [*sorted(speakers[2:4]), *speakers[4:]] == ["Contra", "Pro", "Judge"]


def test_the_manager_instructs_three_workers_and_answers() -> None:
    outcome = asyncio.run(research("memory:", "Can a lamp of tree bark be safe?"))
    assert [each.partition(":")[0] for each in outcome.messages] == [
        *("Manager", "Researcher", "Manager", "Analyst", "Manager", "Writer", "Manager"),
    ]
    assert outcome.messages[-1] == "Manager: Yes: an LED is far too cold to burn bark."
    assert outcome.reason == "satisfied"
    assert set(outcome.tokens) == {"Manager", "Researcher", "Analyst", "Writer"}


def test_the_manager_answers_when_the_budget_is_used_up() -> None:
    outcome = asyncio.run(research("memory:", "Can a lamp of tree bark be safe?", max_turns=3))
    assert (outcome.reason, outcome.messages[-1]) == ("max-turns", "Manager: Yes: an LED is far too cold to burn bark.")
