"""What an ended run leaves in memory: nothing that only the garbage collector could free."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.domain.runs.errors import ModelError
from clew.testing import call, fault

pytestmark = pytest.mark.anyio


@tool
async def lookup(order: int) -> str:
    """Look up an order."""
    return f"order {order}"


@contextlib.contextmanager
def left_to_the_collector() -> Iterator[list[str]]:
    """Give the names of the classes of runs whose objects wait for the garbage collector at the end."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += sorted({type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("clew.agents")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


SCRIPTS: dict[str, list[Any]] = {
    "answer": ["Hello there."],
    "tool": [call("lookup", order=7), "On its way."],
    "retry": [fault("refused"), "Hello there."],
    "failure": [fault("context-window")],
    "handoff": [call("transfer_to_expert", reason="hard"), "Bark."],
}


@pytest.mark.parametrize(
    ("name", "streams"),
    # A stream keeps the error with which it failed, and the traceback of the error keeps the stream.
    [(name, streams) for name in SCRIPTS for streams in (False, True) if (name, streams) != ("failure", True)],
)
async def test_an_ended_run_needs_no_garbage_collector(name: str, *, streams: bool) -> None:
    async with Engine.open("memory:") as engine:
        script = ScriptedChatClient([*SCRIPTS[name], *SCRIPTS[name]])
        expert = Agent(script, engine=engine, name="expert")
        desk = Agent(script, engine=engine, name="desk", tools=[lookup], handoffs=[expert])
        thread = await desk.get_local_thread()

        async def run() -> None:
            with contextlib.suppress(ModelError):
                if streams:
                    await desk.run("Hi", thread=thread, stream=True).get_final_response()
                else:
                    await desk.run("Hi", thread=thread)

        await run()  # what is made once and kept
        with left_to_the_collector() as left:
            await run()
        assert left == []
