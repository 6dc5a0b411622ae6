"""Chat documents: the five cases of restoring, for local and remote agents, and documents that are refused."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from tests.agents.group_chats import agent_of, heard, requests_of
from tests.agents.test_group_chats import Own

from clew import Agent, ChatSerializer, Engine, GroupChat, Human
from clew.domain.chats.document import ChatContent
from clew.domain.chats.errors import ChatDocumentError, ChatNotRestoredError, ChatRunOpenError
from clew.domain.errors import ThreadDocumentError

pytestmark = pytest.mark.anyio

KINDS = "CAX"
"""A chat completions agent, an agent whose service holds its thread, and a second agent of the first kind."""

SCHEMA = Path(__file__).parents[2] / "docs" / "chat-document.schema.json"


def make(engine: Engine, kind: str) -> Agent:
    return agent_of(engine, kind, remote=kind == "A", description=f"of kind {kind}")


async def written(chat: GroupChat, **options: Any) -> str:
    stream = io.StringIO()
    await ChatSerializer.serialize(chat, stream, **options)
    return stream.getvalue()


def subsets(least: int = 1) -> list[str]:
    return ["".join(each) for many in range(least, len(KINDS) + 1) for each in combinations(KINDS, many)]


@pytest.mark.parametrize("before", subsets())
@pytest.mark.parametrize("after", subsets(0))
def test_restores_in_a_fresh_store_with_all_more_fewer_or_no_agents(tmp_path: Path, before: str, after: str) -> None:
    asyncio.run(_check_case(tmp_path, before, after))


async def _check_case(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "chat.json"
    async with Engine.open("memory:") as engine:
        agents = {kind: make(engine, kind) for kind in before}
        chat = await engine.start_chat([*agents.values()], max_turns=len(before))
        await chat.run("One.")
        with file.open("w", encoding="utf-8") as stream:
            await ChatSerializer.serialize(chat, stream)
        went_on = await chat.fork()
        await went_on.run("Two.")
        expected = {kind: requests_of(agent)[1] for kind, agent in agents.items()}
        ids = {each.id: each.thread.id for each in chat.participants}
    async with Engine.open("memory:") as there:
        with file.open(encoding="utf-8") as stream:
            document = await ChatSerializer.deserialize(stream)
        assert [(each.id, each.type, each.description) for each in document.participants] == [
            (kind, "Agent", f"of kind {kind}") for kind in before
        ]
        other = await there.start_chat([make(there, kind) for kind in after], max_turns=max(1, len(after)))
        if not after:
            with pytest.raises(ChatNotRestoredError, match="no participants") as caught:
                await document.restore(other)
            assert caught.value.needed == [*before]
            after = before
            for kind in after:
                await other.add(make(there, kind))
        outcome = await document.restore(other)
        assert set(outcome.restored) == set(before) & set(after)
        assert set(outcome.new) == set(after) - set(before)
        assert set(outcome.missing) == set(before) - set(after)
        with pytest.raises(ChatNotRestoredError, match="already"):
            await document.restore(other)
        restored = {each.id: each.thread.id for each in other.participants}
        assert {kind: restored[kind] for kind in outcome.restored} == {kind: ids[kind] for kind in outcome.restored}
        present = {each.id: other._members[each.id].agent for each in other.participants}
        if set(before) == set(after):
            other.termination = chat.termination
            await other.run("Two.")
            for kind, agent in present.items():
                assert agent is not None
                assert requests_of(agent)[0] == expected[kind]
        else:
            await other.run("Two.")
            for kind in outcome.new:
                newcomer = present[kind]
                assert newcomer is not None
                assert heard(requests_of(newcomer)[0])[:2] == ["One.", f"{before[0]}: I heard 1."]
        for kind in outcome.missing:  # it comes back, with its old thread
            late = make(there, kind)
            await other.add(late)
            await other.run("Welcome back.", next_speaker=kind)
            (body,) = requests_of(late)
            assert other.participants[-1].thread.id == ids[kind]
            assert body.get("previous_response_id") == ("resp_1" if kind == "A" else None)
            assert heard(body)[-1] == "Welcome back."
            assert heard(body).count("One.") == (0 if kind == "A" else 1)
        assert (await there.verify()).first_bad is None


async def test_a_used_chat_refuses_a_document_and_continues() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, "C")], max_turns=1)
        await chat.run("One.")
        document = await ChatSerializer.deserialize(io.StringIO(await written(chat)))
        version = await chat.thread.version
        with pytest.raises(ChatNotRestoredError, match="already has a history"):
            await document.restore(chat)
        assert await chat.thread.version == version
        assert (await chat.run("Two.")).text == "I heard 3."


async def test_a_document_continues_apart_from_its_chat_in_the_same_store() -> None:
    async with Engine.open("memory:") as engine:
        agents = [make(engine, kind) for kind in "CX"]
        chat = await engine.start_chat(agents, max_turns=1, context_providers=Own("shared", "all"))
        await chat.run("One.")
        text = await written(chat, key=b"k")
        await chat.run("Of the chat.", next_speaker="C")
        other = await engine.start_chat(agents, max_turns=1, context_providers=Own("shared", "all"))
        await (await ChatSerializer.deserialize(io.StringIO(text), key=b"k")).restore(other)
        response = await other.run("Of the copy.")
        assert [each.message and each.message.author for each in response.messages] == ["X"], "the turn order goes on"
        await other.run("More.", next_speaker="C")
        assert "Of the chat." not in heard(requests_of(agents[0])[-1])
        again = json.loads(await written(other))
        assert [each["participant"]["id"] for each in again["channels"]] == ["C", "X"]
        assert (await engine.verify()).first_bad is None


async def test_a_document_matches_its_schema_and_names_no_instructions() -> None:
    async with Engine.open("memory:") as engine:
        writer = agent_of(engine, "C", instructions="A secret instruction.")
        chat = await engine.start_chat([writer, make(engine, "A")], max_turns=2)
        await chat.run("Grüße 🪢 123456789012345678901234567890")
        text = await written(chat, key=b"k")
        fastjsonschema.compile(json.loads(SCHEMA.read_text(encoding="utf-8")))(json.loads(text))
        assert "A secret instruction." not in text
        assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema()


def schema() -> Any:
    """The JSON Schema of chat documents. ``python -m tests.agents.test_chat_serializer`` writes it."""
    made = ChatContent.model_json_schema(mode="serialization")
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "A group chat of Clew"
    made["properties"]["digest"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    made["properties"]["signature"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    made["required"] = [*made["required"], "digest"]
    return made


def newer(document: Any) -> None:
    document["version"] = 2


def tampered(document: Any) -> None:
    document["history"][0]["contents"][0]["text"] = "Other."


def other_format(document: Any) -> None:
    document["format"] = "something"


@pytest.mark.parametrize("change", [newer, tampered, other_format])
async def test_refuses_a_document_that_was_changed(change: Callable[[Any], None]) -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, "C")], max_turns=1)
        await chat.run("One.")
        text = await written(chat)
        document = json.loads(text)
        change(document)
        with pytest.raises(ChatDocumentError):
            await ChatSerializer.deserialize(io.StringIO(json.dumps(document)))
        for end in (0, 1, len(text) // 2, len(text) - 2):
            with pytest.raises(ChatDocumentError, match="not JSON"):
                await ChatSerializer.deserialize(io.StringIO(text[:end]))
        with pytest.raises(ChatDocumentError, match="signature"):
            await ChatSerializer.deserialize(io.StringIO(text), key=b"k")


async def test_a_changed_channel_leaves_nothing_half_restored() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, kind) for kind in "CX"], max_turns=2)
        await chat.run("One.")
        document = await ChatSerializer.deserialize(io.StringIO(await written(chat)))
        state: Any = document.content.channels[1].channelstate
        state["document"]["thread"]["kind"] = "remote"
    async with Engine.open("memory:") as there:
        other = await there.start_chat([make(there, kind) for kind in "CX"])
        version = await other.thread.version
        with pytest.raises(ThreadDocumentError):
            await document.restore(other)
        assert await other.thread.version == version
        assert [each.id async for each in there.threads()] == [other.id]


async def test_an_open_run_is_refused_or_waited_for() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([Human("ann"), make(engine, "C")], max_turns=1)
        await chat.run("One.")
        with pytest.raises(ChatRunOpenError):
            await written(chat)
        waiting = asyncio.create_task(written(chat, on_turn="wait"))
        await chat.respond("ann", "Two.")
        await chat.continue_run()
        history = json.loads(await waiting)["history"]
        assert [each["contents"][0]["text"] for each in history] == ["One.", "Two."]


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
