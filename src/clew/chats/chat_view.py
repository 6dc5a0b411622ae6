"""A chat between two turns, as turn selections and terminations see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from clew.agents.agent import Agent
from clew.agents.response import AgentResponse
from clew.aio.threads import Thread, unstarted_thread
from clew.domain.chats.events import CHANNEL_OF, ParticipantIdentity
from clew.domain.chats.state import ChatState
from clew.domain.history import History
from clew.domain.json_values import JsonObject
from clew.domain.streams import digest


@dataclass(frozen=True)
class ChatView:
    """A chat at a version, between two turns of a run.

    ``turns``, ``tokens`` and ``cost`` are those of the run, ``total_turns`` those of the chat. ``cost`` is in US
    dollars, None if it is not known of all turns. ``handoff`` is the participant to
    whom the last turn of the run was handed. ``key`` is the same whenever this decision is made again, in any process:
    an idempotency key for what the decision calls. ``selection_state`` is what the last Decision recorded, and
    ``caller`` the actor who began the run.
    """

    participants: tuple[ParticipantIdentity, ...]
    turns: int
    total_turns: int
    tokens: int
    cost: Decimal | None
    last_speaker: str | None
    handoff: str | None
    key: str
    version: int
    thread: Thread = field(repr=False)
    selection_state: JsonObject | None = None
    caller: str | None = None

    async def history(self, *, last: int | None = None) -> History:
        """The messages of the chat at this version, or the last ones."""
        return await self.thread.history(at=self.version, last=last)

    async def ask(self, agent: Agent[Any, Any], prompt: str, purpose: str, **options: Any) -> AgentResponse[Any]:
        """Ask an agent for a decision, on a thread that belongs to the chat: it is ended, deleted and purged with it.

        Asked again for the same purpose, in any process, the run is read or continued, and not repeated. ``options``
        are those of ``agent.run``.
        """
        key = f"{self.key}:{purpose}"
        if "thread" not in options:
            id_, chat = digest(f"{agent.id}:{key}".encode()).hex()[:16], self.thread
            core = chat._core.with_linked(id_)  # noqa: SLF001  # a thread of the same engine
            labels: JsonObject = {CHANNEL_OF: chat.id}
            options["thread"] = unstarted_thread(core, chat._live, agent.client.thread_kinds[0], id_, labels)  # noqa: SLF001
        response: AgentResponse[Any] = await agent.run(prompt, idempotency_key=key, actor=self.caller, **options)
        return response


def view_of(thread: Thread, version: int, state: ChatState) -> ChatView:
    """The view of a chat with an open run."""
    run = state.run
    return ChatView(
        participants=state.participants,
        turns=0 if run is None else run.turns,
        total_turns=state.taken,
        tokens=0 if run is None else run.tokens,
        cost=None if run is None else run.cost,
        last_speaker=state.last_speaker,
        handoff=None if run is None else run.handoff,
        key=f"{thread.id}:{version}",
        version=version,
        thread=thread,
        selection_state=state.selection_state,
        caller=None if run is None else run.caller,
    )
