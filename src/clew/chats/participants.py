"""Participants of chats: agents, and people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from clew.agents.agent import Agent
from clew.chats.termination import Termination
from clew.chats.turn_selection import TurnSelection
from clew.domain.chats.channels import AgentChannel, Channel, channel_key
from clew.domain.chats.events import ParticipantIdentity
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import AgentConfigurationError, UnsupportedThreadError
from clew.domain.runs.ports import ThreadPort
from clew.domain.streams import check_id

HUMAN, CHAT = "human", "chat"
"""The types of participants who are people, and of those that are chats."""


@dataclass(frozen=True)
class Participant:
    """An agent in a chat, on a ``thread`` that it brings, or with a ``channel`` of its own.

    By default the chat begins a thread for it, on which it hears what is said in the chat. Its ``thread_kind`` is the
    first one that the agent's client can run on: with ``remote`` the service holds that thread.
    """

    agent: Agent[Any, Any]
    thread: ThreadPort | None = None
    channel: Channel | None = None
    thread_kind: ThreadKind | None = None


@dataclass(frozen=True)
class Human:
    """A person in a chat. When it is the person's turn, the run waits: ``await chat.respond(id, "…")``."""

    id: str
    name: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class SubChat:
    """A chat as a participant of another one: ``chat.as_participant("Research")``.

    In its turn, what it has not heard is the input of a run of it, and the last message of this run is its answer.
    """

    name: str
    description: str | None
    thread: ThreadPort = field(repr=False)
    members: Mapping[str, Any] = field(repr=False)
    selection: TurnSelection = field(repr=False)
    termination: tuple[Termination, ...] = field(repr=False)


Joining: TypeAlias = Agent[Any, Any] | Participant | Human | SubChat
"""Who can join a chat."""


@dataclass(frozen=True)
class Member:
    """A participant of this process: its identity on the log, how it joined, and its channel."""

    identity: ParticipantIdentity
    joining: Participant | Human | SubChat
    channel: Channel

    @property
    def id(self) -> str:
        """The id of the participant."""
        return self.identity.id

    @property
    def agent(self) -> Agent[Any, Any] | None:
        """The agent, None for a person or a chat."""
        return self.joining.agent if isinstance(self.joining, Participant) else None

    @property
    def chat(self) -> SubChat | None:
        """The chat, None for an agent or a person."""
        return self.joining if isinstance(self.joining, SubChat) else None

    @property
    def brought(self) -> ThreadPort | None:
        """The thread that it brings."""
        return None if isinstance(self.joining, Human) else self.joining.thread


def members_of(joining: Sequence[Joining]) -> dict[str, Member]:
    """The members by id. The same one twice is one. Raises AgentConfigurationError for two with one id or author."""
    members: dict[str, Member] = {}
    for each in joining:
        member = member_of(each)
        known = members.setdefault(member.id, member)
        if known.agent is not member.agent or known.identity != member.identity or known.chat != member.chat:
            raise AgentConfigurationError(f"Two participants have the id {member.id!r}. Give one of them another id.")
    authors = [each.identity.author for each in members.values()]
    repeated = next((each for each in authors if authors.count(each) > 1), None)
    if repeated is not None:
        raise AgentConfigurationError(f"Two participants are called {repeated!r}. Give one of them another name.")
    return members


def member_of(joining: Joining) -> Member:
    """The member. Raises AgentConfigurationError for anything that cannot join."""
    if isinstance(joining, Human):
        check_id(joining.id, "id of a participant")
        identity = ParticipantIdentity(
            id=joining.id, name=joining.name, type=HUMAN, description=joining.description, channel=_HUMAN_KEY
        )
        return Member(identity, joining, _HUMAN_CHANNEL)
    if isinstance(joining, SubChat):
        check_id(joining.name, "name of a participant")
        identity = ParticipantIdentity(
            id=joining.name, type=CHAT, description=joining.description, channel=channel_key(_CHAT_CHANNEL)
        )
        return Member(identity, joining, _CHAT_CHANNEL)
    participant = Participant(joining) if isinstance(joining, Agent) else joining
    if not isinstance(participant, Participant) or not isinstance(participant.agent, Agent):
        raise AgentConfigurationError(
            f"{type(joining).__name__} cannot join a chat. Give an Agent, a Participant(agent, …), a "
            "Human(id) or chat.as_participant(name)."
        )
    agent = participant.agent
    channel = participant.channel or channel_of(participant)
    identity = ParticipantIdentity(
        id=agent.id,
        name=agent.name,
        type=type(agent).__name__,
        description=agent.description,
        channel=channel_key(channel),
    )
    return Member(identity, participant, channel)


def channel_of(participant: Participant) -> Channel:
    """The channel of an agent, by the kind of its thread. Raises UnsupportedThreadError if its client has no such."""
    agent, thread = participant.agent, participant.thread
    kind = thread.kind if thread is not None else participant.thread_kind or agent.client.thread_kinds[0]
    if kind not in agent.client.thread_kinds:
        raise UnsupportedThreadError(type(agent.client).__name__, kind, agent.client.thread_kinds)
    if kind == "local":
        return AgentChannel()
    return AgentChannel(f"remote:{agent.client.kind}", str(getattr(agent.client, "provider", "") or ""), "remote")


_HUMAN_CHANNEL, _CHAT_CHANNEL = AgentChannel(HUMAN), AgentChannel(CHAT)
_HUMAN_KEY = channel_key(_HUMAN_CHANNEL)
