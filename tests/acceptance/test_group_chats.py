"""Group chats in applications: a copywriter and an editor, and a chat that continues in another store."""

from __future__ import annotations

import io
from typing import Any

import pytest

from clew import (
    Agent,
    ChatSerializer,
    ConversationSummaries,
    Engine,
    ScriptedChatClient,
    UserPreferences,
)
from clew.errors import ChatNotRestoredError

pytestmark = pytest.mark.anyio

SLOGAN = "Bark up your room."


async def test_a_copywriter_and_an_editor_with_a_summary_of_the_chat() -> None:
    async with Engine.open("memory:") as engine:
        preferences = await engine.memory("user/42")
        await preferences.remember("The user likes puns.")
        summariser = ScriptedChatClient('{"summary": "They wrote a slogan."}')
        writer, reviewer = ScriptedChatClient(SLOGAN), ScriptedChatClient("Good.")
        copywriter = Agent(
            writer,
            engine=engine,
            name="Copywriter",
            instructions="You are an experienced copywriter.",
            context_providers=[UserPreferences(scope="user/42")],
        )
        editor = Agent(reviewer, engine=engine, name="Editor", instructions="You are an experienced editor.")
        summaries = ConversationSummaries(scope="group/lamps", client=summariser)
        chat = await engine.start_chat([copywriter, editor], max_turns=2, context_providers=[summaries])
        await chat.run("Write a funny marketing slogan for decorative lamps made with tree bark?")
        threads = [each.thread for each in chat.participants]
        assert len({chat.id, *(each.id for each in threads)}) == len([chat, copywriter, editor])
        said = [(each.message and each.message.author) or each.role for each in await chat.history()]
        assert said == ["user", "Copywriter", "Editor"]
        (asked,) = reviewer.requests
        messages: Any = asked["messages"]
        assert {"role": "user", "content": SLOGAN, "name": "Copywriter"} in messages
        assert "puns" not in str(asked)
        await chat.end()
        (summary,) = await (await engine.memory("group/lamps")).facts()
        assert summary.text == "They wrote a slogan."
        assert summary.learned is not None
        assert summary.learned.thread == chat.id
        assert [await each.status for each in (chat.thread, *threads)] == ["ended"] * 3
        assert len([each async for each in engine.threads()]) == len([chat, copywriter, editor])


CASES = [
    ("equivalent", "C", "C"),
    ("equivalent", "A", "A"),
    ("equivalent", "CA", "CA"),
    ("enhanced", "C", "CA"),
    ("enhanced", "A", "CA"),
    ("reduced", "CA", "C"),
    ("reduced", "CA", "A"),
    ("empty", "CA", ""),
    ("invalid", "CA", "CA"),
]
"""C is an agent on chat completions, A one whose service holds its thread."""


def agent_of(engine: Engine, kind: str) -> Agent:
    client = ScriptedChatClient("Hello.", loop=True, thread_kinds=("remote",) if kind == "A" else ("local",))
    return Agent(client, engine=engine, name=kind)


@pytest.mark.parametrize(("case", "before", "after"), CASES)
async def test_a_chat_is_restored_in_five_cases(case: str, before: str, after: str) -> None:
    stream = io.StringIO()
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([agent_of(engine, kind) for kind in before], max_turns=2)
        await chat.run("One.")
        await ChatSerializer.serialize(chat, stream)
    async with Engine.open("memory:") as there:
        document = await ChatSerializer.deserialize(io.StringIO(stream.getvalue()))
        assert [each.id for each in document.participants] == [*before]
        agents = {kind: agent_of(there, kind) for kind in after}
        other = await there.start_chat([*agents.values()], max_turns=2)
        if case in {"empty", "invalid"}:
            if case == "invalid":
                await other.run("Used.")
            with pytest.raises(ChatNotRestoredError):
                await document.restore(other)
        if case == "invalid":
            assert (await other.run("Still here.")).text == "Hello."
            return
        for kind in before if case == "empty" else "":
            agents[kind] = agent_of(there, kind)
            await other.add(agents[kind])
        await document.restore(other)
        for kind, agent in agents.items():
            client: Any = agent.client
            await other.run(f"To {kind}.", next_speaker=kind)
            sent = str(client.requests[0])
            is_continued = kind == "A" and kind in before
            assert sent.count("'One.'") == (0 if is_continued else 1), "a service is not sent what it has"
            assert ("resp_" in sent) == is_continued
