"""The provider's own JSON of answers: kept beside the contents, and sent back to the service that made it."""

from __future__ import annotations

from clew.domain.errors import InvalidContentError
from clew.domain.json_patch import difference, patched
from clew.domain.json_values import Json
from clew.domain.messages import Message, Native
from clew.domain.models.client import Question

_ROOT = "json"


def with_native(message: Message, wire: str, written: Json, received: Json, *, signed: bool = False) -> Message:
    """The message, with what ``received`` has beyond ``written``, which the format ``wire`` writes for its contents.

    ``signed`` says that parts of it are bound to what came before. The run adds the provider, the model and the prefix.
    """
    patch = tuple(difference({_ROOT: written}, {_ROOT: received}))
    if not patch and not signed:
        return message
    return message.model_copy(update={"native": Native(wire=wire, patch=patch, prefix="" if signed else None)})


def received(message: Message, written: Json) -> Json:
    """The provider's JSON of an answer, from what its format writes for the contents.

    It is ``written`` itself if the answer has nothing more, or was changed since.
    """
    if message.native is None:
        return written
    try:
        return patched({_ROOT: written}, message.native.patch)[_ROOT]
    except (InvalidContentError, KeyError):
        return written


def is_own(message: Message, question: Question, wire: str) -> bool:
    """Whether the provider and the model that are asked made this answer, in this format."""
    native = message.native
    return native is not None and (native.wire, native.provider, native.model) == (
        wire,
        question.provider,
        question.model,
    )
