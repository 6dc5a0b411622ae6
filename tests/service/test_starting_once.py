"""Threads that start once for an idempotency key."""

from __future__ import annotations

import asyncio

import pytest

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient
from clew.errors import IdempotencyKeyReusedError, InvalidNameError, NotAuthorizedError, ThreadDeletedError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_key_names_one_thread_of_its_actor(any_url: str) -> None:
    with Conversations.open(any_url) as conversations:
        first = [Message.user("Hello")]
        ann, ben = conversations.acting_as("user:ann"), conversations.acting_as("user:ben")
        mine = [ann.start_thread("A", labels={"owner": "ann"}, messages=first, idempotency_key="k") for _ in range(2)]
        assert (mine[0].id, mine[0].version, len(mine[0].history())) == (mine[1].id, 2, 1)
        assert ben.start_thread("A", idempotency_key="k").id != mine[0].id
        assert conversations.start_thread("B", actor="user:ben", idempotency_key="l").id not in {mine[0].id, "l"}
        for title, messages in (("B", first), ("A", [])):
            with pytest.raises(IdempotencyKeyReusedError):
                ann.start_thread(title, labels={"owner": "ann"}, messages=messages, idempotency_key="k")
        for options in ({"thread_id": "mine"}, {"replace_deleted": True}):
            with pytest.raises(InvalidNameError, match="idempotency_key"):
                ann.start_thread(idempotency_key="k", **options)
        mine[0].delete()
        with pytest.raises(ThreadDeletedError):
            ann.start_thread("A", labels={"owner": "ann"}, messages=first, idempotency_key="k")
        assert [ann.actor, conversations.actor] == ["user:ann", None]


async def test_simultaneous_starts_with_one_key_start_one_thread(shared_url: str) -> None:
    async with Engine.open(shared_url) as engine, Engine.open(shared_url) as other:
        started = await asyncio.gather(
            *(
                each.start_thread("A", messages=[Message.user("Hello")], idempotency_key="k")
                for each in [engine, other] * 4
            )
        )
        assert len({thread.id for thread in started}) == 1
        assert await started[0].version == 2
        assert [each.id async for each in engine.threads()] == [started[0].id]


def test_a_key_gives_no_thread_that_the_actor_may_not_read(any_url: str) -> None:
    allowed = {"user:ann": True}
    with Conversations.open(any_url, authorize=lambda actor, *_: allowed.get(str(actor), False)) as conversations:
        ann = conversations.acting_as("user:ann")
        ann.start_thread(idempotency_key="k")
        allowed.clear()
        with pytest.raises(NotAuthorizedError):
            ann.start_thread(idempotency_key="k")


async def test_a_purged_thread_that_began_with_keys_verifies(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        agent = Agent(ScriptedChatClient(["Hello.", "Again."]), engine=engine)
        thread = await engine.start_thread("A", idempotency_key="k")
        await agent.run("Hi", thread=thread, idempotency_key="k")
        await thread.redact((await thread.history()).messages[0])
        assert (await engine.verify()).first_bad is None
        await thread.purge()
        assert (await engine.verify()).first_bad is None
        again = await engine.start_thread(thread_id=thread.id, replace_deleted=True)
        await agent.run("Hi", thread=again, idempotency_key="k")
        assert (await engine.verify()).first_bad is None
