"""Chat documents: what is in them, which are refused, and what a restored chat has. test_chat_cases has the cases."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from tests.agents.group_chats import agent_of, heard, requests_of
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.test_group_chats import Own
from tests.servers.postgres_server import Databases

from clew import Agent, ChatSerializer, Engine, GroupChat, Human, Participant, ScriptedChatClient
from clew.chats.serializer import ChatDocument
from clew.domain.chats.document import ChatContent, json_schema, write_chat
from clew.domain.chats.errors import ChatDocumentError, ChatNotRestoredError, ChatRunOpenError
from clew.domain.context.provider import Context
from clew.domain.errors import CredentialError, ThreadDocumentError
from clew.testing import call

pytestmark = pytest.mark.anyio

SCHEMA = Path(__file__).parents[2] / "docs" / "chat-document.schema.json"


def make(engine: Engine, kind: str) -> Agent:
    return agent_of(engine, kind, remote=kind == "A", description=f"of kind {kind}")


async def written(chat: GroupChat, **options: Any) -> str:
    stream = io.StringIO()
    await ChatSerializer.serialize(chat, stream, **options)
    return stream.getvalue()


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


async def test_a_document_is_plain_json_without_definitions_and_secrets() -> None:
    def find(parcel: int) -> str:
        """Find a parcel, canary."""
        return f"Parcel {parcel} is here."

    canary = "canary-instructions"
    async with Engine.open("memory:") as engine:
        client = ScriptedChatClient([call("find", parcel=7), "It is here."])
        client.api_key = canary  # type: ignore[attr-defined]  # as clients of services have one
        finder = Agent(client, engine=engine, name="Finder", instructions=canary, tools=[find])
        chat = await engine.start_chat([finder, finder, make(engine, "A")], max_turns=2)
        await chat.add(finder)
        await chat.run("Grüße 🪢", actor="user:42")
        text = await written(chat, key=b"key-canary")
        assert [each["id"] for each in json.loads(text)["participants"]] == ["Finder", "A"]
        fastjsonschema.compile(json.loads(SCHEMA.read_text(encoding="utf-8")))(json.loads(text))
        assert "canary" not in text
        assert max(map(len, re.findall(r"[A-Za-z0-9+/]+={0,2}", text))) <= 64, "the longest words are hashes"
        assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json_schema()


async def test_a_state_that_looks_like_a_credential_is_not_written() -> None:
    class Careless(Own):
        async def invoking(self, ctx: Any, messages: Any) -> Context:
            context = await super().invoking(ctx, messages)
            ctx.state = {"api_key": "sk-canary0123456789"}
            return context

    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, "C")], max_turns=1, context_providers=Careless("careless", "all"))
        await chat.run("One.")
        with pytest.raises(CredentialError, match="careless"):
            await written(chat)


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


async def test_every_changed_value_is_refused_or_means_the_same() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, "A"), Human("ann", "Ann")], max_turns=1)
        await chat.run("One.")
        document = json.loads(await written(chat))
        content = (await ChatSerializer.deserialize(io.StringIO(json.dumps(document)))).content
        for *steps, last in list(places(document)):
            parent = document
            for step in steps:
                parent = parent[step]
            value = parent[last]
            for other in (f"{value}x" if isinstance(value, str) else 1, "half of a pair: \ud83d"):
                parent[last] = other
                try:
                    again = (await ChatSerializer.deserialize(io.StringIO(json.dumps(document)))).content
                except ChatDocumentError:
                    pass
                else:
                    assert again == content, (*steps, last)
            parent[last] = value


def places(value: Any, *steps: Any) -> Iterator[tuple[Any, ...]]:
    """Where the texts, numbers and nulls in a document are."""
    if not isinstance(value, dict | list):
        yield steps
        return
    for step in value if isinstance(value, dict) else range(len(value)):
        yield from places(value[step], *steps, step)


async def test_a_changed_channel_leaves_nothing_half_restored() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, kind) for kind in "CX"], max_turns=2)
        await chat.run("One.")
        document = await ChatSerializer.deserialize(io.StringIO(await written(chat)))
        channels = document.content.model_dump()
        events = channels["channels"][1]["channelstate"]["streams"][0]["events"]
        events[2]["text"] = events[2]["text"].replace("One.", "Two.")
        document = ChatDocument(ChatContent.model_validate(channels))
    async with Engine.open("memory:") as there:
        other = await there.start_chat([make(there, kind) for kind in "CX"])
        version = await other.thread.version
        with pytest.raises(ThreadDocumentError, match="hash does not match"):
            await document.restore(other)
        assert await other.thread.version == version
        assert [each.id async for each in there.threads()] == [other.id]


def test_a_process_killed_while_it_restores_has_stored_all_or_nothing(tmp_path: Path, databases: Databases) -> None:
    async def serialized() -> str:
        async with Engine.open("memory:") as engine:
            chat = await engine.start_chat([make(engine, kind) for kind in "CX"], max_turns=2)
            await chat.run("One.")
            return await written(chat)

    text = asyncio.run(serialized())

    async def restore(url: str, chat_id: str, _: PassPoint) -> None:
        async with Engine.open(url) as engine:
            chat = await engine.chat(chat_id, [])
            await (await ChatSerializer.deserialize(io.StringIO(text))).restore(chat)

    async def begin(url: str) -> str:
        async with Engine.open(url) as engine:
            return (await engine.start_chat([make(engine, kind) for kind in "CX"])).id

    async def threads(url: str) -> int:
        async with Engine.open(url) as engine:
            assert (await engine.verify()).first_bad is None
            return len([each.id async for each in engine.threads()])

    files = (f"sqlite:///{tmp_path}/{number}.db?synchronous=OFF" for number in itertools.count())
    for stores in (lambda: nullcontext(next(files)), databases.one):
        found = []
        for point in itertools.count(1):
            with stores() as url:
                chat_id = asyncio.run(begin(url))
                killed = run_until(point, partial(restore, url, chat_id)).killed
                found.append(asyncio.run(threads(url)))
                if killed and found[-1] == 1:  # nothing is there, and it can be tried again
                    asyncio.run(restore(url, chat_id, print))
                    assert asyncio.run(threads(url)) == 3  # the chat and two channels
            if not killed:
                break
        assert set(found) == {1, 3}


async def test_the_state_of_an_unknown_channel_is_kept_byte_for_byte() -> None:
    kept = '{ "b": 1.10,\t"a": [1E2, 12345678901234567890123, "\\u00fc"],\n "a": {"$number": 1} }'
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, kind) for kind in "CX"], max_turns=1)
        await chat.run("One.")
        document = await ChatSerializer.deserialize(io.StringIO(await written(chat)))
        foreign = document.content.channels[1].model_copy(update={"channelstate": kept})
        content = document.content.model_copy(update={"channels": (document.content.channels[0], foreign)})
        text = write_chat(content, None)
        assert kept in text
    async with Engine.open("memory:") as there:
        other = await there.start_chat([make(there, "C")], max_turns=1)
        report = await (await ChatSerializer.deserialize(io.StringIO(text))).restore(other)
        assert report.missing == ["X"]
        again = await written(other)
        assert kept in again
        late = make(there, "X")
        await other.add(late)
        await other.run("Two.", next_speaker="X")
        assert heard(requests_of(late)[0])[0] == "One.", "its state is of no use to Clew, so it hears the whole chat"


async def test_a_restored_chat_ends_no_thread_that_it_did_not_begin() -> None:
    async with Engine.open("memory:") as engine:
        agents = [make(engine, kind) for kind in "CX"]
        thread = await engine.start_thread()
        chat = await engine.start_chat([Participant(agents[0], thread=thread), agents[1]], max_turns=2)
        await chat.run("One.")
        text = await written(chat)
        copy = await engine.start_chat(agents)
        await (await ChatSerializer.deserialize(io.StringIO(text))).restore(copy)
        await copy.end()
        assert [await each.thread.status for each in chat.participants] == ["active", "active"]
    async with Engine.open("memory:") as there:
        other = await there.start_chat([make(there, kind) for kind in "CX"])
        await (await ChatSerializer.deserialize(io.StringIO(text))).restore(other)
        await other.end()
        assert [await each.thread.status for each in other.participants] == ["active", "ended"]


async def test_an_agent_of_another_kind_under_the_same_id_is_new() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, kind) for kind in "CX"], max_turns=2)
        await chat.run("One.")
        text = await written(chat)
    async with Engine.open("memory:") as there:
        remote = agent_of(there, "C", remote=True)
        other = await there.start_chat([remote, make(there, "X")], max_turns=1)
        report = await (await ChatSerializer.deserialize(io.StringIO(text))).restore(other)
        assert (report.restored, report.new, report.missing) == (["X"], ["C"], [])
        await other.run("Two.", next_speaker="C")
        assert heard(requests_of(remote)[0]) == ["One.", "I heard 1.", "X: I heard 2.", "Two."]


async def test_one_that_had_left_has_its_channel_back() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([make(engine, kind) for kind in "AC"], max_turns=1)
        await chat.run("One.")
        await chat.remove("A")
        text = await written(chat)
    async with Engine.open("memory:") as there:
        late = make(there, "A")
        other = await there.start_chat([make(there, "C"), late, make(there, "X")], max_turns=1)
        report = await (await ChatSerializer.deserialize(io.StringIO(text))).restore(other)
        assert (sorted(report.restored), report.new, report.missing) == (["A", "C"], ["X"], [])
        await other.run("Two.", next_speaker="A")
        (body,) = requests_of(late)
        assert body["previous_response_id"] == "resp_1"
        assert heard(body) == ["Two."]


async def test_a_chat_that_was_rewound_is_written_as_it_was_there() -> None:
    async with Engine.open("memory:") as engine:
        agent = make(engine, "A")
        chat = await engine.start_chat([agent], max_turns=1)
        await chat.run("One.")
        then = await chat.thread.version
        await chat.run("Two.")
        threads = len([each async for each in engine.threads()])
        await chat.thread.rewind(to=then)
        text = await written(chat)
        assert len([each async for each in engine.threads()]) == threads, "writing a document stores nothing"
    async with Engine.open("memory:") as there:
        late = make(there, "A")
        other = await there.start_chat([late], max_turns=1)
        await (await ChatSerializer.deserialize(io.StringIO(text))).restore(other)
        await other.run("Three.")
        (body,) = requests_of(late)
        assert body["previous_response_id"] == "resp_1"
        assert heard(body) == ["Three."]


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
    SCHEMA.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
