"""The media of a question that its wire format does not send as what they are."""

from __future__ import annotations

from typing import NamedTuple

from clew.domain.json_values import Json
from clew.domain.messages import Content, FunctionResult, Media, Raw
from clew.domain.models.chat_requests import media_type
from clew.domain.models.client import Question, WireFormat

_PARTS = frozenset(
    {
        "audio",
        "document",
        "file",
        "image",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "video",
        "video_url",
    }
)
"""The types of the services' own parts for media."""

_UNTYPED = frozenset({"audio", "document", "fileData", "image", "inlineData", "video"})
"""The fields of such parts that have no type: they have one of these, and nothing else that says what they are."""


class UnsentMedia(NamedTuple):
    """Media that a model does not receive: the version of the message, the place of the content, and its type.

    ``version`` is 0 for a message of a context provider.
    """

    version: int
    place: int
    media_type: str


def unsent_media(wire: WireFormat, question: Question) -> tuple[UnsentMedia, ...]:
    """The media of a question that the body of its request does not have as what they are, in order."""
    sends, unsent = wire.sends_media, list[UnsentMedia]()
    if sends is None:
        return ()
    for number, message in enumerate(question.messages):
        for index, whole in enumerate(message.contents):
            for content in whole.contents if isinstance(whole, FunctionResult) else (whole,):
                if not isinstance(content, Media | Raw):
                    continue  # most are texts
                kind = media_kind(content)
                if kind is not None and not sends(question, message, content):
                    unsent.append(UnsentMedia(question.versions[number] if question.versions else 0, index, kind))
    return tuple(unsent)


def media_kind(content: Content) -> str | None:
    """The media type of a content, or the type of a service's own part for media; None for other contents."""
    if isinstance(content, Media):
        return media_type(content) or "media"
    return _kind_of_part(content.value) if isinstance(content, Raw) else None


def _kind_of_part(value: Json) -> str | None:
    match value:
        case {"type": str(kind)}:
            return kind if kind in _PARTS else None
        case {**fields}:
            return next(iter(sorted(_UNTYPED & fields.keys())), None)
        case _:
            return None
