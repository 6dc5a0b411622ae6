"""Chat documents: a group chat as one JSON object, without agents and secrets.

``format`` and ``version`` name the form; ``chat`` has the id and the head of the chat, its turn selection, its
terminations and the states of its own components; ``history`` its messages, ``participants`` their identities, and
``channels`` the state of each channel. ``digest`` covers all of this: the SHA-256, in hex, of its JSON in the form of
RFC 8785. ``signature`` is, if a key was given, the HMAC-SHA-256 of the digest. docs/chat-document.schema.json is the
JSON Schema.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import Field, ValidationError, field_validator

from clew.domain.chats.channel_documents import KIND, ChannelThread
from clew.domain.chats.errors import ChatDocumentError
from clew.domain.chats.events import ParticipantIdentity
from clew.domain.chats.portable_json import (
    NUMBER,
    canonical_form,
    folded,
    members,
    original,
    portable,
    with_names_of,
)
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Message, Value, explain, is_none
from clew.domain.streams import digest

FORMAT, VERSION = "clew-chat", 1
_UNSIGNED = ("digest", "signature")
_BYTE_ORDER_MARK = "\ufeff"


class ProviderStateItem(Value):
    """The state of a component of the chat. It has seen the first ``seen`` messages of the history."""

    provider: str
    state: Any = None
    seen: int = Field(default=0, ge=0)


class ChatItem(Value):
    """The chat itself: ``last_speaker``, ``turns`` and ``selection_state`` are the state of its turn selection."""

    id: str
    head: str
    selection: JsonObject
    termination: tuple[JsonObject, ...]
    turns: int = Field(ge=0)
    last_speaker: str | None = None
    states: tuple[ProviderStateItem, ...] = ()
    selection_state: JsonObject | None = Field(default=None, exclude_if=is_none)


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
    """The channel of a participant. ``channelstate`` is None before its first turn.

    The state of a channel that Clew does not know is any JSON. It is kept as its text.
    """

    participant: ParticipantItem
    channelkey: str
    channelstate: ChannelThread | Any = None

    @field_validator("channelstate")
    @classmethod
    def _known(cls, value: Any) -> Any:
        known = isinstance(value, dict) and value.get("kind") == KIND
        return ChannelThread.model_validate(value) if known else value

    @property
    def thread(self) -> ChannelThread | None:
        """The thread of the channel, None for the state of a channel that Clew does not know."""
        return self.channelstate if isinstance(self.channelstate, ChannelThread) else None

    @property
    def unknown_state(self) -> str | None:
        """The text of the state of a channel that Clew does not know."""
        return self.channelstate if isinstance(self.channelstate, str) else None


class ChatContent(Value):
    """The parts of a chat document."""

    format: str
    version: int
    chat: ChatItem
    history: tuple[Message, ...]
    participants: tuple[ParticipantItem, ...]
    channels: tuple[ChannelItem, ...]


@cache
def json_schema() -> JsonObject:
    """The JSON Schema of documents, as docs/chat-document.schema.json has it."""
    schema: Any = _standard(ChatContent.model_json_schema(mode="serialization"))
    hash_ = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    schema["properties"] |= {"digest": hash_, "signature": hash_}
    schema["required"] = [*schema["required"], "digest"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A group chat of Clew"}


def _standard(schema: Any) -> Any:
    """The schema without OpenAPI's ``discriminator``, which strict validators refuse."""
    if isinstance(schema, list):
        return [_standard(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _standard(each) for name, each in schema.items() if name != "discriminator"}


def write_chat(content: ChatContent, key: bytes | None) -> str:
    """The document as JSON, signed if there is a key."""
    states = [each.unknown_state for each in content.channels]
    body = _body(content)
    sums: JsonObject = {"digest": _digest(body)}
    if key is not None:
        sums["signature"] = _signature(sums, key)
    channels: Any = body.pop("channels")
    written = [_channel(channel, state) for channel, state in zip(channels, states, strict=True)]
    return f'{_text({**body, **sums})[:-2]},\n "channels": [{",".join(written)}]\n}}'


def read_chat_document(text: str, key: bytes | None) -> ChatContent:
    """The parts of a document. Raises ChatDocumentError if it is torn, newer, changed or not signed with the key."""
    text = text.removeprefix(_BYTE_ORDER_MARK)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ChatDocumentError(
            "This is not JSON: the document is incomplete, or not a chat. Serialize it again."
        ) from None
    body = with_names_of(json_schema(), body)
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ChatDocumentError(f"format: this is not a chat document, whose format is {FORMAT!r}.")
    if body.get("version") != VERSION:
        raise ChatDocumentError(
            f"version: the document has version {body.get('version')!r}, but this Clew reads version {VERSION}. "
            "Restore it with the Clew that wrote it, or a newer one."
        )
    content = _content(body, text)
    try:
        sums: JsonObject = {"digest": _digest(_body(content))}
    except UnicodeEncodeError:
        raise ChatDocumentError(
            "A text has half of a surrogate pair, which is not Unicode. Serialize the chat again."
        ) from None
    if body.get("digest") != sums["digest"]:
        raise ChatDocumentError("digest: the document was changed after it was written. Serialize the chat again.")
    signature = body.get("signature")
    if key is not None and not (isinstance(signature, str) and hmac.compare_digest(signature, _signature(sums, key))):
        raise ChatDocumentError("signature: the document is not signed with this key, or has no signature.")
    return content


def participants_missing(participants: Sequence[ParticipantItem], present: Sequence[str]) -> list[str]:
    """The ids of the participants in a document who are not present."""
    return [each.id for each in participants if each.id not in present]


def _content(body: JsonObject, text: str) -> ChatContent:
    """The parts of a parsed document. Raises ChatDocumentError."""
    channels: Any = body.get("channels")
    texts = _unknown_states(text)
    for number, channel in enumerate(channels if isinstance(channels, list) else ()):
        state = channel.get("channelstate") if isinstance(channel, dict) else None
        if state is not None and not (isinstance(state, dict) and state.get("kind") == KIND):
            channel["channelstate"] = texts[number]
    try:
        parts = original({name: part for name, part in body.items() if name not in _UNSIGNED})
        return ChatContent.model_validate(parts)
    except ValidationError as error:
        raise ChatDocumentError(f"{explain('chat document', error)} Serialize the chat again.") from None
    except (ValueError, RecursionError):
        raise ChatDocumentError(f"A value of {NUMBER!r} is not a number. Serialize the chat again.") from None


def _unknown_states(text: str) -> dict[int, str]:
    """The text of each channel's state, by the number of the channel."""
    states: dict[int, str] = {}
    for part in members(text):
        if folded(part.name) == "channels":
            for number, channel in enumerate(members(text, part.start)):
                for each in members(text, channel.start):
                    if folded(each.name) == "channelstate":
                        states[number] = text[each.start : each.end]
    return states


def _body(content: ChatContent) -> JsonObject:
    """The parts as JSON that every language keeps; the states of unknown channels as they are."""
    body: JsonObject = portable(content.model_dump(mode="json"))
    channels: Any = body["channels"]
    for each, channel in zip(content.channels, channels, strict=True):
        if each.unknown_state is not None:
            channel["channelstate"] = json.loads(each.unknown_state)
    return body


def _channel(channel: JsonObject, unknown_state: str | None) -> str:
    """A channel as JSON, with the text of an unknown state as it is."""
    state = _text(channel.pop("channelstate")) if unknown_state is None else unknown_state
    return f'{_text(channel)[:-2]},\n "channelstate": {state}\n}}'


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)


def _digest(body: JsonObject) -> str:
    return digest(canonical_form(body).encode()).hex()


def _signature(sums: JsonObject, key: bytes) -> str:
    return hmac.new(key, str(sums["digest"]).encode(), "sha256").hexdigest()
