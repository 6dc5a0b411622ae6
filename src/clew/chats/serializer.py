"""Chats as documents: serialized, inspected, and restored in another chat as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from clew.chats.group_chat import GroupChat
from clew.chats.participants import HUMAN
from clew.chats.turns import read_chat
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
from clew.domain.chats.events import ChannelRestored, ChatRestored
from clew.domain.chats.state import ChannelState, ChatState
from clew.domain.context.events import ContextStateRecorded
from clew.domain.credential_detection import check_no_credentials
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.errors import ConflictError, UnknownThreadError
from clew.domain.events import ThreadEvent
from clew.domain.formats.thread_document import read_document
from clew.domain.history import History
from clew.domain.json_values import Json, JsonObject
from clew.infrastructure.envelope import decode_row
from clew.service.async_effects import drive
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

        All of the document is checked first. Threads of channels are restored with their ids and hashes; the chat
        itself changes in one commit. Raises ChatNotRestoredError for a chat without participants or with a history of
        its own, ChatDocumentError or ThreadDocumentError for a
        changed channel, and the errors of ``engine.restore_thread``; then nothing in the chat has changed.
        """
        version, state = await read_chat(chat.thread)
        await self._check(chat, state)
        threads = await drive(read(self._threads))
        restored: dict[str, Any] = {}
        for who, document in threads.items():
            thread = await chat._engine.restore_thread(document, on_existing="fork")  # noqa: SLF001  # of this package
            restored[who] = thread.id, await thread.version
        heard = [version + count + 1 for count in range(len(self.content.history))]
        events: list[ThreadEvent] = []
        for item in self.content.channels:
            event = self._restored(item, restored, [0, *heard], state)
            events += [] if event is None else [event]
        chosen = self.content.chat
        events.append(
            ChatRestored(chat=chosen.id, head=chosen.head, turns=chosen.turns, last_speaker=chosen.last_speaker)
        )
        events += [
            ContextStateRecorded(provider=each.provider, state=each.state, seen=[0, *heard][each.seen])
            for each in self.content.chat.states
        ]
        intents: list[Intent] = [Append(self.content.history)] if self.content.history else []
        intents.append(RecordEvents(tuple(events)))
        try:
            await chat.thread.runs.record(intents, actor=actor, expected_version=version)
        except ConflictError:
            raise ChatNotRestoredError(
                f"Chat {chat.id!r} was used while it was restored. Start another one.", self._ids()
            ) from None
        state = await chat.refresh()
        back = [each.id for each in self.participants if each.id in state.present and self._matches(each, state)]
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

    def _threads(self) -> dict[str, JsonObject]:
        """The documents of the channels' threads, all checked. Raises ChatDocumentError or ThreadDocumentError."""
        threads: dict[str, JsonObject] = {}
        for item in self.content.channels:
            if item.thread is not None:
                lineage = read_document(item.thread, decode_row)
                synced: Any = (item.channelstate or {})["synced"]
                if not 0 <= synced <= len(self.content.history):
                    raise ChatDocumentError(f"channels: {item.participant.id!r} has heard {synced} messages.")
                threads[item.participant.id] = item.thread
                if lineage.head.version != (item.channelstate or {})["version"]:
                    raise ChatDocumentError(f"channels: the thread of {item.participant.id!r} has another version.")
        return threads

    def _restored(
        self, item: ChannelItem, threads: dict[str, tuple[str, int]], heard: Sequence[int], state: ChatState
    ) -> ChannelRestored | None:
        """The event of a restored channel; None for one without a state, or of a present agent of another kind."""
        who = item.participant
        if item.channelstate is None or (who.id in state.present and not self._matches(who, state)):
            return None
        if who.id not in threads:
            own = state.channels.get(who.id)
            thread_id = own.thread_id if own is not None else f"{item.channelkey[:16]}"
            return ChannelRestored(participant=who.identity, thread_id=thread_id, state=item.channelstate)
        kept: Any = item.channelstate
        return ChannelRestored(
            participant=who.identity,
            thread_id=threads[who.id][0],
            version=threads[who.id][1],
            synced=heard[kept["synced"]],
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
) -> JsonObject | None:
    if channel.state is not None or item.type == HUMAN:
        return channel.state
    try:
        thread: Any = await chat._engine.thread(channel.thread_id)  # noqa: SLF001  # of this package
    except UnknownThreadError:
        return None  # it had no turn
    if await thread.version != channel.version:  # it has grown since, in this chat or for another one
        thread = await thread.fork(at=channel.version)
    document: JsonObject = await thread.serialize()
    synced: Json = sum(version <= channel.synced for version in versions)
    return {"document": document, "version": await thread.version, "synced": synced}
