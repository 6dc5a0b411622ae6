"""Providers shared by tenants, users and threads never reveal data of another scope."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.memory.naive_memory import NaiveContext, NaiveMemory, NaiveThread

from clew.domain.context.provider import ContextProvider
from clew.domain.json_values import JsonObject
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.agent_lessons import AgentLessons
from clew.memory.conversation_summaries import ConversationSummaries
from clew.memory.user_facts import UserFacts
from clew.memory.user_preferences import UserPreferences
from clew.memory.whiteboard import Whiteboard

MARK = re.compile(r"mark \w*q\w+")

TENANTS = ("default", "acme")
SCOPES = ("user/1", "user/2", "user/1/lamps", "agent/desk")


def echo(body: JsonObject) -> str:
    """Learn each mark in the request, in the requested form."""
    shown: Any = body["messages"]
    marks = MARK.findall(shown[-1]["content"])
    return json.dumps(
        {
            "facts": [{"text": mark} for mark in marks],
            "preferences": [{"name": mark, "value": mark} for mark in marks],
            "summary": " ".join(marks),
            "lessons": [{"title": mark, "when": mark, "steps": [mark]} for mark in marks],
            "requirements": marks,
            "proposals": [],
            "decisions": [],
            "actions": [],
        }
    )


def providers_of(scope: str) -> list[ContextProvider]:
    client = ScriptedChatClient(echo)
    return [
        UserFacts(scope, client, top=3),
        UserPreferences(scope, client),
        ConversationSummaries(scope, client),
        AgentLessons(scope, client),
    ]


turns = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.sampled_from(SCOPES), st.integers(0, 3), st.integers(0, 2)), max_size=12
)


@settings(max_examples=max(10, settings().max_examples // 4))
@given(turns=turns)
def test_provides_only_data_of_the_same_scope_and_tenant(
    turns: list[tuple[str, str, int, int]],
) -> None:
    async def talk() -> None:
        memory = NaiveMemory()
        providers = {scope: providers_of(scope) for scope in SCOPES}  # one set for all tenants and threads
        for number, (tenant, scope, kind, thread) in enumerate(turns):
            provider = providers[scope][kind]
            own = f"{TENANTS.index(tenant)}q{SCOPES.index(scope)}q"
            ctx = NaiveContext(provider, memory, NaiveThread(f"{tenant}-{scope}-{thread}"), tenant=tenant)
            instructions = await ctx.run(f"My mark {own}{number} and mark and all.")
            await provider.on_thread_ended(ctx)
            assert all(mark.startswith(f"mark {own}") for mark in MARK.findall(instructions or ""))
        for (tenant, scope), facts in memory.facts.items():
            own = f"mark {TENANTS.index(tenant)}q{SCOPES.index(scope)}q"
            assert all(mark.startswith(own) for fact in facts for mark in MARK.findall(fact.text))

    asyncio.run(talk())


@settings(max_examples=max(10, settings().max_examples // 4))
@given(turns=st.lists(st.integers(0, 2), min_size=1, max_size=10))
def test_a_whiteboard_shows_only_its_own_thread(turns: list[int]) -> None:
    async def talk() -> None:
        whiteboard = Whiteboard(ScriptedChatClient(echo), most=100)
        threads = [NaiveContext(whiteboard, thread=NaiveThread(str(number))) for number in range(3)]
        for number, thread in enumerate(turns):
            instructions = await threads[thread].run(f"My mark {thread}q{number}.")
            assert all(mark.startswith(f"mark {thread}q") for mark in MARK.findall(instructions or ""))

    asyncio.run(talk())


@pytest.mark.anyio
async def test_provides_data_again_in_its_own_scope() -> None:
    memory = NaiveMemory()
    for provider in providers_of("user/1"):
        await (ctx := NaiveContext(provider, memory, NaiveThread("one"))).run("My mark aq1 and all.")
        await provider.on_thread_ended(ctx)
        instructions = await NaiveContext(provider, memory, NaiveThread("two")).run("My mark aq2 and all.")
        assert "mark aq1" in str(instructions), provider.id
