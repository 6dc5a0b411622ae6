"""Chats as participants of other chats: their turns, what they wait for, what they use, and how both branch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agents.group_chats import agent_of, heard, requests_of
from tests.agents.test_group_chats import Own, said

from clew import Agent, Engine, GroupChat, Human, RoundRobin, tool
from clew.domain.chats.errors import NextSpeakerError
from clew.domain.chats.events import ChatRunStarted
from clew.domain.runs.errors import AgentConfigurationError, ModelError
from clew.testing import call, fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


async def nested(engine: Engine, desk: list[Any], *others: Any, **options: Any) -> tuple[GroupChat, GroupChat]:
    """Return a chat in which a desk has the first turn, and the desk: a chat of its own."""
    inner = await engine.start_chat(desk, max_turns=len(desk), chat_id="desk")
    outer = await engine.start_chat([inner.as_participant("Desk"), *others], max_turns=1 + len(others), **options)
    return outer, inner


async def test_a_turn_of_a_chat_is_a_run_of_it(url: str) -> None:
    async with Engine.open(url) as engine:
        a, b, editor = (agent_of(engine, name) for name in ("A", "B", "Editor"))
        outer, inner = await nested(engine, [a, b], editor)
        response = await outer.run("A slogan.", actor="user:ann")
        assert await said(outer) == [("user", "A slogan."), ("Desk", "I heard 2."), ("Editor", "I heard 2.")]
        assert await said(inner) == [("user", "A slogan."), ("A", "I heard 1."), ("B", "I heard 2.")]
        assert heard(requests_of(editor)[0]) == ["A slogan.", "Desk: I heard 2."]
        desk = (await inner.state()).usage
        assert response.usage["Desk"] == desk["A"] + desk["B"]
        assert (await outer.state()).usage == response.usage
        started = [event.data async for event in inner.thread.events() if isinstance(event.data, ChatRunStarted)]
        turns = [event.version async for event in outer.thread.events() if event.type == "turn-started"]
        assert started[0].within is not None
        assert (started[0].within.chat, started[0].within.turn) == (outer.id, turns[0])
        assert outer.participants[0].thread.id == inner.id
        await outer.run("Another.")
        assert [text for _, text in await said(inner)][3:5] == ["I heard 2.", "Another."]
        assert (await engine.verify(outer.id, children=True)).threads == len([outer, inner, a, b, editor])
        exported = str([line async for line in engine.export_events(outer.id, children=True)])
        assert all(each.id in exported for each in (inner, *(each.thread for each in inner.participants)))


async def test_what_a_chat_within_waits_for_is_in_the_outer_response_and_is_decided_there(shared_url: str) -> None:
    @tool(approval="always")
    def publish() -> str:
        """Publish it."""
        return "published"

    def members(engine: Engine, script: Any) -> list[Any]:
        return [agent_of(engine, "Writer", script, tools=[publish]), Human("ann", "Ann")]

    async with Engine.open(shared_url) as engine:
        outer, _ = await nested(engine, members(engine, [call("publish"), "Done."]))
        response = await outer.run("Publish.")
        assert [each.call.name for each in response.approvals] == ["publish"]
    async with Engine.open(shared_url) as other:
        inner = await other.chat("desk", members(other, ["Done."]))
        outer = await other.chat(outer.id, [inner.as_participant("Desk")])
        (pending,) = await outer.approvals()
        await pending.approve(actor="user:ann")
        response = await outer.continue_run()
        assert (response.waiting_for, response.reason) == (("ann",), None)
        with pytest.raises(NextSpeakerError):
            await outer.respond("bob", "Me?")
        await outer.respond("ann", "Thank you.")
        response = await outer.continue_run()
        assert (response.reason, response.text) == ("max-turns", "Thank you.")
        assert await said(inner) == [("user", "Publish."), ("Writer", "Done."), ("Ann", "Thank you.")]
        assert await said(outer) == [("user", "Publish."), ("Desk", "Thank you.")]


async def test_forks_and_rewinds_take_the_chat_within_along(url: str) -> None:
    async with Engine.open(url) as engine:
        a, b = agent_of(engine, "A"), agent_of(engine, "B")
        outer, inner = await nested(engine, [a, b])
        await outer.run("One.")
        await outer.thread.checkpoint("one")
        fork = await outer.fork()
        await outer.run("Two of the chat.")
        await fork.run("Two of the fork.")
        in_chat, in_fork = heard(requests_of(b)[-2]), heard(requests_of(b)[-1])
        assert in_chat[:3] == in_fork[:3] == ["One.", "A: I heard 1.", "I heard 2."]
        assert (in_chat[3], in_fork[3]) == ("Two of the chat.", "Two of the fork.")
        await outer.thread.rewind("one")
        await outer.run("Two, again.")
        assert heard(requests_of(b)[-1])[3] == "Two, again."
        within = await engine.chat(outer.participants[0].thread.id, [a, b])
        assert [text for _, text in await said(within)] == [
            "One.", "I heard 1.", "I heard 2.", "Two, again.", "I heard 4.", "I heard 5.",
        ]  # fmt: skip
        assert [text for _, text in await said(inner)][3] == "Two of the chat."
        assert (await engine.verify()).first_bad is None
        await outer.end()
        statuses = {each.id: each.status async for each in engine.threads()}
        assert statuses[inner.id] == statuses[fork.id] == "active", "it was brought, and another chat"
        assert statuses[within.id] == "ended"
        assert {statuses[each.thread.id] for each in within.participants} == {"ended"}


async def test_a_failed_turn_of_a_chat_is_given_again_and_its_tokens_count() -> None:
    async with Engine.open("memory:") as engine:
        a, b = agent_of(engine, "A"), agent_of(engine, "B", [fault("context-window"), "Better."])
        outer, inner = await nested(engine, [a, b], selection=RoundRobin())
        with pytest.raises(ModelError):
            await outer.run("Hello.")
        response = await outer.continue_run()
        assert response.text == "I heard 3."
        assert [(who, text) for who, text in await said(inner)] == [
            ("user", "Hello."), ("A", "I heard 1."), ("B", "Better."), ("A", "I heard 3."),
        ]  # fmt: skip
        used = (await inner.state()).usage
        assert response.usage["Desk"] == used["A"] + used["B"]


async def test_the_memory_of_the_outer_chat_is_seen_within_and_not_the_other_way() -> None:
    async with Engine.open("memory:") as engine:
        a, editor = agent_of(engine, "A"), agent_of(engine, "Editor")
        inner = await engine.start_chat([a], max_turns=1, context_providers=Own("desk", "of the desk"))
        shared = Own("shared", "of all")
        outer = await engine.start_chat([inner.as_participant("Desk"), editor], max_turns=2, context_providers=shared)
        await outer.run("Hello.")
        (of_a,), (of_editor,) = map(requests_of, (a, editor))
        assert all(each in str(of_a) for each in ("<of all>", "<of the desk>"))
        assert "<of all>" in str(of_editor)
        assert "<of the desk>" not in str(of_editor)


async def test_two_participants_have_no_name_in_common() -> None:
    async with Engine.open("memory:") as engine:
        inner = await engine.start_chat([agent_of(engine, "A")])
        with pytest.raises(AgentConfigurationError, match="Editor"):
            await engine.start_chat([inner.as_participant("Editor"), agent_of(engine, "Editor")])
        assert isinstance(agent_of(engine, "A"), Agent)
