"""Chat documents: a group chat as one JSON object, without agents and secrets.

``format`` and ``version`` name the form; ``chat`` has the id and the head of the chat, its turn selection, its
terminations and the states of its own components; ``history`` its messages, ``participants`` their identities, and
``channels`` the state of each channel. ``digest`` covers all of this: the SHA-256, in hex, of its canonical JSON.
``signature`` is, if a key was given, the HMAC-SHA-256 of the digest. docs/chat-document.schema.json is the JSON Schema.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationError

from clew.domain.chats.errors import ChatDocumentError
from clew.domain.chats.events import ParticipantIdentity
from clew.domain.json_values import JsonObject, canonical
from clew.domain.messages import Message, Value, explain
from clew.domain.streams import digest

FORMAT, VERSION = "clew-chat", 1
_UNSIGNED = ("digest", "signature")


class ProviderStateItem(Value):
    """The state of a component of the chat. It has seen the first ``seen`` messages of the history."""

    provider: str
    state: Any = None
    seen: int = Field(default=0, ge=0)


class ChatItem(Value):
    """The chat itself: ``last_speaker`` and ``turns`` are the state of its turn selection."""

    id: str
    head: str
    selection: JsonObject
    termination: tuple[JsonObject, ...]
    turns: int = Field(ge=0)
    last_speaker: str | None = None
    states: tuple[ProviderStateItem, ...] = ()


class ParticipantItem(Value):
    """A participant: its id, name, type and description, and the key of its channel. There is no agent in it."""

    id: str
    name: str | None = None
    type: str
    description: str | None = None
    channelkey: str

    @property
    def identity(self) -> ParticipantIdentity:
        """The participant, as events record it."""
        return ParticipantIdentity(
            id=self.id, name=self.name, type=self.type, description=self.description, channel=self.channelkey
        )


class ChannelItem(Value):
    """The channel of a participant, None in ``channelstate`` before its first turn.

    The ``channelstate`` of Clew's own channels has the ``document`` of their thread, the ``version`` of the thread, and
    in ``synced`` how many messages of the history the participant has heard. Any other is kept as it is.
    """

    participant: ParticipantItem
    channelkey: str
    channelstate: JsonObject | None = None

    @property
    def thread(self) -> JsonObject | None:
        """The document of the channel's thread, None for the state of a channel that Clew does not know."""
        state = self.channelstate or {}
        document, version, synced = state.get("document"), state.get("version"), state.get("synced")
        known = isinstance(document, dict) and type(version) is int and type(synced) is int
        return document if known and isinstance(document, dict) else None


class ChatContent(Value):
    """The parts of a chat document."""

    format: str
    version: int
    chat: ChatItem
    history: tuple[Message, ...]
    participants: tuple[ParticipantItem, ...]
    channels: tuple[ChannelItem, ...]


def write_chat(content: ChatContent, key: bytes | None) -> str:
    """The document as JSON, signed if there is a key."""
    body: JsonObject = content.model_dump(mode="json")
    body["digest"] = _digest(body)
    if key is not None:
        body["signature"] = _signature(body, key)
    return json.dumps(body, ensure_ascii=False, indent=1, allow_nan=False)


def read_chat_document(text: str | bytes, key: bytes | None) -> ChatContent:
    """The parts of a document. Raises ChatDocumentError if it is torn, newer, changed or not signed with the key."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ChatDocumentError(
            "This is not JSON: the document is incomplete, or not a chat. Serialize it again."
        ) from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ChatDocumentError(f"format: this is not a chat document, whose format is {FORMAT!r}.")
    if body.get("version") != VERSION:
        raise ChatDocumentError(
            f"version: the document has version {body.get('version')!r}, but this Clew reads {VERSION}: use another."
        )
    if body.get("digest") != _digest(body):
        raise ChatDocumentError("digest: the document was changed after it was written. Serialize the chat again.")
    signature = body.get("signature")
    if key is not None and not (isinstance(signature, str) and hmac.compare_digest(signature, _signature(body, key))):
        raise ChatDocumentError("signature: the document is not signed with this key, or has no signature.")
    try:
        return ChatContent.model_validate({name: part for name, part in body.items() if name not in _UNSIGNED})
    except ValidationError as error:
        raise ChatDocumentError(f"{explain('chat document', error)} Serialize the chat again.") from None


def participants_missing(participants: Sequence[ParticipantItem], present: Sequence[str]) -> list[str]:
    """The ids of the participants in a document who are not present."""
    return [each.id for each in participants if each.id not in present]


def _digest(body: JsonObject) -> str:
    return digest(canonical({name: part for name, part in body.items() if name not in _UNSIGNED}).encode()).hex()


def _signature(body: JsonObject, key: bytes) -> str:
    return hmac.new(key, str(body["digest"]).encode(), "sha256").hexdigest()
