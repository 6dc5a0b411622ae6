"""A chat with the tools of a thread: each one sees the whole chat, with the channels of its participants."""

from __future__ import annotations

import pytest
from tests.agents.group_chats import agent_of

from clew import Engine, Human

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


async def test_the_audit_says_who_spoke_and_for_whom(shared_url: str) -> None:
    async with Engine.open(shared_url) as engine:
        chat = await engine.start_chat([Human("bob"), agent_of(engine, "Writer")], max_turns=2)
        await chat.run("A slogan.", actor="user:ann")
    async with Engine.open(shared_url) as other:  # continues without an actor
        chat = await other.chat(chat.id, [Human("bob"), agent_of(other, "Writer")])
        await chat.respond("bob", "A short one.", actor="user:bob")
        await chat.continue_run()
        said = [each async for each in other.audit(thread=chat.id) if each.type == "message-appended"]
        assert [(each.actor, each.on_behalf_of) for each in said] == [
            ("user:ann", None), ("user:bob", None), ("Writer", "user:ann"),
        ]  # fmt: skip
        channel = [each async for each in other.audit(thread=chat.participants[1].thread.id)]
        assert {each.actor for each in channel} == {"user:ann", "Writer"}
