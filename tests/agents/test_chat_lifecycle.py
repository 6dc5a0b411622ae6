"""What a group chat has as a thread: it is deleted, purged, limited by its costs, and tried with others in a fork."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from pathlib import Path

import pytest
from tests.agents.group_chats import agent_of, heard, requests_of

from clew import (
    Agent,
    Conversations,
    Engine,
    MaxCost,
    Message,
    Price,
    PriceTable,
    ScriptedChatClient,
    tool,
)
from clew.domain.errors import ThreadDeletedError, ThreadHasForksError
from clew.domain.models.client import Answer, TokenUsage
from clew.domain.runs.errors import AgentConfigurationError
from clew.testing import call
from clew.types import ThreadFilter

pytestmark = pytest.mark.anyio

WORD = "Marmalade"
PRICES = PriceTable({"scripted": Price(input=Decimal(3), output=Decimal(15))})


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


def priced(engine: Engine, name: str, tokens: int) -> Agent:
    answers = [
        Answer(Message.assistant(f"{name} {turn}."), "stop", TokenUsage(output_tokens=tokens), model="scripted")
        for turn in range(9)
    ]
    return Agent(ScriptedChatClient(answers), engine=engine, name=name)


async def test_a_deleted_chat_takes_the_threads_that_it_began_along(url: str) -> None:
    async with Engine.open(url) as engine:
        chat = await engine.start_chat([agent_of(engine, "Writer"), agent_of(engine, "Editor")], max_turns=2)
        other = await engine.start_chat([agent_of(engine, "Writer")], max_turns=1)
        for each in (chat, other):
            await each.run("A slogan.")
        channels = [each.thread for each in chat.participants]
        await chat.delete(reason="asked")
        with pytest.raises(ThreadDeletedError):
            await chat.delete(reason="asked")
        for thread in (chat.thread, *channels):
            with pytest.raises(ThreadDeletedError):
                await thread.history()
        assert len(await other.history()) == 2
        assert (await engine.verify()).first_bad is None


async def test_no_text_of_a_purged_chat_remains(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"

    def stored() -> bytes:
        return b"".join(each.read_bytes() for each in tmp_path.iterdir())

    async with Engine.open(url) as engine:
        chat = await engine.start_chat([agent_of(engine, "Writer"), agent_of(engine, "Editor")], max_turns=2)
        await chat.run(f"{WORD} for all.")
        fork = await chat.fork()
        with pytest.raises(ThreadHasForksError):
            await chat.purge()
        assert (await chat.history()).messages[0].text == f"{WORD} for all."  # nothing was begun
        assert WORD.encode() in stored()
        purged = await chat.purge(forks=True)
        assert len(purged) == len(["Writer", "Editor", "chat"])
        assert (await fork.history()).messages[0].text != f"{WORD} for all."
        assert (await engine.verify()).first_bad is None
    with Conversations.open(url) as conversations:
        conversations.wait()
    assert WORD.encode() not in stored()


async def test_a_fork_with_others_continues_apart(url: str) -> None:
    async with Engine.open(url) as engine:
        writer, editor, critic = (agent_of(engine, name) for name in ("Writer", "Editor", "Critic"))
        chat = await engine.start_chat([writer, editor], max_turns=2)
        await chat.run("One.")
        before = await chat.thread.version
        await chat.run("Two.")
        tried = await chat.fork(at=before, participants=[writer, critic], title="What if")
        await tried.run("Another two.")
        await chat.run("Three.")
        assert [each.id for each in tried.participants] == ["Writer", "Critic"]
        assert [each.id for each in chat.participants] == ["Writer", "Editor"]
        assert "Two." not in heard(requests_of(critic)[0])
        assert heard(requests_of(critic)[0])[:2] == ["One.", "Writer: I heard 1."]
        assert "Another two." not in heard(requests_of(editor)[-1])
        assert (await engine.verify()).first_bad is None


async def test_a_chat_ends_when_its_participants_have_cost_enough(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        cheap, dear = priced(engine, "Cheap", 1_000), priced(engine, "Dear", 100_000)
        chat = await engine.start_chat([cheap, dear], termination=MaxCost("1.60"))
        response = await chat.run("Work.")
        assert response.reason == "max-cost"
        assert response.costs == {"Cheap": Decimal("0.030"), "Dear": Decimal("3.0")}
        assert response.cost == Decimal("3.03")
        assert (await chat.state()).costs == response.costs
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([priced(engine, "Cheap", 1)], termination=MaxCost("1"))
        with pytest.raises(AgentConfigurationError, match="MaxTokens"):
            await chat.run("Work.")


async def test_the_lists_of_threads_know_chats_from_channels(url: str) -> None:
    async with Engine.open(url) as engine:
        chat = await engine.start_chat([agent_of(engine, "Writer")], max_turns=1)
        await chat.run("A slogan.")
        channel = chat.participants[0].thread
        assert [each.id async for each in engine.threads(labels={"clew:channel-of": chat.id})] == [channel.id]
        found = [each async for each in engine.threads() if "clew:group-chat" in each.labels]
        assert [each.id for each in found] == [chat.id]


async def test_an_imported_chat_shows_nothing_of_threads_that_it_names(url: str) -> None:
    """The thread of the turn is not in the file: here another's thread has its id."""

    def may(actor: str | None, _action: str, _thread: str | None) -> bool | ThreadFilter:
        return actor == "root" or ThreadFilter({"owner": actor or "nobody"})

    @tool(approval="always")
    def publish() -> str:
        """Publish it."""
        return "published"

    def writer(engine: Engine) -> Agent:
        return agent_of(engine, "Writer", [call("publish"), "Done."], tools=[publish])

    async with Engine.open("memory:") as elsewhere:
        forged = await elsewhere.start_chat([writer(elsewhere)], max_turns=1)
        await forged.run("Publish.")
        await forged.thread.label(owner="eve")
        (own,) = await forged.approvals()
        content = BytesIO(b"".join([line async for line in elsewhere.export_events(forged.id)]))
    async with Engine.open(url, authorize=may) as engine:
        root, ben = engine.acting_as("root"), engine.acting_as("ben")
        victim = await ben.start_thread(thread_id=own.thread_id, labels={"owner": "ben"})
        await writer(ben).run("Publish.", thread=victim)
        await root.import_events(content)
        assert await (await engine.acting_as("eve").chat(forged.id)).approvals() == []
        assert len(await victim.approvals()) == 1
        real = await root.start_chat([writer(root)], max_turns=1)
        await real.run("Publish.")
        await real.thread.label(owner="ben")
        (approval,) = await (await ben.chat(real.id)).approvals()
        await approval.approve(actor="ben")
