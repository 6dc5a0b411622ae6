"""The shipped providers fulfil the contract of context providers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.mem0_server import Mem0Server

from clew import (
    AgentLessons,
    ConversationSummaries,
    Document,
    Engine,
    HashingEmbedder,
    Mem0Memory,
    ScriptedChatClient,
    TextRetrieval,
    UserFacts,
    UserPreferences,
    Whiteboard,
)
from clew.testing import check_context_provider

pytestmark = pytest.mark.anyio


def learner(**answer: Any) -> ScriptedChatClient:
    return ScriptedChatClient(json.dumps(answer), loop=True)


def user_facts() -> UserFacts:
    return UserFacts("user/1", learner(facts=[{"text": "The user's name is Caoimhe."}]))


def user_preferences() -> UserPreferences:
    return UserPreferences("user/1", learner(preferences=[{"name": "units", "value": "kilometres"}]))


def conversation_summaries() -> ConversationSummaries:
    return ConversationSummaries("user/1", learner(summary="They spoke of Cork."), at_checkpoints=True)


def agent_lessons() -> AgentLessons:
    return AgentLessons("agent/1", learner(lessons=[]))


def whiteboard() -> Whiteboard:
    return Whiteboard(learner(requirements=["It must be funny."], proposals=[], decisions=[], actions=[]))


@pytest.mark.parametrize("make", [user_facts, user_preferences, conversation_summaries, agent_lessons])
async def test_providers_with_a_scope_fulfil_the_contract(make: Any) -> None:
    await check_context_provider(make, shared=True)


async def test_the_whiteboard_fulfils_the_contract() -> None:
    await check_context_provider(whiteboard)


@pytest.mark.parametrize("when", ["before_run", "tool"])
async def test_retrieval_fulfils_the_contract(any_url: str, when: Any) -> None:
    async with Engine.open(any_url) as engine:
        store = await engine.documents("Maps", namespace="public", embedder=HashingEmbedder(dimensions=64))
        await store.upsert([Document("It is 250 kilometres to Cork.", source_name="Map", namespaces=["public"])])
        await check_context_provider(lambda: TextRetrieval(store, when=when))


async def test_mem0_fulfils_the_contract(mem0: Mem0Server) -> None:
    await check_context_provider(lambda: Mem0Memory(api_key=mem0.key, host=mem0.url, user_id="1"), shared=True)
