"""Chats as documents: serialized, inspected, and restored in another chat as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from clew.chats.group_chat import GroupChat
from clew.chats.participants import HUMAN
from clew.chats.turns import read_chat
from clew.domain.chats.channel_documents import ChannelThread, lineage_of, thread_state
from clew.domain.chats.document import (
    FORMAT,
    VERSION,
    ChannelItem,
    ChatContent,
    ChatItem,
    ParticipantItem,
    ProviderStateItem,
    participants_missing,
    read_chat_document,
    write_chat,
)
from clew.domain.chats.errors import ChatDocumentError, ChatNotRestoredError, ChatRunOpenError
from clew.domain.chats.events import ChannelRestored, ChatRestored, TurnSelected
from clew.domain.chats.state import ChannelState, ChatState
from clew.domain.context.events import ContextStateRecorded
from clew.domain.credential_detection import check_no_credentials
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.errors import ConflictError, ThreadDeletedError, UnknownThreadError
from clew.domain.events import ThreadEvent
from clew.domain.formats.lineage import Lineage
from clew.domain.history import History
from clew.domain.json_values import JsonObject
from clew.infrastructure.envelope import decode_row, json_begins
from clew.service import thread_documents
from clew.service.async_effects import drive
from clew.service.core import CommitOptions
from clew.service.effects import read

OnTurn = Literal["raise", "wait"]
_POLL_SECONDS = 1.0


class TextWriter(Protocol):
    """A text file that is open for writing."""

    def write(self, text: str, /) -> Any:
        """Write text."""
        ...


class TextReader(Protocol):
    """A text file that is open for reading."""

    def read(self) -> str:
        """Read all text."""
        ...


@dataclass(frozen=True)
class RestoredChat:
    """What ``restore`` found: the participants who have their channels back, who are new, and who are missing.

    The channels of missing participants are kept: one that joins later has its channel back.
    """

    restored: list[str]
    new: list[str]
    missing: list[str]


@dataclass(frozen=True)
class ChatDocument:
    """A chat document that was read and checked. ``participants`` can be inspected before it is restored."""

    content: ChatContent = field(repr=False)

    @property
    def participants(self) -> tuple[ParticipantItem, ...]:
        """The participants: id, name, type and description."""
        return self.content.participants

    async def restore(self, chat: GroupChat, *, actor: str | None = None) -> RestoredChat:
        """Restore history and channels in a chat that has participants and was not used.

        All of the document is checked first. Then one commit stores it: the threads of its channels, with their ids and
        hashes, and the chat's history. Raises ChatNotRestoredError for a chat without participants or with a history of
        its own, ChatDocumentError or ThreadDocumentError for a changed channel, and ThreadDivergedError if the store
        has another thread with the id of a channel's thread. After an error, nothing is stored.
        """
        version, state = await read_chat(chat.thread)
        await self._check(chat, state)
        lineages = await drive(read(lambda: self._lineages(state)))
        core = chat.thread._core  # noqa: SLF001  # of this package
        heard = [0, *range(version + 1, version + len(self.content.history) + 1)]
        events: list[ThreadEvent] = []
        for item in self.content.channels:
            if self._is_kept(item, state):
                lineage = lineages.get(item.participant.id)
                exists = lineage is not None and await drive(thread_documents.exists(core, lineage))
                events.append(_restored(item, state, lineage, heard, exists=exists))
        chosen = self.content.chat
        events.append(
            ChatRestored(chat=chosen.id, head=chosen.head, turns=chosen.turns, last_speaker=chosen.last_speaker)
        )
        events += [] if chosen.selection_state is None else [TurnSelected(state=chosen.selection_state)]
        events += [
            ContextStateRecorded(provider=each.provider, state=each.state, seen=heard[each.seen])
            for each in chosen.states
        ]
        intents: list[Intent] = [Append(self.content.history)] if self.content.history else []
        intents.append(RecordEvents(tuple(events)))
        options = CommitOptions(actor=actor, expected_version=version)
        try:
            await drive(thread_documents.restore_with(core, [*lineages.values()], chat.id, intents, options))
        except ConflictError:
            raise ChatNotRestoredError(
                f"Chat {chat.id!r} was used while it was restored. Start another one.", self._ids()
            ) from None
        state = await chat.refresh()
        left = [each.participant for each in self.content.channels if each.channelstate is not None]
        known = {each.id: each for each in (*left, *self.participants)}
        back = [id_ for id_, each in known.items() if id_ in state.present and self._matches(each, state)]
        new = [id_ for id_ in state.present if id_ not in back]
        return RestoredChat(back, new, participants_missing(self.participants, state.present))

    async def _check(self, chat: GroupChat, state: ChatState) -> None:
        if not state.present:
            raise ChatNotRestoredError(
                f"Chat {chat.id!r} has no participants. The document needs {', '.join(map(repr, self._ids()))}: add "
                "those that you have, await chat.add(agent), and restore it again.",
                self._ids(),
            )
        if state.is_used or (await chat.thread.history(last=1)).messages:
            raise ChatNotRestoredError(
                f"Chat {chat.id!r} already has a history or channels. Start another one with the same participants.",
                self._ids(),
            )

    def _ids(self) -> list[str]:
        return [each.id for each in self.participants]

    def _matches(self, item: ParticipantItem, state: ChatState) -> bool:
        return state.known[item.id].channel == item.channelkey

    def _is_kept(self, item: ChannelItem, state: ChatState) -> bool:
        """Whether a channel has something to keep, and its participant is not there as an agent of another kind."""
        who = item.participant
        return item.channelstate is not None and (who.id not in state.present or self._matches(who, state))

    def _lineages(self, state: ChatState) -> dict[str, Lineage]:
        """The threads of the kept channels by participant. Raises ChatDocumentError or ThreadDocumentError."""
        messages = len(self.content.history)
        if any(each.seen > messages for each in self.content.chat.states):
            raise ChatDocumentError(f"chat.states: a component has seen more than the {messages} messages.")
        lineages: dict[str, Lineage] = {}
        for item in self.content.channels:
            if item.thread is not None:
                if item.thread.synced > messages:
                    raise ChatDocumentError(f"channels: {item.participant.id!r} has heard more than is in the history.")
                lineage = lineage_of(item.thread, decode_row)
                if self._is_kept(item, state):
                    lineages[item.participant.id] = lineage
        return lineages


def _restored(
    item: ChannelItem, state: ChatState, lineage: Lineage | None, heard: Sequence[int], *, exists: bool
) -> ChannelRestored:
    """The event of a restored channel. ``heard`` are the versions of the chat by the number of messages."""
    who, thread = item.participant.identity, item.thread
    if lineage is None or thread is None:
        own = state.channels.get(who.id)
        thread_id = own.thread_id if own is not None else item.channelkey[:16]
        return ChannelRestored(participant=who, thread_id=thread_id, state=item.unknown_state)
    return ChannelRestored(
        participant=who,
        thread_id=lineage.name.id,
        version=thread.version,
        synced=heard[thread.synced],
        brought=thread.brought or exists,
    )


class ChatSerializer:
    """Writes group chats as JSON documents, and reads them. A document has no agents and no secrets."""

    @staticmethod
    async def serialize(
        chat: GroupChat, stream: TextWriter, *, key: bytes | None = None, on_turn: OnTurn = "raise"
    ) -> None:
        """Write a chat to a text stream, signed if there is a ``key``.

        While a run of the chat is open, ``on_turn`` decides: raise ChatRunOpenError, or ``wait`` until it is over.
        Raises CredentialError if the state of a component or an id of a service looks like a credential.
        """
        stream.write(write_chat(await _content(chat, on_turn), key))

    @staticmethod
    async def deserialize(stream: TextReader, *, key: bytes | None = None) -> ChatDocument:
        """Read and check a document; with a ``key`` it must be signed with it. Raises ChatDocumentError."""
        return ChatDocument(read_chat_document(stream.read(), key))


async def _content(chat: GroupChat, on_turn: OnTurn) -> ChatContent:
    version, state = await _quiet(chat, on_turn)
    history = await chat.thread.history(at=version)
    messages = [each for each in history if each.message is not None]
    versions = [each.version for each in messages]
    summary = await chat.thread.runs.control(fresh=True)
    channels = [await _channel(chat, id_, state, versions) for id_ in state.channels]
    return ChatContent(
        format=FORMAT,
        version=VERSION,
        chat=ChatItem(
            id=chat.id,
            head=summary.head.hex(),
            selection=state.selection,
            termination=state.termination,
            turns=state.taken,
            last_speaker=state.last_speaker,
            states=_states(history, versions),
            selection_state=_selection_state(state),
        ),
        history=tuple([each.message for each in messages if each.message is not None]),
        participants=tuple([_participant(state, id_) for id_ in state.present]),
        channels=tuple(channels),
    )


async def _quiet(chat: GroupChat, on_turn: OnTurn) -> tuple[int, ChatState]:
    """The chat between two runs."""
    while True:
        version, state = await read_chat(chat.thread)
        if state.run is None:
            return version, state
        if on_turn == "raise":
            raise ChatRunOpenError(chat.id, "serialize")
        await chat.thread.runs.changed(version, _POLL_SECONDS)


def _selection_state(state: ChatState) -> JsonObject | None:
    check_no_credentials(state.selection_state, "state of the turn selection")
    return state.selection_state


def _states(history: History, versions: Sequence[int]) -> tuple[ProviderStateItem, ...]:
    states = []
    for id_, recorded in history.context.states.items():
        check_no_credentials(recorded.state, f"state of {id_!r}")
        seen = sum(version <= recorded.seen for version in versions)
        states.append(ProviderStateItem(provider=id_, state=recorded.state, seen=seen))
    return tuple(states)


def _participant(state: ChatState, id_: str) -> ParticipantItem:
    known = state.known[id_]
    return ParticipantItem(
        id=id_, name=known.name, type=known.type, description=known.description, channelkey=known.channel
    )


async def _channel(chat: GroupChat, id_: str, state: ChatState, versions: Sequence[int]) -> ChannelItem:
    item, channel = _participant(state, id_), state.channels[id_]
    return ChannelItem(
        participant=item, channelkey=item.channelkey, channelstate=await _channel_state(chat, item, channel, versions)
    )


async def _channel_state(
    chat: GroupChat, item: ParticipantItem, channel: ChannelState, versions: Sequence[int]
) -> ChannelThread | str | None:
    if channel.state is not None or item.type == HUMAN or not channel.version:
        return channel.state
    core = chat.thread._core.with_linked(channel.thread_id)  # noqa: SLF001  # of this package
    try:
        lineage = await drive(thread_documents.lineage_of(core, channel.thread_id, channel.version))
    except (UnknownThreadError, ThreadDeletedError):
        return None  # it is gone, and the participant begins afresh
    return thread_state(
        lineage,
        json_begins,
        version=channel.version,
        synced=sum(version <= channel.synced for version in versions),
        brought=channel.brought,
    )
