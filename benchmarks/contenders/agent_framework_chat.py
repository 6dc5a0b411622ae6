"""agent-framework's group chat. It runs in a separate environment.

Its history is in memory. With the argument ``checkpoints``, the package writes its checkpoints to files.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    FileCheckpointStorage,
    Message,
    SlidingWindowStrategy,
)
from agent_framework.orchestrations import GroupChatBuilder, GroupChatState

from benchmarks.contenders.growing_chat import TURNS, Run, main
from benchmarks.contenders.growing_thread import WINDOW, Texts

TEXTS = Texts()


class Instant(BaseChatClient):
    """A model that answers at once, and counts its answers."""

    answers = 0

    async def _inner_get_response(self, **_: Any) -> ChatResponse:
        self.answers += 1
        message = Message(role="assistant", contents=[TEXTS.next()])
        return ChatResponse(messages=[message], response_id=f"response-{self.answers}")


@asynccontextmanager
async def chatting(folder: Path, agents: int) -> AsyncIterator[Run]:
    """A chat whose agents speak in turn.

    A run has a limit of 100 steps, which are 50 turns. ``max_rounds`` counts the turns of all runs, so a condition ends
    each of them.
    """
    client, ends = Instant(), TURNS
    window = SlidingWindowStrategy(keep_last_groups=WINDOW)
    workflow = GroupChatBuilder(
        participants=[Agent(client, name=f"agent-{number}", compaction_strategy=window) for number in range(agents)],
        selection_func=_in_turn,
        termination_condition=lambda _: client.answers >= ends,
        checkpoint_storage=FileCheckpointStorage(folder) if "checkpoints" in sys.argv else None,
    ).build()

    async def run() -> int:
        nonlocal ends
        before = client.answers
        ends = before + TURNS
        await workflow.run(TEXTS.next())
        return client.answers - before

    yield run


def _in_turn(state: GroupChatState) -> str:
    return str(list(state.participants)[state.current_round % len(state.participants)])


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # one for each agent: the client calls no functions
    main("agent-framework-orchestrations", chatting)
