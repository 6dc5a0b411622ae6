"""Provider state follows forks, rewinds and time travel, over random histories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agents.run_checks import check_store, events_of

from clew import Agent, Context, ContextProvider, Engine, ScriptedChatClient
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage


class Learning(ContextProvider):
    """Collects the texts of all inputs and provides them as instructions."""

    id = "learning"

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        return Context(instructions=f"Known: {' '.join(ctx.state or [])}")

    async def invoked(self, ctx: ProviderContext, request_messages: Sequence[HistoryMessage], *args: Any) -> None:
        del args
        ctx.state = [*(ctx.state or []), *(message.text for message in request_messages)]


Step = tuple[str, int, int]

steps = st.lists(
    st.tuples(st.sampled_from(["say", "say", "say", "fork", "rewind"]), st.integers(0, 5), st.integers(0, 30)),
    min_size=2,
    max_size=14,
)


@settings(deadline=None, max_examples=40)
@given(steps)
def test_a_thread_knows_only_the_words_on_its_path(operations: list[Step]) -> None:
    asyncio.run(_check(operations))


async def _check(operations: list[Step]) -> None:
    """Compare the engine with a naive model: the words known after each version of each thread."""
    async with Engine.open("memory:") as engine:
        client = ScriptedChatClient(lambda _: "Yes.")
        agent = Agent(client, engine=engine, context_providers=Learning())
        threads: list[Any] = [await engine.start_thread()]
        known: list[dict[int, list[str]]] = [{0: [], 1: []}]
        for number, (operation, choice, target_choice) in enumerate(operations):
            place = choice % len(threads)
            thread, past = threads[place], known[place]
            now = past[max(past)]
            versions = [version for version, _ in sorted(past.items()) if version]
            target = versions[target_choice % len(versions)]
            if operation == "say":
                await agent.run(f"w{number}", thread=thread)
                body: Any = client.requests[-1]
                assert body["messages"][0]["content"] == f"Known: {' '.join(now)}"
                past[await thread.version] = [*now, f"w{number}"]
            elif operation == "fork":
                branch = await thread.fork(at=target)
                threads.append(branch)
                known.append({version: words for version, words in past.items() if version <= target})
                known[-1][await branch.version] = past[target]
            else:
                await thread.rewind(target)
                past[await thread.version] = past[target]
        for thread, past in zip(threads, known, strict=True):
            for version, words in past.items():
                if version:
                    state = await thread.state(at=version)
                    assert state.states.get("learning", []) == words
            await check_store(engine, thread, await events_of(thread))
