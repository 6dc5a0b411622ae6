"""Turn selections: who speaks next in a chat."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, TypeAlias, runtime_checkable

from clew.agents.agent import Agent
from clew.agents.tools import Tool, tool
from clew.chats.chat_view import ChatView
from clew.domain.chats.channels import spoken
from clew.domain.chats.events import TurnSelected
from clew.domain.events import ThreadEvent
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message, Text
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import recorded
from clew.domain.runs.errors import AgentConfigurationError

Speakers: TypeAlias = str | Sequence[str] | None
"""The id of the next speaker, several who speak at the same time, or None: then the run ends."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_SHOWN = 20
"""How many messages a model sees that selects the next speaker."""


@dataclass(frozen=True)
class Decision:
    """What a turn selection decides, if that is more than who speaks next.

    ``message`` is added to the chat before the turns, or as the last one of the run. ``reason`` is why the run ends, if
    nobody speaks. ``state`` is recorded in the same commit: the next decision, in any process, reads it as
    ``chat.selection_state``, and forks and rewinds take it along. If a model decided, ``by`` is its agent,
    ``thread_id`` the thread of its run, ``usage`` its tokens, and ``cost`` what they cost in US dollars, None if that
    is not known. Both count for the run.
    """

    speakers: Speakers = None
    message: Message | None = None
    reason: str = "nobody"
    state: JsonObject | None = None
    by: str | None = None
    thread_id: str | None = None
    usage: TokenUsage | None = None
    cost: Decimal | None = None


def decision_of(selection: Speakers | Decision) -> Decision:
    """The decision, also of a selection that only says who speaks."""
    return selection if isinstance(selection, Decision) else Decision(selection)


def speakers_of(decision: Decision) -> list[str]:
    """The ids of those who speak next."""
    speakers = decision.speakers
    return [speakers] if isinstance(speakers, str) else list(speakers or ())


def selected(decision: Decision) -> list[ThreadEvent]:
    """The event of a decision that has more than speakers, if it has."""
    if decision.state is None and decision.by is None:
        return []
    return [
        TurnSelected(
            state=decision.state or {},
            by=decision.by,
            thread_id=decision.thread_id,
            usage=decision.usage,
            cost=None if decision.cost is None else recorded(decision.cost),
        )
    ]


@runtime_checkable
class TurnSelection(Protocol):
    """Selects who speaks next. ``data`` describes it in the log; its ``type`` names it."""

    @property
    def data(self) -> JsonObject:
        """The selection as JSON."""
        ...

    async def select(self, chat: ChatView) -> Speakers | Decision:
        """The next speaker, several, or None to end the run; or a Decision with more than that."""
        ...


class RoundRobin:
    """The participants speak in the order in which they joined."""

    data: JsonObject = {"type": "round-robin"}  # noqa: RUF012  # never changed

    async def select(self, chat: ChatView) -> Speakers:
        """The participant after the last speaker."""
        ids = [each.id for each in chat.participants]
        if not ids:
            return None
        return ids[(ids.index(chat.last_speaker) + 1) % len(ids)] if chat.last_speaker in ids else ids[0]


class Together:
    """All participants speak at the same time, once in each run: they do not hear each other's answers."""

    data: JsonObject = {"type": "together"}  # noqa: RUF012  # never changed

    async def select(self, chat: ChatView) -> Speakers:
        """All of them, in the first turn."""
        return None if chat.turns else [each.id for each in chat.participants]


class ManualSelection:
    """A person selects: ``chat.run(…, next_speaker="Editor")``. After that turn the run ends."""

    data: JsonObject = {"type": "manual"}  # noqa: RUF012  # never changed

    async def select(self, chat: ChatView) -> Speakers:
        """Nobody."""
        del chat
        return None


class FunctionSelection:
    """A function of the application selects. It is code, so it must be given again when the chat is opened."""

    data: JsonObject = {"type": "function"}  # noqa: RUF012  # never changed

    def __init__(self, function: Callable[[ChatView], Speakers | Decision | Awaitable[Speakers | Decision]]) -> None:
        self._function = function

    async def select(self, chat: ChatView) -> Speakers | Decision:
        """What the function returns."""
        selected = self._function(chat)
        return await selected if inspect.isawaitable(selected) else selected


class ModelSelection:
    """An agent selects, by the newest messages and the descriptions of the participants. Its runs are on the log.

    The agent must be given again when the chat is opened.
    """

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent = agent

    @property
    def data(self) -> JsonObject:
        """The selection as JSON, with the id of the agent."""
        return {"type": "model", "agent": self._agent.id}

    async def select(self, chat: ChatView) -> Decision:
        """The participant that the agent names. Raises NextSpeakerError in the chat if it names nobody."""
        who = "\n".join(f"- {each.author}: {each.description or each.type}" for each in chat.participants)
        lines = "\n".join(
            f"{each.message.author or each.role}: {spoken_text(each.message)}"
            for each in await chat.history(last=_SHOWN)
            if each.message is not None
        )
        prompt = (
            f"Participants:\n{who}\n\nConversation:\n{lines}\n\nWho speaks next? Answer with one name and nothing else."
        )
        response = await chat.ask(self._agent, prompt, "next")
        named = response.text.strip().strip("\"'.*").casefold()
        speaker = next(
            (each.id for each in chat.participants if named in {each.id.casefold(), each.author.casefold()}),
            response.text.strip()[:100] or "nobody",
        )
        return Decision(
            speaker,
            state=chat.selection_state,
            by=self._agent.id,
            thread_id=response.thread.id,
            usage=response.usage,
            cost=response.cost,
        )


def spoken_text(message: Message) -> str:
    """The text of a message that others hear."""
    return " ".join(each.text for each in spoken(message) if isinstance(each, Text))


class HandoffSelection:
    """The speaker hands the turn to another participant, with a tool. Without a handoff, the run ends after the turn.

    The first run begins with ``first``, later ones with the last speaker.
    """

    def __init__(self, first: str) -> None:
        self._first = first

    @property
    def data(self) -> JsonObject:
        """The selection as JSON."""
        return {"type": "handoff", "first": self._first}

    async def select(self, chat: ChatView) -> Speakers:
        """The participant to whom the turn was handed."""
        if chat.turns:
            return chat.handoff
        present = {each.id for each in chat.participants}
        return chat.last_speaker if chat.last_speaker in present else self._first


def handoff_tools(chat: ChatView, speaker: str) -> dict[str, tuple[str, Tool]]:
    """For each other participant, by the name of its tool: its id and the tool that hands the turn to it."""
    tools: dict[str, tuple[str, Tool]] = {}
    for each in chat.participants:
        if each.id != speaker:
            name = f"hand_off_to_{_NOT_IN_NAMES.sub('_', each.author).strip('_')}"
            about = f"Hand the conversation to {each.author}. {each.description or ''}".strip()
            tools[name] = each.id, tool(_hand_off, name=name, description=about, idempotent=True)
    return tools


def _hand_off(reason: str = "") -> str:
    del reason
    return "The turn is handed over when you have answered."


def selection_of(data: JsonObject) -> TurnSelection:
    """The selection that ``data`` describes. Raises AgentConfigurationError if it is code or not known."""
    simple: dict[str, Callable[[], TurnSelection]] = {
        "round-robin": RoundRobin,
        "together": Together,
        "manual": ManualSelection,
    }
    kind, first = data.get("type"), data.get("first")
    if isinstance(kind, str) and kind in simple:
        return simple[kind]()
    if kind == "handoff" and isinstance(first, str):
        return HandoffSelection(first)
    raise AgentConfigurationError(
        f"The turn selection of the chat has the type {kind!r}, which cannot be made of data. Give selection=…."
    )
