"""Remote threads serialized and continued on another store: the service continues them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.agents.remote_turns import client_of, two_turns, will_joke
from tests.agents.run_checks import events_of
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import Agent, Engine


def test_the_service_continues_a_restored_thread(stateful: StatefulServer, aimock: Aimock, tmp_path: Path) -> None:
    will_joke(aimock)

    async def move_thread() -> None:
        async with Engine.open("memory:") as here, Engine.open(f"sqlite:///{tmp_path}/clew.db") as there:
            agents = [Agent(client_of(stateful), engine=engine, name="Joker") for engine in (here, there)]
            thread = await two_turns(agents[0])
            branch = await thread.fork(at_message=2)
            for each in (thread, branch):
                document = json.loads(json.dumps(await each.serialize()))
                assert document["service"] == {"service_thread_id": await each.service_thread_id, "kind": "response"}
                restored: Any = await agents[1].deserialize_thread(document)
                assert await restored.service_thread_id == await each.service_thread_id
                counts = (len(await each.history()), 0, 0, 0)
                assert (await restored.reconcile()).counts == counts
                sent = []
                for one in (each, restored):
                    response = await one.run("Now a poet.")
                    called = next(event for event in reversed(await events_of(one)) if event.type == "model-called")
                    sent.append((await one.request(called.version)).content)
                    assert response.text == "It rhymes."
                assert sent[0] == sent[1]

    asyncio.run(move_thread())


def test_a_remote_thread_restored_as_new_continues_at_the_service(
    stateful: StatefulServer, aimock: Aimock, tmp_path: Path
) -> None:
    will_joke(aimock)

    async def again() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = Agent(client_of(stateful), engine=engine, name="Joker")
            thread = await two_turns(agent)
            new: Any = await agent.deserialize_thread(await thread.serialize(), as_new=True)
            assert new.id != thread.id
            assert await new.service_thread_id == await thread.service_thread_id
            await new.run("Now a poet.")
            assert (await new.reconcile()).counts == (6, 0, 0, 0)

    asyncio.run(again())
