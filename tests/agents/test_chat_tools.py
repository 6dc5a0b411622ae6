"""A chat with the tools of a thread: each one sees the whole chat, with the channels of its participants."""

from __future__ import annotations

import io
from typing import Any

import pytest
from tests.agents.group_chats import agent_of, heard, requests_of

from clew import Agent, ChatSerializer, Engine, GroupChat, Human, tool
from clew.domain.errors import ThreadStatusError
from clew.domain.json_values import JsonObject
from clew.domain.runs.errors import ModelError
from clew.testing import call, fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"The {at} is made of marmalade."


def looking(body: JsonObject) -> Any:
    messages: Any = body["messages"]
    if all(each["role"] != "tool" for each in messages):
        return call("look", at="lamp")
    return f"I heard {len(messages)}."


async def two_rounds(engine: Engine, **options: Any) -> tuple[GroupChat, Agent, Agent]:
    """Return a chat after two rounds, of which the first has a checkpoint; and its agents, of whom one calls a tool."""
    finder, editor = agent_of(engine, "Finder", looking, tools=[look]), agent_of(engine, "Editor")
    chat = await engine.start_chat([finder, editor], max_turns=2, **options)
    await chat.run("One.", actor="user:ann")
    await chat.thread.checkpoint("one")
    await chat.run("Two.", actor="user:ann")
    return chat, finder, editor


async def test_the_past_of_a_chat_is_read_stepped_through_and_compared(url: str) -> None:
    async with Engine.open(url) as engine:
        chat, _, editor = await two_rounds(engine)
        now, then = await chat.state(), await chat.state(at="one")
        assert [each.text for each in await chat.history(at="one")] == ["One.", "I heard 3.", "I heard 2."]
        assert (then.taken, now.taken) == (2, 4)
        for id_, channel in then.channels.items():  # the channel at this place is a version of its thread
            thread = await engine.thread(channel.thread_id)
            assert channel.version < now.channels[id_].version == await thread.version
            assert "Two." not in [each.text for each in await thread.history(at=channel.version)]
        steps = [(event.type, len(state.messages)) async for event, state in chat.thread.replay()]
        assert [count for kind, count in steps if kind == "turn-finished"] == [2, 3, 5, 6]
        tried = await chat.fork(at="one", title="What if")
        await tried.run("Otherwise.")
        assert heard(requests_of(editor)[-1])[-2] == "Otherwise."
        diff = await engine.diff(chat.id, tried.id)
        assert [each.kind for each in diff.rows if each.kind != "same"] == ["only-a", "only-b"]
        await chat.thread.rewind("one")
        assert [each.text for each in await chat.history()] == ["One.", "I heard 3.", "I heard 2."]
        assert (await chat.state()).channels == then.channels
        assert (await chat.run("Two, again.")).text == "I heard 5."
        assert (await engine.verify()).first_bad is None


async def test_searches_find_what_was_said_and_what_tools_returned(shared_url: str) -> None:
    async with Engine.open(shared_url) as engine:
        chat, *_ = await two_rounds(engine)
        (found,) = await engine.search("marmalade")
        assert found.thread_id == chat.participants[0].thread.id
        (said,) = await engine.search("two", thread=chat.id)
        assert [each.text for each in await chat.history(at=said.version)][-1] == "Two."


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


async def test_a_suspended_chat_waits_until_it_is_resumed(url: str) -> None:
    async with Engine.open(url) as engine:
        writer = agent_of(engine, "Writer", [fault("context-window"), "Better."])
        chat = await engine.start_chat([Human("ann"), writer], max_turns=2)
        await chat.run("One.")
        await chat.thread.suspend(reason="The night.")
        for step in (chat.respond("ann", "Yes."), chat.run("Two.", abandon_run=True)):
            with pytest.raises(ThreadStatusError):
                await step
        await chat.thread.resume()
        await chat.respond("ann", "Yes.")
        with pytest.raises(ModelError):
            await chat.continue_run()
        assert (await chat.continue_run()).text == "Better."


async def test_an_open_turn_of_a_suspended_chat_asks_nobody() -> None:
    async with Engine.open("memory:") as engine:
        waits = tool(lambda: "Published.", name="publish", approval="always")
        writer = agent_of(engine, "Writer", [call("publish"), "Done."], tools=[waits])
        chat = await engine.start_chat([writer], max_turns=1)
        (pending,) = (await chat.run("One.")).approvals
        await pending.approve(actor="user:ann")
        await chat.thread.suspend(reason="The night.")
        with pytest.raises(ThreadStatusError):
            await chat.continue_run()
        assert len(requests_of(writer)) == 1
        await chat.thread.resume()
        assert (await chat.continue_run()).text == "Done."


@pytest.mark.parametrize("children", [False, True])
async def test_an_exported_chat_continues_in_another_store(url: str, *, children: bool) -> None:
    async with Engine.open(url) as engine:
        chat, finder, editor = await two_rounds(engine)
        lines = [line async for line in engine.export_events(chat.id, children=children)]
        await chat.run("Three.")
    async with Engine.open("memory:") as there:
        report = await there.import_events(io.BytesIO(b"".join(lines)))
        assert not report.failed
        agents = agent_of(there, "Finder", looking, tools=[look]), agent_of(there, "Editor")
        other = await there.chat(chat.id, agents)
        await other.run("Three.")
        for each, agent in zip((finder, editor), agents, strict=True):
            if children:  # the channels came along
                assert requests_of(agent)[-1] == requests_of(each)[-1]
            else:  # each hears the whole chat again
                assert [text.rpartition(": ")[2] for text in heard(requests_of(agent)[0])[:2]] == ["One.", "I heard 3."]
        assert (await there.verify(chat.id, children=children)).first_bad is None
        await other.run("Four.")
        assert heard(requests_of(agents[1])[-1]).count("One.") == 1


@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_a_fork_continues_when_its_chat_is_gone(url: str, how: str) -> None:
    async with Engine.open(url) as engine:
        chat, _, editor = await two_rounds(engine)
        fork = await chat.fork(at="one")
        await (chat.delete() if how == "delete" else chat.purge(forks=True))
        text = io.StringIO()
        await ChatSerializer.serialize(fork, text)
        await fork.run("Still here.")
        assert heard(requests_of(editor)[-1])[-2] == "Still here."
        assert heard(requests_of(editor)[-1]).count("One.") == (how == "delete")
        await fork.run("And again.")
        assert len({each.thread.id for each in fork.participants}) == 2
        await fork.end()
        assert [await each.thread.status for each in fork.participants] == ["ended"] * 2
    if how == "delete":
        async with Engine.open("memory:") as there:
            late = agent_of(there, "Editor")
            other = await there.start_chat([late], max_turns=1)
            await (await ChatSerializer.deserialize(io.StringIO(text.getvalue()))).restore(other)
            await other.run("There.")
            assert [each.rpartition(": ")[2] for each in heard(requests_of(late)[0])][:2] == ["One.", "I heard 3."]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("how", ["rewind", "end", "delete", "abandon"])
async def test_nothing_waits_for_an_approval_when_the_turn_is_gone(how: str, *, within: bool) -> None:
    async with Engine.open("memory:") as engine:
        waits = tool(lambda: "Published.", name="publish", approval="always")
        writer = agent_of(engine, "Writer", [call("publish"), "Done."], tools=[waits])
        chat = await engine.start_chat([writer], max_turns=1)
        if within:
            chat = await engine.start_chat([chat.as_participant("Desk"), agent_of(engine, "Other")], max_turns=2)
        await chat.run("One.")
        assert [each.call.name async for each in engine.approvals()] == ["publish"]
        if how == "abandon":
            await chat.run("Two.", abandon_run=True, next_speaker="Other" if within else "Writer")
        else:
            await (chat.thread.rewind(1) if how == "rewind" else getattr(chat.thread, how)())
        assert [each async for each in engine.approvals()] == []


async def test_a_purge_of_the_thread_of_a_chat_destroys_its_channels_too(shared_url: str) -> None:
    async with Engine.open(shared_url) as engine:
        chat, *_ = await two_rounds(engine)
        await chat.thread.rewind("one")
        await chat.run("Two, again.")  # the channels have forks now
        outer = await engine.start_chat([agent_of(engine, "Editor")], max_turns=1)
        await outer.run("Mine.")
        purged = await (await engine.thread(chat.id)).purge()
        assert len(purged.children) == 2 * 2
        exported = str([line async for line in engine.export_events()])
        assert "marmalade" not in exported
        assert "One." not in exported
        assert "Mine." in exported
        assert (await engine.verify()).first_bad is None
