"""Clients that nobody closed: their connections are closed when the client is gone."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref

import pytest
from tests.servers.strict_bedrock import StrictBedrock

from clew import Agent, BedrockClient, Engine

pytestmark = pytest.mark.anyio


async def test_the_garbage_collector_leaves_no_connection_open() -> None:
    async with Engine.open("memory:") as engine:
        with StrictBedrock(rounds=0) as server:
            client = BedrockClient("m", api_key="k", region="us-east-1", base_url=server.url)
            agent = Agent(client, engine=engine)
            assert (await agent.run("Hello")).text
            cycle: list[object] = [agent]
            cycle.append(cycle)
            dropped = weakref.ref(client)
            (http,) = [weakref.ref(opened) for _, opened in client._connection._clients.values()]
            del agent, client, cycle
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ResourceWarning)
                gc.collect()
                assert dropped() is None
                async with asyncio.timeout(10):
                    while http() is not None:
                        await asyncio.sleep(0)
                        gc.collect()
            assert [str(each.message) for each in caught if "transport" in str(each.message)] == []
